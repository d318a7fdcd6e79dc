"""Fixtures: a server over fake replicas with one function."""

from __future__ import annotations

from tests.unit.admin.api.conftest import server

__all__ = ["server"]
