"""The memory of a host that parks take: its bank, what is available, and what no longer fits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pool_manager.core import events
from pool_manager.core.commands import Command, Drain, Park, Release, Unpark
from pool_manager.core.hosts import HostMemory
from pool_manager.core.machine import Machine
from pool_manager.core.state import State
from registry.model.hosts import LOCAL_HOST
from tests.support.play import Play, launched
from tests.unit.pool_manager.core.park.test_parks import (
    FULL,
    HOST,
    IDLE_S,
    RAM,
    Parked,
    gpus,
    sleeper,
)
from tests.unit.pool_manager.core.test_server_pools import A, B, notes, only


def read(total_mib: float, available_mib: float, host: str = LOCAL_HOST) -> events.MemoryRead:
    return events.MemoryRead(host, HostMemory(total_mib, available_mib))


@pytest.mark.parametrize(
    ("total_mib", "available_mib", "is_parked"),
    [
        (64_000.0, HOST + 4_096.0, True),
        (64_000.0, HOST + 4_095.0, False),
        (200_000.0, HOST + 10_000.0, True),
        (200_000.0, HOST + 9_999.0, False),
    ],
)
def test_a_park_leaves_memory_to_all_else(
    total_mib: float, available_mib: float, is_parked: bool
) -> None:
    """What is available less the peak must be 4 GiB, and 5 % of the memory."""
    there = Parked()
    there.warm(a="r1")
    assert there.play.on(read(total_mib, available_mib)) == []

    commands = there.idle()

    assert len(only(commands, Park)) == is_parked
    text = "r1 is not parked: 6000 MiB of host memory are not free"
    assert (text in notes(there.play, A)) is not is_parked


def test_what_falls_asleep_is_not_available_any_more() -> None:
    """A reading does not show yet what the one before will take; what slept has taken it."""
    there = Parked(sleeper(A), sleeper(B), devices=2)
    there.warm(a="r1", b="r2")
    there.play.on(read(64_000.0, 2 * HOST + 4_095.0))

    commands = there.idle()

    assert only(commands, Park) == [Park("r1", IDLE_S)]
    assert only(commands, Drain) == [Drain("r2", IDLE_S)]
    there.play.on(events.NotIdle("r2", 0.0))
    there.asleep()
    there.play.on(read(64_000.0, 4_096.0))
    there.prove()
    there.play.demand(a=1)
    there.wake()
    there.play.demand()
    assert only(there.idle(), Park) == [Park("r1", IDLE_S)]


def test_what_a_released_one_had_is_available_at_once() -> None:
    """A parked server that ends for another one frees its memory before the next reading."""
    there = Parked(sleeper(A), sleeper(B), devices=2)
    there.warm(a="r1")
    there.park()
    there.warm(b="r2")
    for _ in range(30):
        there.play.run(60.0, b=1)
    there.play.on(read(64_000.0, 4_096.0 + HOST / 2))
    there.play.demand()
    assert only(there.idle(), Release) == [Release("r1", f"{B} is parked instead")]

    there.play.on(events.Released("r1"))

    assert only(there.play.tick(1.0), Park) == [Park("r2", IDLE_S)]


def test_an_evicted_server_waits_for_the_memory_of_one_of_less_worth() -> None:
    """The claimant waits for the release, and then for the park of the victim that is worth more
    asleep than the one that ended for it."""
    ram = replace(RAM, memory_mib=10_000.0)
    there = Parked(sleeper(A), sleeper(B), sleeper("default/c@1"), devices=2, ram=(ram,))
    there.warm(a="r1")
    there.park()
    there.play.on(events.DeviceLost("g0", "Xid 79", False))
    there.play.on(events.Released("r1"))
    there.play.on(events.DeviceBack("g0"))
    there.warm(a="r2")
    there.park("r2")
    there.warm(b="r3")
    for _ in range(30):
        there.play.run(60.0, b=1)
    there.play.demand()

    commands = there.play.demand(70.0, c=1)

    assert launched(commands) == [("r4", "g1")] or only(commands, Release) == [
        Release("r2", f"{B} is parked instead")
    ]


def twice_asleep(memory_mib: float) -> Play:
    """A manager with this memory finds two servers that sleep; b is called more often."""
    ram = replace(RAM, memory_mib=memory_mib)
    play = Play(sleeper(A), sleeper(B), devices=[*gpus(2), ram], is_open=False)
    play.on(events.Found("r1", A, ("g0",)))
    play.on(events.Found("r2", B, ("g1",)))
    play.on(events.ReplicasListed())
    play.tick(3.0)
    for _ in range(9):
        play.pool("b").record_call(play.now)
    return play


def greet(play: Play, id: str, device: str) -> None:
    play.on(events.Greeted(id, {}, True))
    play.on(events.Loaded(id, 4, True, FULL, {"load": 60_000.0}, life=State.PARKED))
    play.on(events.ParkProven(id, {device: 500.0}))


def test_what_does_not_fit_any_more_ends() -> None:
    """After a restart with less memory the one of least worth ends, once all have greeted."""
    play = twice_asleep(10_000.0)
    greet(play, "r1", "g0")
    assert play.tick(0.5) == []
    greet(play, "r2", "g1")

    why = "the memory of its host is too small for all that is parked"
    assert only(play.tick(0.5), Release) == [Release("r1", why)]

    assert play.tick(0.5) == []
    play.on(events.Released("r1"))
    assert play.tick(0.5) == []
    assert play.state("r2") is State.PARKED


def test_what_is_called_does_not_end_for_what_does_not_fit() -> None:
    """A parked server that calls wait for wakes, whatever its host lacks."""
    play = twice_asleep(4_000.0)
    greet(play, "r1", "g0")
    greet(play, "r2", "g1")
    play.pool("a").unserved_since_s = play.now

    commands = play.tick(0.5)

    assert [one.id for one in only(commands, Release)] == ["r2"]


def test_a_local_host_without_cpu_slots_has_memory_too() -> None:
    """The machine is told the memory of its own host; that of an unknown host is ignored."""
    machine = Machine(gpus(), lambda: "r1")
    ledger = machine.cluster.ledger
    ledger.set_host_memory(LOCAL_HOST, 9_000.0)

    assert ledger.size_mib(ledger.host_bank(LOCAL_HOST)) == 9_000.0
    assert machine.handle(read(1.0, 1.0, "gone"), 0.0) == []


def test_a_min_that_is_raised_wakes_what_sleeps() -> None:
    """A function that keeps one replica ready has its parked one woken; it is not parked again."""
    there = Parked()
    there.warm(a="r1")
    there.park()

    assert there.play.on(events.PoolDefined(sleeper(min=1))) == [Unpark("r1")]

    there.wake()
    commands: list[Command] = there.idle(2 * IDLE_S)
    assert only(commands, Park) == only(commands, Drain) == []


def test_a_max_that_is_lowered_ends_what_sleeps_above_it() -> None:
    """Two sleep; one may be woken at all."""
    there = Parked(sleeper(max=2, target=1), devices=2)
    there.play.run(1.0, a=4)
    there.play.hear_all(1.0, in_flight={"a": 1}, queued={"a": 4})
    there.play.ready("r1", memory_mib=FULL)
    there.play.hear_all(1.0, in_flight={"a": 1}, queued={"a": 4})
    there.play.ready("r2", memory_mib=FULL)
    for one in ("r1", "r2"):
        there.play.pool("a").reload_s = 60.0
        there.play.replica(one).last_used_s = there.play.now
    there.play.demand()
    assert {one.id for one in only(there.idle(400.0), Park)} == {"r1", "r2"}
    for one in ("r1", "r2"):
        there.asleep(one)
        there.prove(one)

    commands = there.play.on(events.PoolDefined(sleeper(max=1)))

    assert only(commands, Release) == [Release("r1", "max is 1, and others are there")]


def test_nothing_ends_for_what_an_operator_parks() -> None:
    """`fnctl park` of a server whose host has no memory left says so, and it goes on serving."""
    there = Parked(sleeper(A), sleeper(B), devices=2, ram=(replace(RAM, memory_mib=10_000.0),))
    there.warm(a="r1")
    there.park()
    there.warm(b="r2")

    assert there.play.on(events.ParkRequested(B)) == []

    assert (there.listed("b"), there.play.state("r1")) == (["r2"], State.PARKED)
    assert "r2 is not parked: 6000 MiB of host memory are not free" in notes(there.play, B)
