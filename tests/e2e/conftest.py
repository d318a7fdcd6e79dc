"""Fixtures of the tests on real servers."""

from __future__ import annotations

from tests.support.short_folder import tmp_path

__all__ = ["tmp_path"]
