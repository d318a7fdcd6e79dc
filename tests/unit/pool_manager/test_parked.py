"""Parks of a pool as people see them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pool_manager.core import events
from pool_manager.core.state import State
from pool_manager.parked import park_memory_mib, parks_of, wake_s, wake_text
from registry.model.hosts import LOCAL_HOST
from tests.unit.pool_manager.core.park.test_parks import (
    HOST,
    PARK,
    RAM,
    RESIDUE,
    Parked,
    sleeper,
)


@pytest.fixture
def parked() -> Parked:
    """One server on one GPU, ready and idle."""
    there = Parked()
    there.warm(a="r1")
    return there


def test_a_parked_replica_says_what_it_keeps_and_until_when(parked: Parked) -> None:
    """It keeps its residue and host memory; one that only falls asleep is not parked yet."""
    pool, cluster = parked.play.pool("a"), parked.play.machine.cluster
    parked.idle()
    parked.asleep()
    assert parks_of(pool, cluster).parked == ()
    parked.prove(residue=400.0)

    found = parks_of(pool, cluster)

    (one,) = found.parked
    assert (one.id, one.devices, one.since_s) == ("r1", ("g0",), parked.play.now)
    assert (one.residue_mib, one.host_mib) == (400.0, HOST)
    assert one.ends_s == parked.play.now + PARK.park_s
    assert one.why == "idle for 300 s"
    assert (found.off, found.wake_s) == ("", 0.75)


def test_the_wake_is_told_while_a_replica_sleeps_or_wakes(parked: Parked) -> None:
    """Not while it is awake, nor when another one starts in its place."""
    pool = parked.play.pool("a")
    assert (wake_s(pool), wake_text(pool)) == (0.0, "")
    parked.park()
    assert (wake_s(pool), wake_text(pool)) == (0.75, "")

    parked.play.demand(a=1)

    told = "a parked replica wakes, which takes about 0.75 s"
    assert parked.play.state("r1") is State.UNPARKING
    assert (wake_s(pool), wake_text(pool)) == (0.75, told)
    parked.play.on(events.UnparkAnswered("r1", "", 0.5))
    assert (wake_s(pool), wake_text(pool)) == (0.75, told)
    parked.play.on(events.Verified("r1", "gibberish"))
    assert (wake_s(pool), wake_text(pool)) == (0.0, "")
    parked.play.on(events.Released("r1"))
    assert parked.play.state("r2") is State.STARTING
    assert (wake_s(pool), wake_text(pool)) == (0.0, "")


def test_a_pool_without_parks_has_none(parked: Parked) -> None:
    """A spec without a profile tells no wake."""
    play = parked.play
    play.on(events.PoolDefined(sleeper(park=None)))

    found = parks_of(play.pool("a"), play.machine.cluster)

    assert (found.off, found.wake_s, found.parked) == ("", 0.0, ())
    assert wake_s(play.pool("a")) == 0.0


def test_host_memory_of_parks_is_summed_by_host(parked: Parked) -> None:
    """It stays charged after a wake: the engine keeps it. A host without a size has none."""
    cluster = parked.play.machine.cluster
    assert park_memory_mib(cluster) == {LOCAL_HOST: 0.0}
    parked.park()
    assert park_memory_mib(cluster) == {LOCAL_HOST: HOST}
    parked.play.demand(a=1)
    parked.wake()
    assert park_memory_mib(cluster) == {LOCAL_HOST: HOST}

    bare = Parked(ram=(replace(RAM, memory_mib=0.0),))
    assert park_memory_mib(bare.play.machine.cluster) == {}
    assert RESIDUE < HOST
