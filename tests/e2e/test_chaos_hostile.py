"""Test of chaos with hostile containers in a small dose."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.chaos.containers import hostile

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(180)]

WATCHES_MAX = 200_000
"""Limit on epoll watches, hundreds of times what everything else on a machine has."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the server's user can read; pytest's own is private to this user."""
    with TemporaryDirectory(prefix="fn-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("is_root", [True, False], ids=["root", "another user"])
async def test_per_user_limits_do_not_affect_other_containers(
    folder: Path, engine: str, runtime_image: str, *, is_root: bool
) -> None:
    """While one container exhausts some fourteen kinds of per-user resources and others attack,
    functions beside them start and answer."""
    dose = hostile.Dose(7, hostile=3, hoarders=1, is_root=is_root, watches_max=WATCHES_MAX)

    ledger = await hostile.run(folder / "data", dose, engine, runtime_image)

    assert ledger.violations == []
    taken = ledger.figures["taken (how much, refused with, seconds)"]
    assert taken["epoll watches"][0] > 0.9 * WATCHES_MAX
    assert taken["descriptors in flight"][:2] == [4250, "ETOOMANYREFS"]
    assert (taken["keys"][:2], taken["message queues"][:2]) == ([0, "EPERM"], [0, "EMFILE"])
    assert taken["POSIX timers"][0] <= 1024
    assert taken["sockets and calls"][0] == 0
