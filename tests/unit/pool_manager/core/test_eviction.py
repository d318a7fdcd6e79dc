"""Eviction: which replicas are stopped for which pool, and which pool gets the freed device."""

from __future__ import annotations

from typing import Any

import pytest

from pool_manager.core import events
from pool_manager.core.commands import Drain, EndWarm, Launch, Release
from pool_manager.core.eviction import PREEMPT_AFTER_S, RESIDENCY_S, TRIAL_PREEMPT_AFTER_S
from pool_manager.core.pool import OVERDUE_MIN_S
from pool_manager.core.state import Device, PoolSpec
from registry.exchange import Load
from tests.support.play import Play, assigned, cpus, launched

A, B, C, D = (f"default/{name}@1" for name in "abcd")
A2 = "default/a@2"
GPUS = [Device("g1", "cuda", 10_000), Device("g2", "cuda", 10_000)]
HELD, RUNS = Load(1, 0, 0.0), Load(0, 1, 0.0)


def revisions(most: int = 1) -> tuple[PoolSpec, PoolSpec]:
    """Two revisions of one function."""
    return (
        PoolSpec(A, max=most, function="default/a"),
        PoolSpec(A2, max=most, function="default/a"),
    )


def test_the_cheapest_idle_replica_goes() -> None:
    """Of two idle functions, the one that has been unused for longer is evicted."""
    play = Play(PoolSpec(A), PoolSpec(B), PoolSpec(C))
    play.warm(a="r1")
    play.tick(50.0)
    play.warm(b="r2")

    assert play.demand(1.0, c=1) == [Drain("r1", 0.001)]


def test_a_cleared_device_goes_to_whom_it_was_cleared_for() -> None:
    """A reserved device is not given to a function that asks later, even if its name sorts
    first."""
    play = Play(PoolSpec(A), PoolSpec(B), PoolSpec(C), devices=1)
    play.warm(b="r1")
    play.demand(1.0, c=1)
    play.on(events.Lost("r1", "exit 0"))
    play.demand(a=1, c=1)

    assert launched(play.on(events.Released("r1"))) == [("r2", "d0")]
    assert play.replica("r2").pool == C
    assert play.reason("a") == "no free device (1 in use)"


def test_who_keeps_the_devices_is_told_apart_from_the_reason() -> None:
    """The reason, which callers get, has their number only. Who is above its `min`, and the pool
    itself, keep nothing; once there is room, nobody does."""
    play = Play(PoolSpec(A, min=1), PoolSpec(B, min=1), PoolSpec(C), devices=2)
    play.warm(a="r1")
    play.warm(b="r2")

    play.demand(c=1)
    blocked = play.machine.endpoints(C, play.now)

    text = "no free device (2 in use, 2 of them kept by the min of other functions)"
    assert (blocked.reason, blocked.kept_by) == (text, ["default/a", "default/b"])
    play.on(events.PoolDefined(PoolSpec(B)))
    play.demand(RESIDENCY_S, c=1)
    assert play.machine.endpoints(C, play.now).kept_by == []


def test_one_that_drains_is_not_kept() -> None:
    """Although its function is at its `min`."""
    play = Play(PoolSpec(A, min=2, max=2), PoolSpec(B), devices=2)
    play.demand()
    play.ready("r1", "r2")

    assert play.on(events.PoolDefined(PoolSpec(A, min=1, max=2))) == [Drain("r2", None)]
    play.demand(b=1)

    assert play.reason("b") == (
        "no free device (2 in use, 1 of them kept by the min of other functions)"
    )


def test_who_wants_nothing_any_more_keeps_nothing() -> None:
    """When the caller has left, the pool's reservation is released."""
    play = Play(PoolSpec(A), PoolSpec(B), PoolSpec(C), devices=1)
    play.warm(a="r1")
    play.demand(1.0, b=1)
    assert play.machine.cluster.ledger.reservations.keys() == {"d0"}

    play.demand(c=1)

    assert play.machine.cluster.ledger.reservations == {}
    assert play.machine.cluster.blocked == {C}
    play.lose("r1", "exit 0")
    assert play.replica("r2").pool == C


def test_a_free_device_is_taken_before_one_that_is_being_cleared() -> None:
    """A pool that waits for a victim starts on another device if that has room earlier."""
    play = Play(PoolSpec(A), PoolSpec(B), PoolSpec(C))
    play.warm(a="r1", b="r2")
    play.demand(1.0, c=1)

    assert launched(play.lose("r2")) == [("r3", "d1")]
    assert play.machine.cluster.ledger.reservations == {}


def test_after_a_refusal_others_are_asked() -> None:
    """A replica that refused is not asked again for a second; another one is evicted instead."""
    play = Play(PoolSpec(A), PoolSpec(B), PoolSpec(C))
    play.warm(a="r1")
    play.tick(10.0)
    play.warm(b="r2")
    assert play.demand(1.0, c=1) == [Drain("r1", 0.001)]

    assert play.on(events.NotIdle("r1", 0.0)) == [Drain("r2", 0.001)]


def test_a_victim_that_cannot_be_got_rid_of_is_given_up() -> None:
    """A pool does not wait for a victim that cannot be released."""
    play = Play(PoolSpec(A), PoolSpec(B), PoolSpec(C))
    play.warm(a="r1")
    play.tick(10.0)
    play.warm(b="r2")
    play.demand(1.0, c=1)
    play.on(events.Lost("r1", "exit 0"))

    play.on(events.NotReleased("r1", "stuck"))

    assert play.tick() == [Drain("r2", 0.001)]


def test_a_busy_replica_gives_way_after_a_while() -> None:
    """Without idle candidates, after a wait of five seconds the replica that has served longest is
    drained."""
    play = Play(PoolSpec(A), PoolSpec(B), PoolSpec(C))
    play.run(a=1)
    play.ready("r1")
    play.run(5.0, a=1, b=1)
    play.ready("r2")
    loads = {A: RUNS, B: RUNS, C: HELD}

    play.hear(loads, 1.0)
    assert play.hear(loads, PREEMPT_AFTER_S - 0.5) == []
    assert play.hear(loads, 0.5) == [Drain("r1", None)]
    assert play.reason("c") == f"waits for {A} to make room on d0"
    assert play.hear({A: HELD, B: RUNS, C: HELD}, 1.0) == []


def test_the_longest_served_of_several_busy_replicas_is_drained() -> None:
    """Both are past their residency; the order of names and devices does not decide."""
    play = Play(PoolSpec(A), PoolSpec(B), PoolSpec(C))
    play.run(b=1)
    play.ready("r1")
    play.run(5.0, a=1, b=1)
    play.ready("r2")
    loads = {A: RUNS, B: RUNS}
    play.hear(loads, 30.0)

    play.hear(loads | {C: HELD}, 1.0)
    assert play.hear(loads | {C: HELD}, PREEMPT_AFTER_S) == [Drain("r1", None)]


def test_the_device_of_the_longest_served_replica_is_reserved() -> None:
    """Where no replica is past its residency, a waiting pool reserves the device that will be free
    for eviction first."""
    play = Play(PoolSpec(A), PoolSpec(B), PoolSpec(C))
    play.run(b=1)
    play.ready("r1")
    play.run(2.0, a=1, b=1)
    play.ready("r2")
    loads = {A: RUNS, B: RUNS, C: HELD}

    play.hear(loads, 0.5)
    play.hear(loads, PREEMPT_AFTER_S)

    reserved = play.machine.cluster.ledger.reservations.keys()
    assert reserved == set(play.replica("r1").devices)


def test_a_second_replica_drains_nobody() -> None:
    """Only a pool without any replica may preempt busy replicas."""
    play = Play(PoolSpec(A, max=2), PoolSpec(B))
    play.run(a=1, b=1)
    play.ready("r1", "r2")

    assert play.seconds(60, a=8, b=1) == []
    assert play.pool("a").wanted == 2


def test_a_deploy_waits_longer() -> None:
    """A trial that evicts may preempt a busy replica too, but only after half a minute."""
    play = Play(PoolSpec(A), devices=1)
    play.run(a=1)
    play.ready("r1")
    play.on(events.PoolDefined(PoolSpec(B, role="trial", evicts=True)))

    assert play.seconds(int(TRIAL_PREEMPT_AFTER_S) - 1, a=1) == []
    assert play.seconds(1, a=1) == [Drain("r1", None)]


def test_who_needs_several_gets_its_turn() -> None:
    """A pool that needs the place of two replicas gets a reservation, although other pools' turns
    mean that the two are never past their residency together."""
    play = Play(
        PoolSpec(A, memory_mib=9_000),
        PoolSpec(B, share=0.5),
        PoolSpec(C, share=0.5),
        PoolSpec(D, share=0.5),
        devices=GPUS[:1],
    )
    play.run(b=1)
    play.ready("r1")
    play.run(8.0, b=1, c=1)
    play.ready("r2")
    waiting = {A: HELD, B: RUNS, C: RUNS}
    play.hear(waiting, 1.0)
    play.hear(waiting, 1.0)

    assert play.hear(waiting | {D: HELD}, PREEMPT_AFTER_S) == []
    assert play.machine.cluster.ledger.reservations.keys() == {"g1"}
    assert play.hear(waiting | {D: HELD}, 2.0) == []
    drains = play.hear(waiting | {D: HELD}, 2.0)
    assert drains == [Drain("r1", None), Drain("r2", None)]


def test_memory_one_victim_leaves_is_kept_until_the_second_has_gone() -> None:
    """Memory freed by one victim is not given to a smaller pool while the reservation waits for the
    second."""
    play = Play(
        PoolSpec(A, memory_mib=1_500),
        PoolSpec(B, memory_mib=700),
        PoolSpec(C, memory_mib=700),
        PoolSpec(D, memory_mib=700),
        devices=cpus(3, 2_000),
    )
    play.warm(b="r1", c="r2")
    assert play.demand(a=1) == [Drain("r1", 0.001), Drain("r2", 0.001)]

    assert play.demand(a=1, d=1) == []
    assert play.lose("r1") == []
    assert play.reason("d") == "needs 700 MiB, 244 are free"
    play.lose("r2")
    assert [one.pool for one in play.machine.replicas()] == [A]


def test_two_revisions_share_the_functions_max() -> None:
    """At the function's `max`, the other revision's idle replica is evicted first, even if a device
    is free."""
    play = Play(*revisions())
    play.hear({A: RUNS})
    play.ready("r1")
    play.hear({})

    assert play.hear({A2: HELD}) == [Drain("r1", 0.001)]
    assert play.hear({A2: HELD}) == []
    assert launched(play.lose("r1", "exit 0")) == [("r2", "d1")]


def test_a_busy_revision_gives_way_to_the_other() -> None:
    """Two busy revisions of a function with `max` 1 take turns."""
    play = Play(*revisions())
    play.hear({A: RUNS})
    play.ready("r1")
    both = {A: RUNS, A2: HELD}
    play.hear(both, RESIDENCY_S)
    assert play.machine.endpoints(A2, play.now).reason == (
        "max is 1, reached by replicas of other revisions"
    )

    assert play.hear(both, PREEMPT_AFTER_S) == [Drain("r1", None)]


def test_two_called_revisions_progress_beside_other_functions() -> None:
    """On one device, two revisions of a function and two other functions that are called without a
    pause take turns; none waits for ever."""
    keys = (A, A2, B, C)
    play = Play(*revisions(), PoolSpec(B), PoolSpec(C), devices=1)
    served = dict.fromkeys(keys, 0)
    for _ in range(200):
        there = {key: play.machine.endpoints(key, play.now).replicas for key in keys}
        for key in keys:
            served[key] += bool(there[key])
        loads = {key: RUNS if there[key] else HELD for key in keys}
        for command in [*play.hear(loads, 1.0), *play.tick()]:
            if isinstance(command, Drain):
                play.lose(command.id, "exit 0")
        play.ready(*(one.id for one in play.machine.replicas() if one.is_coming))

    assert min(served.values()) > 200 / len(keys) / 2, served


def test_one_that_goes_already_is_waited_for() -> None:
    """While a replica of the other revision is leaving, no further replica is drained for the
    revision."""
    play = Play(*revisions(2), devices=4)
    play.on(events.PoolDefined(PoolSpec(A, min=2, max=2, function="default/a")))
    play.hear({})
    play.ready("r1", "r2")
    play.on(events.PoolDefined(PoolSpec(A, max=2, idle_s=5.0, function="default/a")))
    play.on(events.SleepRequested(A))
    play.on(events.NotIdle("r2", 0.0))

    assert play.hear({A2: HELD}) == []
    assert play.machine.endpoints(A2, play.now).reason == f"waits for r1 of {A} to drain"
    play.on(events.Lost("r1", "exit 0"))
    assert launched(play.tick()) == [("r3", "d2")]


def test_a_revision_on_another_kind_of_device_makes_place_for_the_other() -> None:
    """A revision waits for a sibling's replica on another kind of device, but that device is not
    reserved for it."""
    play = Play(
        PoolSpec(A, device_kind="cpu", function="default/a"),
        PoolSpec(A2, device_kind="cuda", function="default/a"),
        devices=[*cpus(1), GPUS[0]],
    )
    play.warm(a="r1")

    assert play.hear({A2: HELD}, 1.0) == [Drain("r1", 0.001)]
    assert play.machine.endpoints(A2, play.now).reason == f"waits for {A} to make room"
    assert play.machine.cluster.ledger.reservations == {}
    assert launched(play.lose("r1")) == [("r2", "g1")]


@pytest.mark.parametrize("is_busy", [False, True])
def test_beside_costs_no_sibling(is_busy: bool) -> None:
    """A revision that is warmed beside the serving one never evicts its replicas, however long a
    call waits."""
    play = Play(*revisions(), devices=1)
    play.hear({A: RUNS})
    play.ready("r1")
    loads = {A: RUNS, A2: HELD} if is_busy else {}
    play.hear(loads)
    if is_busy:
        play.now += 4.0
        play.hear(loads)
        play.now += 4.0

    assert play.on(events.WarmRequested(A2, beside=True)) == [
        EndWarm(A2, "no_room", "no free device (1 in use)")
    ]
    assert play.state("r1") == "ready"


def test_beside_may_go_over_max_and_evict_strangers() -> None:
    """A warm-up beside another revision may exceed `max`, and may evict idle replicas of other
    functions."""
    play = Play(*revisions(), PoolSpec(B))
    play.hear({A: RUNS})
    play.ready("r1")
    play.hear({A: RUNS, B: RUNS})
    play.ready("r2")
    play.hear({A: RUNS})

    assert play.on(events.WarmRequested(A2, beside=True)) == [Drain("r2", 0.001)]
    assert launched(play.lose("r2", "exit 0")) == [("r3", "d1")]


def test_beside_goes_over_max_once() -> None:
    """A floor of the new revision is not filled at the cost of the serving one."""
    play = Play(*revisions(), devices=4)
    play.hear({A: RUNS})
    play.ready("r1")
    play.on(events.PoolDefined(PoolSpec(A2, min=2, max=2, function="default/a")))
    play.on(events.PoolRemoved(A2))
    for id in [one.id for one in play.machine.replicas() if one.pool == A2]:
        play.lose(id)
    play.machine.cluster.define(PoolSpec(A2, min=2, max=1, function="default/a"))

    starts = launched(play.on(events.WarmRequested(A2, beside=True)))

    assert len(starts) == 1
    assert play.state("r1") == "ready"


def test_a_wait_is_noted_once() -> None:
    """A repeated reason for waiting is noted only once."""
    play = Play(PoolSpec(A, device_kind="cpu"))
    for _ in range(5):
        play.demand(1.0, a=1)
        play.tick()

    waits = [note for note in play.notes if note.text.startswith("cannot start yet")]
    assert [note.text for note in waits] == ["cannot start yet: no device of kind cpu"]


def test_one_that_loads_for_long_is_kept() -> None:
    """Of two equally used replicas, the one with the shorter load time is evicted; waiting for a
    device does not count as load time."""
    play = Play(PoolSpec(A), PoolSpec(B), PoolSpec(C))
    play.demand(a=1, b=1)
    for id, phases in (("r1", {"place": 9e4, "load": 5.0}), ("r2", {"load": 6.0})):
        play.on(events.Greeted(id, {}))
        play.on(events.Loaded(id, 4, True, 80.0, phases))

    assert play.demand(1.0, c=1) == [Drain("r1", 0.001)]


def test_a_replica_just_ready_is_left_alone() -> None:
    """A replica that has just become ready is not preempted before the end of its residency."""
    play = Play(PoolSpec(A), PoolSpec(B), devices=1)
    play.run(a=1)
    play.hear({A: RUNS, B: HELD}, 20.0)
    play.ready("r1")

    assert play.hear({A: RUNS, B: HELD}, RESIDENCY_S - 0.5) == []
    assert play.hear({A: RUNS, B: HELD}, 0.5) == [Drain("r1", None)]


def test_a_refusal_does_not_begin_a_new_residency() -> None:
    """A refusal does not start a new residency: a busy replica that refused is preempted like any
    other."""
    play = Play(PoolSpec(A), PoolSpec(B), devices=1)
    play.warm(a="r1")
    play.tick(RESIDENCY_S)
    assert play.demand(b=1) == [Drain("r1", 0.001)]
    for _ in range(4):
        play.on(events.NotIdle("r1", 0.0))
        assert play.demand(1.25, b=1) == [Drain("r1", 0.001)]

    assert play.on(events.NotIdle("r1", 0.0)) == [Drain("r1", None)]


def test_surplus_gives_way_before_the_last() -> None:
    """One of two replicas is preempted rather than the only replica of another pool, even if that
    one is older."""
    play = Play(PoolSpec(A), PoolSpec(B, max=2), PoolSpec(C), devices=3)
    play.run(a=1)
    play.ready("r1")
    play.run(1.0, a=1, b=8)
    play.ready("r2", "r3")
    play.hear({A: RUNS, B: Load(0, 8, 0.0), C: HELD}, RESIDENCY_S)

    (drain,) = play.hear({A: RUNS, B: Load(0, 8, 0.0), C: HELD}, PREEMPT_AFTER_S)
    assert drain in (Drain("r2", None), Drain("r3", None))


def test_idle_surplus_goes_before_the_last_one() -> None:
    """Evicting one of two idle replicas costs less than evicting another pool's only one."""
    play = Play(PoolSpec(A), PoolSpec(B, max=2), PoolSpec(C), devices=3)
    play.warm(a="r1")
    play.run(b=8)
    play.ready("r2")
    play.seconds(6, b=8)
    play.ready("r3")
    play.run()

    assert play.demand(c=1) == [Drain("r3", 0.001)]


def test_nobody_gives_way_below_the_floor() -> None:
    """Replicas within `min` are not drained for other pools."""
    play = Play(PoolSpec(A, min=1), PoolSpec(B), devices=1)
    play.demand()
    play.ready("r1")

    assert play.demand(60.0, b=1) == []
    assert play.demand(60.0, b=1) + play.tick() == []


def test_who_was_found_first_by_an_event_is_not_asked_twice() -> None:
    """Two pools that need room in the same event get different victims, and both respect the
    floor."""
    play = Play(PoolSpec(A, min=2, max=3), PoolSpec(B), PoolSpec(C), devices=3)
    play.demand()
    play.ready("r1", "r2")
    play.seconds(6, a=12)
    play.ready("r3")

    drains = play.demand(b=1, c=1)

    assert len(drains) == 1
    assert play.pool("a").staying() == 2


def test_a_standby_given_away_is_no_victim() -> None:
    """A standby assigned in the same step is not a victim of the next pool."""
    play = Play(
        PoolSpec(A, memory_mib=1_300),
        PoolSpec(B, memory_mib=400),
        PoolSpec(C, memory_mib=1_000),
        devices=cpus(3, 2_000),
        standbys=1,
    )
    play.tick(5.0)
    play.on(events.Greeted("r1", {}))

    commands = play.demand(a=1, b=1, c=1)

    assert assigned(commands) == [("r1", A)]
    assert launched(commands) == [("r2", "d1")]
    assert play.state("r1") == "loading"


def test_a_standby_too_many_goes_first() -> None:
    """A second standby is evicted for its memory before any replica."""
    play = Play(
        PoolSpec(A, memory_mib=900), PoolSpec(B, memory_mib=780), devices=cpus(3, 2_000), standbys=2
    )
    play.warm(a="r1")
    play.tick(5.0)
    play.tick(2.0)
    play.on(events.Greeted("r2", {}))

    assert play.demand(b=1) == [Release("r3", f"evicted for {B}")]
    assert assigned(play.on(events.Released("r3"))) == [("r2", B)]


def test_a_trial_is_nobodys_victim() -> None:
    """A trial is neither evicted nor preempted."""
    play = Play(PoolSpec(A), PoolSpec(B, role="trial"), devices=1)
    play.tick(5.0)
    play.on(events.Greeted("r1", {}))

    assert [c for c in play.demand(a=1) if not isinstance(c, Launch)] == []
    assert play.demand(50.0, a=1) + play.demand(2.0, a=1) == []


def hanging(**spec: Any) -> Play:
    """One device, on which a server starts that nobody waits for any more; b is about to wait."""
    play = Play(PoolSpec(A, is_server=True, **spec), PoolSpec(B), devices=1)
    play.demand(a=1)
    play.on(events.Greeted("r1", {}))
    play.demand()
    return play


@pytest.mark.parametrize(
    ("load_s", "patience_s"), [(0.0, OVERDUE_MIN_S), (1.0, OVERDUE_MIN_S), (100.0, 300.0)]
)
def test_a_start_that_hangs_for_nobody_makes_room(load_s: float, patience_s: float) -> None:
    """Once it takes far longer than starts of the function do. It has nothing to finish, so it may
    not refuse, and has no more time than its end takes."""
    play = hanging(load_s=load_s)
    play.demand(patience_s - 1.0, b=1)
    assert play.state("r1") == "loading"

    assert play.demand(1.5, b=1) == [Drain("r1", None)]
    assert play.replica("r1").why == f"evicted for {B}"
    assert play.replica("r1").deadline_s - play.now < 60.0
    assert launched(play.lose("r1", "exit 0")) == [("r2", "d0")]


def test_the_longest_start_counts() -> None:
    """A start may take as long as an earlier one of the function did."""
    play = hanging(idle_s=1.0)
    play.on(events.Loaded("r1", 4, True, 80.0, {"load": 50_000.0}))
    play.demand(2.0)
    play.lose("r1", "exit 0")
    play.demand(1.0, a=1)
    play.on(events.Greeted("r2", {}))
    play.demand()

    play.demand(149.0, b=1)
    assert play.state("r2") == "loading"
    assert play.demand(1.5, b=1) == [Drain("r2", None)]


def test_a_start_that_is_waited_for_is_kept() -> None:
    """However long it takes: its own limit ends it."""
    play = hanging()

    assert play.demand(100.0, a=1, b=1) == []
    assert play.seconds(100, a=1, b=1) == []


def test_what_min_asks_for_starts_for_long() -> None:
    """The only replica of a floor is not evicted."""
    play = hanging(min=1)

    assert play.demand(100.0, b=1) == []


def test_only_who_is_ready_may_have_to_go() -> None:
    """Replicas that are still loading are not candidates for eviction; ready ones of the same pool
    are."""
    play = Play(PoolSpec(A, max=2), PoolSpec(B), devices=2)
    play.run(a=8)
    play.ready("r1")
    play.seconds(6, a=8)
    assert play.state("r2") == "starting"
    play.run()

    assert play.demand(1.0, b=1) == [Drain("r1", 0.001)]
