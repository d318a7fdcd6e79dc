"""Fake drivers in the place of a server's own."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

from admin.compose import DRIVERS, OpenDriver
from pool_manager.driver import Driver
from pool_manager.host import HostView
from registry.model.hosts import LOCAL_HOST
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


def hosts_with(kind: str) -> list[HostView]:
    """Return what deploys see of a server with the product's driver of this name, and no other
    hosts."""
    driver = FakeDriver()
    driver.is_contained = kind == "docker"
    driver.images = FakeImages() if kind == "docker" else None
    return [
        HostView(
            LOCAL_HOST,
            driver=kind,
            abilities=driver.abilities,
            is_contained=driver.is_contained,
        )
    ]
