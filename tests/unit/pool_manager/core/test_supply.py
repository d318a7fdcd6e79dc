"""Settling one pool: starts, stops, warm-ups."""

from __future__ import annotations

from pool_manager.core import events
from pool_manager.core.commands import Drain, EndWarm, Launch, Release
from pool_manager.core.pool import PAUSE_S
from pool_manager.core.state import Device, PoolSpec
from registry.exchange import Load
from tests.support.play import Play, launched

A, B = "default/a@1", "default/b@1"
GPU = Device("gpu", "cuda", 10_000)


# Starts and stops


def test_a_start_is_charged_what_is_known() -> None:
    """A started replica is charged its known memory from its record on."""
    play = Play(PoolSpec(A, memory_mib=700.0), devices=[GPU])

    play.demand(a=1)

    assert play.machine.cluster.ledger.charge_of("r1").memory_mib == 700.0


def test_what_is_too_much_goes_newest_first() -> None:
    """A lower `max` drains the newest replicas; the oldest is kept."""
    play = Play(PoolSpec(A, min=2, max=3), devices=3)
    play.demand()
    play.ready("r1", "r2")

    assert play.on(events.PoolDefined(PoolSpec(A, max=1)), 1.0) == [Drain("r2", None)]


def test_what_is_coming_is_no_surplus() -> None:
    """A replica that is still loading is not counted as surplus to a serving one."""
    play = Play(PoolSpec(A, min=2, max=2))
    play.demand()
    play.ready("r1")

    assert play.on(events.PoolDefined(PoolSpec(A, max=2))) == []
    play.ready("r2")
    assert play.state("r2") == "draining"


def test_a_replica_that_is_asked_to_go_is_not_replaced() -> None:
    """A replica with a conditional drain still serves and is not replaced."""
    play = Play(PoolSpec(A, idle_s=5.0))
    play.warm(a="r1")
    play.tick(5.0)

    assert play.state("r1") == "draining"
    assert play.demand(a=1) == []
    assert launched(play.on(events.Lost("r1", "exit 0"))) == [("r2", "d1")]


def test_a_start_that_nobody_waits_for_any_more_is_kept() -> None:
    """A starting replica is kept although its callers left, however short `idle_s` is."""
    play = Play(PoolSpec(A, idle_s=0.0))
    play.demand(a=1)

    play.demand(60.0)

    assert (play.pool("a").wanted, play.reason("a")) == (1, "a start was requested")


def test_a_back_off_says_what_went_wrong() -> None:
    """The reason of a back-off names the last failure."""
    play = Play(PoolSpec(A))
    play.demand(a=1)
    play.lose("r1", "no memory")

    assert play.shown("a") == "waking"
    assert play.reason("a") == "failed starts in a row: 1, next try soon: no memory"


def test_an_end_through_nobodys_fault_is_no_failure() -> None:
    """A loss without fault is not counted, and the next start waits for a second."""
    play = Play(PoolSpec(A))
    play.demand(a=1)
    play.on(events.Lost("r1", "the engine restarted", is_its_fault=False))
    play.on(events.Released("r1"))

    assert play.reason("a") == "the last replica was lost, next try soon: the engine restarted"
    assert launched(play.demand(PAUSE_S - 0.5, a=1)) == []
    assert launched(play.demand(0.5, a=1)) == [("r2", "d1")]
    assert play.pool("a").failures == 0


def test_a_back_off_keeps_no_device() -> None:
    """A pool in back-off releases its reservation."""
    play = Play(PoolSpec(A, max=2), PoolSpec(B), devices=2)
    play.warm(b="r1")
    play.on(events.PoolDefined(PoolSpec(A, min=2, max=2)))
    assert play.machine.cluster.ledger.reservations.keys() == {"d0"}

    play.on(events.Lost("r2", "no memory"))

    assert play.machine.cluster.ledger.reservations == {}
    assert play.pool("a").reservation is None


def test_nothing_is_started_while_the_engine_is_away() -> None:
    """While the engine is away waiting pools have its reason; when it is back, they are started."""
    play = Play(PoolSpec(A))
    play.on(events.EngineLost("no answer"))

    assert play.demand(a=1) + play.tick(1.0) == []
    assert play.reason("a") == "nothing can be started: no answer"
    assert launched(play.on(events.EngineBack(frozenset()))) == [("r1", "d0")]


def test_the_receipt_has_the_time_an_eviction_took() -> None:
    """The phases separate the wait for a device from the time of the eviction."""
    play = Play(PoolSpec(A), PoolSpec(B), devices=1)
    play.run(a=1)
    play.ready("r1")
    play.hear({A: Load(0, 1, 0.0), B: Load(1, 0, 0.0)})
    play.hear({B: Load(1, 0, 2.0)}, 2.0)
    play.on(events.Lost("r1", "exit 0"), 0.5)

    (launch,) = play.on(events.Released("r1"))

    assert isinstance(launch, Launch)
    assert launch.phases == {"place": 2000.0, "evict": 500.0}


# Sleep


def test_sleep_asks_who_is_idle() -> None:
    """`sleep` asks each replica above the floor; a replica that was just used may refuse."""
    play = Play(PoolSpec(A, min=1, max=2))
    play.run(a=8)
    play.ready("r1")
    play.seconds(6, a=8)
    play.ready("r2")

    assert play.on(events.SleepRequested(A)) == []
    play.run()
    assert play.on(events.SleepRequested(A)) == [Drain("r1", 0.001)]
    assert play.on(events.SleepRequested(A)) == []


def test_nobody_is_put_to_sleep_on_a_half_known_world() -> None:
    """`sleep` has no effect before decisions have begun, and for an unknown pool."""
    play = Play(PoolSpec(A), is_open=False)
    play.on(events.Found("old", A, ("d0",)))
    play.on(events.Greeted("old", {}, loaded=True))
    play.on(events.Loaded("old", 4, True, 80.0, {}))

    assert play.on(events.SleepRequested(A)) == []
    assert play.on(events.SleepRequested(B)) == []


def test_a_forced_sleep_lets_accepted_calls_end_and_starts_nothing_for_them() -> None:
    """A busy replica drains at once and may not refuse; its calls in flight ask for no other one,
    and the next call that is held does."""
    play = Play(PoolSpec(A))
    play.run(a=1)
    play.ready("r1")
    play.run(a=1)

    assert play.on(events.SleepRequested(A)) == []
    assert play.on(events.SleepRequested(A, force=True)) == [Drain("r1", None)]
    assert play.replica("r1").why == "put to sleep by force"
    assert launched(play.run(a=1) + play.seconds(2, a=1)) == []
    assert play.pool("a").describe(1, play.now) == ("draining", "put to sleep by force")

    assert len(launched(play.hear_all(in_flight={"a": 1}, queued={"a": 1}))) == 1
    assert not play.pool("a").unloading


def test_sleep_ends_a_start_that_nobody_waits_for() -> None:
    """Of a server that loads, and of one that has yet to connect; with `force` also if calls wait,
    which then wait for the next one."""
    play = Play(PoolSpec(A, is_server=True), PoolSpec(B))
    play.demand(a=1, b=1)
    play.on(events.Greeted("r1", {}))

    assert play.on(events.SleepRequested(A)) == []
    play.demand()
    assert play.on(events.SleepRequested(A)) == [Drain("r1", None)]
    assert play.on(events.SleepRequested(B)) == [Release("r2", "put to sleep")]
    play.lose("r1", "exit 0")
    assert launched(play.seconds(2)) == []

    play.demand(a=1)
    play.on(events.Greeted("r3", {}))
    assert Drain("r3", None) in play.on(events.SleepRequested(A, force=True))


def test_sleep_keeps_a_start_that_a_warm_up_waits_for() -> None:
    """A deploy or an operator has asked for it; `force` ends it all the same."""
    play = Play(PoolSpec(A, is_server=True))
    play.demand()
    play.on(events.WarmRequested(A))
    play.on(events.Greeted("r1", {}))

    assert play.on(events.SleepRequested(A)) == []
    assert Drain("r1", None) in play.on(events.SleepRequested(A, force=True))


def test_a_forced_sleep_keeps_what_min_asks_for() -> None:
    """Replicas of `min` stay; those that load do, too: somebody has just asked for them."""
    play = Play(PoolSpec(A, min=1, max=2))
    play.run(a=8)
    play.ready("r1")
    play.seconds(6, a=8)

    assert play.on(events.SleepRequested(A, force=True)) == [Drain("r1", None)]
    play.ready("r2")
    assert play.on(events.SleepRequested(A, force=True)) == []


# Unloading


def test_an_idle_pool_is_unloaded_at_once() -> None:
    """Idle replicas above the floor drain at once, and those of `min` stay."""
    play = Play(PoolSpec(A, min=1, max=2))
    play.run(a=8)
    play.ready("r1")
    play.seconds(6, a=8)
    play.ready("r2")
    play.run()
    play.seconds(1)

    assert play.on(events.UnloadRequested(A)) == [Drain("r1", 0.001)]
    assert play.replica("r1").why == "unloaded by a client"
    assert play.seconds(3) == []


def test_a_busy_pool_is_unloaded_when_it_is_idle() -> None:
    """A busy replica drains after its calls, and not before."""
    play = Play(PoolSpec(A))
    play.run(a=1)
    play.ready("r1")
    play.run(a=1)

    assert play.on(events.UnloadRequested(A)) == []
    assert play.run(a=1) == []
    play.run()

    assert Drain("r1", 0.001) in play.seconds(2)
    assert play.replica("r1").why == "unloaded by a client"


def test_a_start_ends_the_unloading() -> None:
    """The replica that the next call starts stays for `idle_s` again."""
    play = Play(PoolSpec(A))
    play.run(a=1)
    play.ready("r1")
    play.run()
    play.on(events.UnloadRequested(A))
    play.seconds(2)
    play.on(events.Lost("r1", "exit 0"))
    play.on(events.Released("r1"))

    play.run(a=1)
    play.ready("r2")
    play.run()

    assert play.seconds(5) == []
    assert not play.pool("a").unloading


def test_a_warm_up_takes_the_unloading_back() -> None:
    """A client that loads a model after another one has unloaded it finds it resident."""
    play = Play(PoolSpec(A))
    play.run(a=1)
    play.ready("r1")
    play.run(a=1)
    play.on(events.UnloadRequested(A))
    play.on(events.WarmRequested(A))
    play.run()

    assert play.seconds(5) == []


def test_a_cold_pool_has_nothing_to_unload() -> None:
    """Unloading a pool without replicas, and an unknown one, has no effect on later starts."""
    play = Play(PoolSpec(A))
    play.run()

    assert play.on(events.UnloadRequested(A)) == []
    assert play.on(events.UnloadRequested(B)) == []
    assert not play.pool("a").unloading


# Warm-ups


def test_a_pool_is_warmed() -> None:
    """A warm-up starts a replica without calls and is answered once."""
    play = Play(PoolSpec(A))
    play.demand()

    assert launched(play.on(events.WarmRequested(A))) == [("r1", "d0")]
    play.on(events.Greeted("r1", {}))
    assert play.on(events.Loaded("r1", 4, True, 80.0, {})) == [
        EndWarm(A, "ready", "kept for the next call")
    ]
    assert play.tick(1.0) == []


def test_a_warm_pool_is_warm_at_once_and_stays() -> None:
    """A warm-up of a warm pool is answered at once and restarts its idle time."""
    play = Play(PoolSpec(A, idle_s=10.0))
    play.warm(a="r1")

    assert play.on(events.WarmRequested(A), 10.0) == [EndWarm(A, "ready", "kept for the next call")]
    assert play.tick(9.0) == []
    assert play.tick(1.0) == [Drain("r1", 10.0)]


def test_one_that_is_about_to_go_is_not_warm() -> None:
    """A replica that was asked to stop does not count as warm: the answer waits for another one."""
    play = Play(PoolSpec(A, idle_s=10.0))
    play.warm(a="r1")
    play.tick(10.0)

    assert play.on(events.WarmRequested(A)) == []
    assert play.on(events.NotIdle("r1", 1.0)) == [EndWarm(A, "ready", "kept for the next call")]


def test_a_warm_up_that_fails_is_told() -> None:
    """The first failed load ends a warm-up with the reason, without a retry."""
    play = Play(PoolSpec(A))
    play.demand()
    play.on(events.WarmRequested(A))

    commands = play.on(events.Lost("r1", "no memory"))

    assert commands[-1] == EndWarm(A, "failed", "no memory")
    assert play.pool("a").wanted == 0
    play.on(events.Released("r1"))
    assert play.tick(60.0) == []


def test_a_failing_pool_is_not_warmed() -> None:
    """A warm-up of a failing pool fails at once."""
    play = Play(PoolSpec(A))
    for number in range(1, 6):
        play.demand(60.0, a=1)
        play.lose(f"r{number}", "no memory")
    play.demand()

    assert play.on(events.WarmRequested(A)) == [EndWarm(A, "failed", "no memory")]


def test_a_warm_up_waits_for_room() -> None:
    """A warm-up without `beside` evicts no busy replica; it gets the device of one that becomes
    idle."""
    play = Play(PoolSpec(A), PoolSpec(B), devices=1)
    play.run(b=1)
    play.ready("r1")
    assert play.on(events.WarmRequested(A)) == []
    assert play.seconds(30, b=1) == []

    assert play.run() == [Drain("r1", 0.001)]


def test_a_warm_up_that_is_dropped_leaves_nothing() -> None:
    """A cancelled warm-up leaves neither an answer nor a reservation nor a request."""
    play = Play(PoolSpec(A), PoolSpec(B), devices=1)
    play.warm(b="r1")
    play.on(events.WarmRequested(A))
    assert play.machine.cluster.ledger.reservations.keys() == {"d0"}

    assert play.on(events.WarmCancelled(A)) == []
    assert (play.pool("a").wanted, play.machine.cluster.ledger.reservations) == (0, {})


def test_nobody_waits_for_a_pool_that_is_not_there() -> None:
    """A warm-up fails at once for an unknown pool, for a removed one, and at a shutdown."""
    play = Play(PoolSpec(A), PoolSpec(B), devices=1)
    play.run(b=1)

    assert play.on(events.WarmRequested("default/z@1")) == [
        EndWarm("default/z@1", "failed", "no such pool")
    ]
    play.on(events.WarmRequested(A))
    assert play.on(events.PoolRemoved(A)) == [EndWarm(A, "failed", "the pool was removed")]
    play.on(events.WarmRequested(B))
    assert EndWarm(B, "failed", "the server is shutting down") in play.on(events.Shutdown())


def test_what_fits_beside_nothing_is_not_waited_for() -> None:
    """`beside` without room is answered at once, and the request is removed."""
    play = Play(PoolSpec(A), PoolSpec(B), devices=1)
    play.run(b=1)
    play.ready("r1")

    assert play.on(events.WarmRequested(A, beside=True)) == [
        EndWarm(A, "no_room", "no free device (1 in use)")
    ]
    assert play.pool("a").wanted == 0
    assert play.machine.cluster.blocked == set()
