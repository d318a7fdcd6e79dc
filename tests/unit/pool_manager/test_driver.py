"""The interface of drivers."""

from __future__ import annotations

from pathlib import Path

import pytest

from pool_manager.driver import Driver, Exit
from pool_manager.drivers.process import ProcessDriver
from tests.support.fake_driver.driver import FakeDriver


@pytest.mark.parametrize("kind", ["fake", "process"])
async def test_a_new_driver_has_nothing(kind: str, tmp_path: Path) -> None:
    """Every driver has a kind, starts without replicas and accepts unknown ids."""
    driver: Driver = FakeDriver() if kind == "fake" else ProcessDriver(tmp_path)

    await driver.terminate("aaaa0001")
    await driver.release("aaaa0001")
    driver.exits.notify("aaaa0001", Exit("nobody listens yet"))

    assert driver.kind == kind
    assert await driver.list() == set()
    assert await driver.processes.pids("aaaa0001") == frozenset()
    await driver.close()
