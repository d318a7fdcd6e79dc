"""Fixtures of the tests of several parts together."""

from __future__ import annotations

from tests.support.short_folder import tmp_path

__all__ = ["tmp_path"]
