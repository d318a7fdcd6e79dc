"""Fixtures shared by the tests of deploys."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.fake_driver.driver import FakeDriver, Script
from tests.support.operator import Operator, operating
from tests.support.server import Gate


@pytest.fixture
def gate() -> Gate:
    """Gate that blocks loading while a test has it shut."""
    return Gate()


@pytest.fixture
async def operator(tmp_path: Path, gate: Gate) -> AsyncIterator[Operator]:
    """Nothing is deployed yet; every load passes the gate."""
    async with operating(tmp_path, FakeDriver(Script(load_s=1), sleep=gate)) as operator:
        yield operator
        gate.open()
