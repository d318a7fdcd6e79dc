"""Which files a host has, is to get, and keeps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator
from dataclasses import replace
from typing import Any

import pytest

from pool_manager.core import events
from pool_manager.core.hosts import HostRecord, HostState
from pool_manager.core.machine import Machine
from pool_manager.core.state import Device, PoolSpec
from pool_manager.core.stocking import FileSet, HostSpace
from pool_manager.hosts.stocking import AGAIN_S, PLAN_S, CachedSet, Stocking, plan
from pool_manager.ports import Binding
from registry.errors import DriverError, HostDown
from registry.model.bundles import Bundle, BundleFile
from registry.tasks import Tasks
from runtime_image.contract.model import ModelSpec
from tests.support.modelled import Clock
from tests.support.operator import until

A, B, SHARED = (BundleFile(name, 10, name * 64) for name in "abc")


def kept(name: str, *files: BundleFile, hosts: int = 1) -> CachedSet:
    return CachedSet(FileSet(name, sum(one.size for one in files), hosts), files)


def room(name: str, limit: int = 100, state: HostState = HostState.UP) -> HostSpace:
    return HostSpace(HostRecord(name, state, 0.0), limit, {"cpu"})


def test_a_set_is_complete_with_all_of_its_files() -> None:
    """A file that two sets share counts for both; what is missing is sent only to its hosts."""
    wanted = [kept("one", A, SHARED, hosts=2), kept("two", B, SHARED, hosts=0)]
    rooms = [room("gpu2"), room("gpu3")]
    stocks = {
        "gpu2": {A.sha256: 10, SHARED.sha256: 10},
        "gpu3": {B.sha256: 10, SHARED.sha256: 10, "d" * 64: 10},
    }

    plans = plan(wanted, rooms, stocks)

    assert plans["gpu2"].complete == {"one"}
    assert plans["gpu2"].missing == ()
    assert plans["gpu2"].kept == {A.sha256, SHARED.sha256}
    assert plans["gpu3"].complete == {"two"}
    assert plans["gpu3"].missing == ((A, SHARED),)
    assert plans["gpu3"].kept == {A.sha256, SHARED.sha256}


def test_a_host_that_is_away_keeps_its_part() -> None:
    """Its files are not sent to another one while it may come back."""
    wanted = [kept("one", A)]
    rooms = [room("gpu2"), room("gpu3")]
    [target] = [
        name for name, one in plan(wanted, rooms, {"gpu2": {}, "gpu3": {}}).items() if one.missing
    ]
    other = {"gpu2": "gpu3", "gpu3": "gpu2"}[target]
    away = [room(target, state=HostState.UNREACHABLE), room(other)]

    assert plan(wanted, away, {other: {}})[other].missing == ()


def test_a_host_without_room_gets_nothing() -> None:
    """The limit of a cache is that of what is sent ahead of need, too."""
    rooms = [room("gpu2", limit=9)]

    assert plan([kept("one", A)], rooms, {"gpu2": {}})["gpu2"].missing == ()


def test_optional_files_are_sent_after_the_others() -> None:
    """A set is complete without them; those for one host are for that host alone."""
    one = replace(kept("one", A, hosts=2), optional=(("", (B,)), ("gpu3", (SHARED,))))
    rooms = [room("gpu2"), room("gpu3")]

    plans = plan([one], rooms, {"gpu2": {A.sha256: 10}, "gpu3": {}})

    assert plans["gpu2"].complete == {"one"}
    assert plans["gpu2"].missing == ((B,),)
    assert plans["gpu2"].kept == {A.sha256, B.sha256}
    assert plans["gpu3"].missing == ((A,), (B,), (SHARED,))


class There:
    """Stand-in for a host and its files."""

    def __init__(self) -> None:
        self.name, self.cache_mib = "gpu2", 1000
        self.images: frozenset[str] = frozenset()
        self.files = self.cache = self
        self.stock: dict[str, int] = {}
        self.bytes_per_s = 1e6
        self.done: list[str] = []
        self.errors: dict[str, Exception] = {}

    async def send(self, files: Collection[BundleFile]) -> None:
        for file in files:
            self.done.append(file.path)
            if error := self.errors.get(file.path):
                raise error
            self.stock[file.sha256] = file.size

    async def trim(self, limit_mib: int, kept: Collection[str]) -> None:
        self.done.append("trim")


class Only:
    """A fleet of one host."""

    def __init__(self, there: There) -> None:
        self.there = there

    def __iter__(self) -> Iterator[There]:
        return iter([self.there])

    def find(self, name: str) -> There:
        return self.there


class Rig:
    """Stocking of one host for a function of each of A and B."""

    def __init__(self) -> None:
        self.there, self.clock, self.tasks = There(), Clock(), Tasks("rig")
        fleet: Any = Only(self.there)
        self.stocking = Stocking(fleet, lambda _event: None, self.tasks, self.clock)
        self.machine = Machine([], lambda: "id")
        self.bindings: dict[str, Binding] = {}
        slot = Device("gpu2/cpu:0", "cpu", host="gpu2")
        for event in (
            events.HostDefined("gpu2", (), is_draining=False),
            events.HostUp("gpu2", 1, (slot,), frozenset()),
        ):
            self.machine.handle(event, 0.0)
        for file in (A, B):
            spec = PoolSpec(f"default/{file.path}@1", files=file.path)
            bundle = Bundle("m", (file,))
            model = ModelSpec(f"{file.path}@1", model=file.path)
            self.machine.handle(events.PoolDefined(spec), 0.0)
            self.bindings[spec.key] = Binding(model, bundle, "default", file.path, 1)

    async def tick(self, after_s: float) -> list[str]:
        """Return what is done at the next tick, `after_s` later."""
        self.clock.now += after_s
        self.stocking.tick(self.machine, self.bindings)
        await until(lambda: not len(self.tasks))
        done, self.there.done = self.there.done, []
        return done


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    yield made
    await made.tasks.close()


async def test_a_file_that_cannot_be_sent_does_not_keep_the_others_back(rig: Rig) -> None:
    """It may be too large for the disk, or faulty here. It is sent again after a pause, also if
    nothing else happens; and the cache is trimmed before, which may make the room."""
    rig.there.errors[A.path] = DriverError("no space on gpu2")
    assert await rig.tick(PLAN_S) == ["trim", "a", "b", "trim"]
    assert await rig.tick(PLAN_S) == []
    del rig.there.errors[A.path]

    assert await rig.tick(AGAIN_S) == ["trim", "a", "trim"]


async def test_a_host_that_is_down_gets_nothing_more(rig: Rig) -> None:
    """Each further transfer would have to wait for its time limit."""
    rig.there.errors[A.path] = HostDown("the connection to gpu2 is lost")

    assert await rig.tick(PLAN_S) == ["trim", "a"]
