"""Fetches of a host's replicas: shown while they last, and measured."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hosts.speed import START_BYTES_PER_S, WEIGHT
from pool_manager.core import events
from pool_manager.hosts.fetches import LOOK_S, SILENT_S, Fetches
from pool_manager.hosts.services import HostServices
from registry.tasks import Tasks

MB = 10**6


class Scene:
    """One host, whose door serves what the test says with each look."""

    def __init__(self, tasks: Tasks) -> None:
        self.now_s = 100.0
        self.served: dict[str, int] = {}
        self.said: list[events.Event] = []
        self.changes: list[str] = []
        self._look = asyncio.Event()
        self._looked = asyncio.Event()
        services = HostServices(
            announce=lambda _host, _labels, _drains: None,
            withdraw=lambda _name, _forced: None,
            seen=(),
            records=lambda _name: {},
            path=Path,
            rewrite=lambda _record: None,
            answers=lambda _name: False,
            emit=self.said.append,
            changed=self.changes.append,
            tasks=tasks,
            clock=lambda: self.now_s,
            wall=lambda: self.now_s,
        )
        served = lambda id: self.served.get(id, 0)  # noqa: E731 - a counter of the door
        self.fetches = Fetches("far", served, services, self._pause)

    async def _pause(self, seconds: float) -> None:
        assert seconds == LOOK_S
        self._looked.set()
        await self._look.wait()
        self._look.clear()

    async def begin(self, total: int, id: str = "r1") -> None:
        """Begin a fetch, and wait until it is followed."""
        self.fetches.begin(id, total)
        await self._pass()

    async def look(self, more: int, seconds: float = LOOK_S) -> None:
        """Serve more, and let one look happen."""
        self.served["r1"] = self.served.get("r1", 0) + more
        self.now_s += seconds
        self._look.set()
        await self._pass()

    async def _pass(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    @property
    def speeds(self) -> list[float]:
        """What placement was told."""
        return [one.bytes_per_s for one in self.said if isinstance(one, events.HostStocked)]

    @property
    def reports(self) -> list[events.Event]:
        """What was told of the fetches."""
        return [one for one in self.said if isinstance(one, events.FetchReported)]


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    """A host without fetches."""
    tasks = Tasks("test")
    yield Scene(tasks)
    await tasks.close()


async def test_a_fetch_is_shown_until_it_is_complete(scene: Scene) -> None:
    """What was served before it does not count; the text names the replica."""
    scene.served["r1"] = 7 * MB
    await scene.begin(100 * 2**20)
    await scene.look(40 * 2**20)

    assert scene.fetches.transfers.text == "files of r1: 40 of 100 MiB"
    assert scene.reports == [events.FetchReported("r1", 40 * 2**20, 100 * 2**20, 1.0)]
    await scene.look(70 * 2**20)  # ranges that were broken off are sent again
    assert scene.reports[1:] == [events.FetchReported("r1", 100 * 2**20, 100 * 2**20, 2.0)]
    assert scene.fetches.transfers.text == ""
    assert scene.fetches.transfers.total_bytes == 100 * 2**20
    assert scene.changes == ["far", "far"]


async def test_the_speed_is_that_between_two_looks(scene: Scene) -> None:
    """Nothing of the fetch before the first and after the last look is in it."""
    await scene.begin(100 * MB)
    await scene.look(1 * MB)
    await scene.look(20 * MB)
    await scene.look(20 * MB)
    assert not scene.speeds
    await scene.look(59 * MB)
    assert scene.speeds == [START_BYTES_PER_S + WEIGHT * (20 * MB - START_BYTES_PER_S)]


@pytest.mark.parametrize(("total", "count"), [(80 * MB, 1), (40 * MB, 0), (2 * MB, 0)])
async def test_a_short_fetch_can_only_raise_the_speed(scene: Scene, total: int, count: int) -> None:
    """It may have ended long before the look."""
    await scene.begin(total)
    await scene.look(total)
    assert len(scene.speeds) == count
    assert all(one > START_BYTES_PER_S for one in scene.speeds)


@pytest.mark.parametrize("is_again", [True, False])
async def test_a_start_that_is_over_is_followed_no_more(scene: Scene, is_again: bool) -> None:
    """Nor is one that begins again, from where it is."""
    await scene.begin(100 * MB)
    await scene.look(40 * MB)
    if is_again:
        await scene.begin(60 * MB)
        await scene.look(60 * MB)
        assert scene.reports[-1] == events.FetchReported("r1", 60 * MB, 60 * MB, 1.0)
    else:
        scene.fetches.end("r1")
        scene.fetches.end("r1")
        await scene.look(60 * MB)
        assert len(scene.reports) == 1
    assert scene.fetches.transfers.text == ""


async def test_a_fetch_without_progress_is_given_up(scene: Scene) -> None:
    """The replica's own limits end the start."""
    await scene.begin(100 * MB)
    await scene.look(40 * MB)
    await scene.look(0, SILENT_S - 1)
    assert scene.fetches.transfers.text
    await scene.look(0)
    assert scene.fetches.transfers.text == ""
    assert not scene.speeds


async def test_nothing_to_fetch_is_no_fetch(scene: Scene) -> None:
    """As of a model without files of its own."""
    await scene.begin(0)
    assert not scene.changes
