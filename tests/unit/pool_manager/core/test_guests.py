"""Who may have to go, and who goes first."""

from __future__ import annotations

from pool_manager.core import events
from pool_manager.core.commands import Drain, Launch, Release
from pool_manager.core.guests import RESIDENCY_S
from pool_manager.core.room import SWAP_AFTER_S
from pool_manager.core.state import PoolSpec
from registry.exchange import Load
from tests.support.play import Play, assigned, cpus, launched

A, B, C = (f"default/{name}@1" for name in "abc")
HELD, RUNS = Load(1, 0, 0.0), Load(0, 1, 0.0)


def test_one_that_loads_for_long_is_kept() -> None:
    """Of two used alike, the one that is back sooner goes; time spent waiting for a device is no
    part of what loading costs."""
    play = Play(PoolSpec(A), PoolSpec(B), PoolSpec(C))
    play.demand(a=1, b=1)
    for id, phases in (("r1", {"place": 9e4, "load": 5.0}), ("r2", {"load": 6.0})):
        play.on(events.Greeted(id, {}))
        play.on(events.Loaded(id, 4, True, 80.0, phases))

    assert play.demand(1.0, c=1) == [Drain("r1", 0.001)]


def test_a_replica_just_ready_is_left_alone() -> None:
    """However long somebody waits, who has become ready serves for its residency first."""
    play = Play(PoolSpec(A), PoolSpec(B), devices=1)
    play.run(a=1)
    play.hear({A: RUNS, B: HELD}, 20.0)
    play.ready("r1")

    assert play.hear({A: RUNS, B: HELD}, RESIDENCY_S - 0.5) == []
    assert play.hear({A: RUNS, B: HELD}, 0.5) == [Drain("r1", None)]


def test_a_refusal_does_not_begin_a_new_residency() -> None:
    """A function that looks idle, but is not when it is asked, gives way like a busy one."""
    play = Play(PoolSpec(A), PoolSpec(B), devices=1)
    play.warm(a="r1")
    play.tick(RESIDENCY_S)
    assert play.demand(b=1) == [Drain("r1", 0.001)]
    for _ in range(4):
        play.on(events.NotIdle("r1", 0.0))
        assert play.demand(1.25, b=1) == [Drain("r1", 0.001)]

    assert play.on(events.NotIdle("r1", 0.0)) == [Drain("r1", None)]


def test_surplus_gives_way_before_the_last() -> None:
    """One of two replicas is drained rather than the only one of another, which is older."""
    play = Play(PoolSpec(A), PoolSpec(B, max=2), PoolSpec(C), devices=3)
    play.run(a=1)
    play.ready("r1")
    play.run(1.0, a=1, b=8)
    play.ready("r2", "r3")
    play.hear({A: RUNS, B: Load(0, 8, 0.0), C: HELD}, RESIDENCY_S)

    (drain,) = play.hear({A: RUNS, B: Load(0, 8, 0.0), C: HELD}, SWAP_AFTER_S)
    assert drain in (Drain("r2", None), Drain("r3", None))


def test_idle_surplus_goes_before_the_last_one() -> None:
    """Taking one of two idle replicas costs less than taking an only one not used for longer."""
    play = Play(PoolSpec(A), PoolSpec(B, max=2), PoolSpec(C), devices=3)
    play.warm(a="r1")
    play.run(b=8)
    play.ready("r2")
    play.seconds(6, b=8)
    play.ready("r3")
    play.run()

    assert play.demand(c=1) == [Drain("r3", 0.001)]


def test_nobody_gives_way_below_the_floor() -> None:
    """Replicas that `min` asks for are not drained for others."""
    play = Play(PoolSpec(A, min=1), PoolSpec(B), devices=1)
    play.demand()
    play.ready("r1")

    assert play.demand(60.0, b=1) == []
    assert play.demand(60.0, b=1) + play.tick() == []


def test_who_was_found_first_by_an_event_is_not_asked_twice() -> None:
    """Two that come at once each get a victim of their own, and a floor is kept by both."""
    play = Play(PoolSpec(A, min=2, max=3), PoolSpec(B), PoolSpec(C), devices=3)
    play.demand()
    play.ready("r1", "r2")
    play.seconds(6, a=12)
    play.ready("r3")

    drains = play.demand(b=1, c=1)

    assert len(drains) == 1
    assert play.pool("a").staying() == 2


def test_a_standby_given_away_is_no_victim() -> None:
    """A standby that one pool has got in this moment is not taken from it by the next."""
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
    assert launched(commands) == [("r2", "cpu1")]
    assert play.state("r1") == "loading"


def test_a_standby_too_many_goes_first() -> None:
    """What one standby's memory cannot give, the second does, before anybody is evicted."""
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
    """A deploy's replica is neither evicted nor drained for callers."""
    play = Play(PoolSpec(A), PoolSpec(B, role="trial"), devices=1)
    play.tick(5.0)
    play.on(events.Greeted("r1", {}))

    assert [c for c in play.demand(a=1) if not isinstance(c, Launch)] == []
    assert play.demand(50.0, a=1) + play.demand(2.0, a=1) == []


def test_only_who_is_ready_may_have_to_go() -> None:
    """Of an idle pool's replicas one that still loads is not asked, though another one is."""
    play = Play(PoolSpec(A, max=2), PoolSpec(B), devices=2)
    play.run(a=8)
    play.ready("r1")
    play.seconds(6, a=8)
    assert play.state("r2") == "starting"
    play.run()

    assert play.demand(1.0, b=1) == [Drain("r1", 0.001)]
