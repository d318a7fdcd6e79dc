"""A busy server that makes room finishes its exchanges, and is parked instead of stopped."""

from __future__ import annotations

from dataclasses import replace

from pool_manager.core import events
from pool_manager.core.commands import (
    Command,
    Drain,
    Park,
    ProvePark,
    Quiesce,
    Release,
    Resume,
    Terminate,
    Unpark,
)
from pool_manager.core.state import Device, State
from tests.support.play import launched
from tests.unit.pool_manager.core.park.test_parks import (
    FULL,
    HOST,
    PARK,
    RAM,
    RESIDUE,
    Parked,
    far_up,
    sleeper,
)
from tests.unit.pool_manager.core.test_server_pools import A, B, notes, only

HOST_NAME = "far"


def claimed(there: Parked) -> list[Command]:
    """Let calls of b wait for the device of the busy r1, until it makes room."""
    there.warm(a="r1")
    there.play.run(1.0, a=1)
    commands: list[Command] = []
    for _ in range(20):
        commands += there.play.hear_all(1.0, in_flight={"a": 1}, queued={"b": 1})
        commands += there.play.tick()
    return commands


def soft(*, ram: Device = RAM) -> Parked:
    """r1 of a is busy and makes room for b."""
    there = Parked(sleeper(A), sleeper(B), ram=(ram,))
    assert only(claimed(there), Park) == [Park("r1", None)]
    assert there.play.state("r1") is State.DRAINING
    return there


def test_a_busy_victim_sleeps_after_its_exchanges() -> None:
    """From before the command it is charged host memory, it is listed until its exchanges are over,
    and its claimant starts after the proof; its callers wake it in their turn."""
    there = soft()
    assert there.listed() == ["r1"]
    assert (there.charge().host_mib, there.charge().devices) == (HOST, ("g0",))
    there.play.hear_all(1.0, in_flight={}, queued={"a": 1, "b": 1})

    assert there.asleep() == [ProvePark("r1", RESIDUE)]

    assert (there.play.state("r1"), there.listed()) == (State.PROVING, [])
    assert launched(there.prove()) == [("r2", "g0")]
    there.play.on(events.Greeted("r2", {}))
    there.play.on(events.Loaded("r2", 4, True, FULL, {"load": 60_000.0}))
    commands: list[Command] = []
    for _ in range(12):
        commands += there.play.hear_all(1.0, in_flight={"b": 1}, queued={"a": 1})
        commands += there.play.tick()
    assert only(commands, Park) == [Park("r2", None)]
    there.asleep("r2")
    assert there.prove("r2") == [Unpark("r1")]


def test_its_residency_is_that_of_a_wake() -> None:
    """A busy server that can be parked is kept for 10 s; without room in host memory for its
    start."""
    for ram, count in ((RAM, 1), (replace(RAM, memory_mib=HOST), 0)):
        there = Parked(sleeper(A), sleeper(B), ram=(ram,))
        assert len(only(claimed(there), Park)) == count
        assert there.play.state("r1") is (State.DRAINING if count else State.READY)


def test_a_claim_that_ends_takes_it_back() -> None:
    """Its callers left before the exchanges were over: it serves, and is charged as before."""
    there = soft()

    commands = there.play.hear_all(1.0, in_flight={"a": 1}, queued={})

    assert commands == [Resume("r1")]
    there.play.on(events.NotIdle("r1", 0.0))
    assert (there.play.state("r1"), there.charge().host_mib) == (State.READY, 0.0)


def test_a_sleep_that_crossed_its_revocation_is_a_park() -> None:
    """Resume came too late and is not answered: the server is parked, and may be parked again."""
    there = soft()
    there.play.hear_all(1.0, in_flight={"a": 1}, queued={})
    there.play.demand()

    there.asleep()
    there.prove()

    assert there.play.state("r1") is State.PARKED
    assert there.play.replica("r1").resumes == 0


def test_it_may_refuse_although_nobody_revoked_it() -> None:
    """A server that cannot sleep just now serves, and its claimant looks for room anew."""
    there = soft()

    commands = there.play.on(events.NotIdle("r1", 0.0))

    assert commands == [Park("r1", None)]
    assert any("r1 keeps serving" in text for text in notes(there.play, A))


def test_exchanges_that_do_not_end_are_cut_as_without_a_park() -> None:
    """After `drain_s` it is terminated, and what it says then does not count."""
    there = soft()
    replica = there.play.replica("r1")

    assert only(there.play.tick(replica.deadline_s - there.play.now), Terminate)

    assert there.asleep() == []
    assert there.play.state("r1") is State.DRAINING
    there.play.on(events.Lost("r1", "exit 0"))
    assert there.play.pool("a").parks.wrong == []


def test_a_sleep_that_crossed_the_end_is_ignored() -> None:
    """Its process was lost meanwhile: it is released, and nothing is proved."""
    there = soft()
    there.play.on(events.Lost("r1", "signal 9"))

    assert there.asleep() == []

    assert there.play.state("r1") is State.RELEASING


def test_an_engine_that_does_not_sleep_then_is_counted() -> None:
    """As of one that was idle."""
    there = soft()

    commands = there.play.on(events.ParkAnswered("r1", "status 500", 0.1))

    assert only(commands, Release) == [Release("r1", "its engine does not sleep: status 500")]
    assert len(there.play.pool("a").parks.wrong) == 1


def test_a_removed_function_is_stopped_and_does_not_sleep() -> None:
    """A final drain ends it after its exchanges."""
    there = soft()

    assert only(there.play.on(events.PoolRemoved(A)), Drain) == [Drain("r1", None)]

    assert there.asleep() == []
    assert there.play.state("r1") is State.DRAINING


def test_a_new_link_is_told_again() -> None:
    """Also a soft drain that ends with a sleep."""
    there = soft()

    assert there.play.on(events.Greeted("r1", {}, True)) == [Park("r1", None)]


def test_a_host_that_is_back_has_it_serve_again() -> None:
    """Its claim ended with the connection."""
    there = Parked(sleeper(A), sleeper(B), devices=0)
    there.play.on(events.HostDefined(HOST_NAME))
    there.play.on(far_up(1))
    assert only(claimed(there), Park) == [Park("r1", None)]

    there.play.on(events.HostUnreachable(HOST_NAME, "no route"))
    there.play.on(far_up(2, frozenset({"r1"})))

    assert only(there.play.on(events.Greeted("r1", {}, True)), Resume) == [Resume("r1")]


def test_what_will_be_kept_counts_before_the_sleep() -> None:
    """Two share a device, of which a fifth may stay in use: only one of them is parked."""
    kept = replace(PARK, residue_mib=1_500.0)
    half = {"share": 0.5, "memory_mib": 4_000.0, "park": kept}
    large = sleeper("default/c@1", memory_mib=6_000.0)
    there = Parked(sleeper(A, **half), sleeper(B, **half), large)
    for name, id in (("a", "r1"), ("b", "r2")):
        there.play.demand(**{name: 1})
        there.play.ready(id, memory_mib=4_000.0)
        there.play.pool(name).reload_s = 60.0
    there.play.run(1.0, a=1, b=1)
    commands: list[Command] = []
    for _ in range(30):
        commands += there.play.hear_all(1.0, in_flight={"a": 1, "b": 1}, queued={"c": 1})
        commands += there.play.tick()

    assert only(commands, Park) == [Park("r1", None)]
    assert only(commands, Quiesce) == [Quiesce("r2")]
