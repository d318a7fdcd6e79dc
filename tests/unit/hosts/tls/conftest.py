"""Fixtures of links over TLS."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.link_door import Scene


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    """Yield an open door."""
    async with Scene(tmp_path) as made:
        yield made
