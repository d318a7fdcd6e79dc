"""Fake drivers in the place of a server's own."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

from admin.compose import DRIVERS, OpenDriver
from pool_manager.driver import Driver, DriverFacts
from tests.support.fake_driver.driver import FakeDriver
from tests.support.images import FakeImages

PROGRAM: Final = (sys.executable, "-m", "tests.support.fake_driver")
"""`fnctl` for the verb `serve` alone, over a fake driver. Started in the root of the checkout."""


def drivers_of(driver: Driver | None = None) -> Mapping[str, OpenDriver]:
    """Return a server's table of drivers in which every name is `driver`, or a fake one that
    behaves."""

    async def opened(*_: object) -> Driver:
        return driver or FakeDriver()

    return dict.fromkeys(DRIVERS, opened)


def facts_of(kind: str) -> DriverFacts:
    """Return what deploys see of the product's driver of this name."""
    driver = FakeDriver()
    driver.kind = kind
    driver.is_contained = kind == "docker"
    driver.images = FakeImages() if kind == "docker" else None
    return driver
