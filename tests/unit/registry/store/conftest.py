"""Fixtures of a real store in a file, one per test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from registry.store.database import Database


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    """Open, empty database without a wait for locks."""
    opened = await Database.open(tmp_path / "fngate.db", busy_s=0)
    yield opened
    await opened.close()
