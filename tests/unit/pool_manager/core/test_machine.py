"""The decider: scaling, eviction, adoption, shutdown, and what is published."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from pool_manager.core import events
from pool_manager.core.commands import (
    Bind,
    Command,
    Drain,
    EndTrial,
    EndWarm,
    Launch,
    Publish,
    Release,
    WatchEngine,
)
from pool_manager.core.pool import Pool
from pool_manager.core.state import PoolSpec, State
from pool_manager.core.trial_room import CALLED_S
from registry.builds import DeviceType
from registry.exchange import Demand, Load, PoolEndpoints, ReplicaEndpoint
from tests.support.play import LOAD_S, Play, cpus, launched

A, B, C = "default/a@1", "default/b@1", "default/c@1"


def test_a_burst_at_zero_starts_one_copy() -> None:
    """Without a ready replica a burst starts only one."""
    play = Play(PoolSpec(A, max=2))

    starts = launched(play.demand(a=100))
    for more in range(101, 110):
        starts += launched(play.demand(0.1, a=more))
        starts += launched(play.tick())

    assert starts == [("r1", "d0")]


def test_what_one_replica_cannot_take_starts_a_second() -> None:
    """Once the first replica is ready and load exceeds its target, the next is started, up to
    `max`."""
    play = Play(PoolSpec(A, max=2), devices=3)
    play.demand(a=100)
    play.ready("r1")

    assert launched(play.tick()) == []
    assert [r.id for r in play.machine.replicas()] == ["r1", "r2"]
    assert play.machine.pools[A].wanted == 2


@pytest.mark.parametrize("place", ["_apply", "_settle", "endpoints"])
def test_a_defect_with_one_pool_keeps_no_other_from_its_start(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception in one pool is raised after all other pools have got their commands, in every
    step."""
    play = Play(PoolSpec(A), PoolSpec(B))
    step = getattr(play.machine, place)

    def broken(about: Any, *rest: Any) -> Any:
        result = step(about, *rest)
        if getattr(about, "key", about) == A or place == "_apply":
            raise RuntimeError("a defect")
        return result

    monkeypatch.setattr(play.machine, place, broken)
    demand = Demand("w1", 1, True, {A: Load(1, 0, 0.0), B: Load(1, 0, 0.0)})
    commands: list[Command] = []
    with pytest.raises(ExceptionGroup, match="DemandReported"):
        play.machine.handle(events.DemandReported(demand), play.now, commands)
    if place == "_apply":
        monkeypatch.undo()
        commands += play.machine.handle(events.Tick(), play.now)

    assert B in {one.pool for one in commands if isinstance(one, Launch)}
    assert B in {key for one in commands if isinstance(one, Publish) for key in one.keys}


def test_a_start_comes_before_its_launch() -> None:
    """The replica is recorded and its device charged when the launch is commanded."""
    play = Play(PoolSpec(A))

    (launch,) = play.demand(a=1)

    assert launch == Launch("r1", A, ("d0",), "serve", {"place": 0.0})
    assert play.state("r1") == "starting"


def test_the_phase_place_counts_from_the_first_waiter() -> None:
    """The phase `place` counts from the arrival of the first waiting call, not from its report."""
    play = Play(PoolSpec(A))

    (launch,) = play.on(events.DemandReported(Demand("w1", 1, True, {A: Load(1, 0, 0.25)})))

    assert isinstance(launch, Launch)
    assert launch.phases == {"place": 250.0}


def test_idle_time_does_not_run_while_starting_or_loading() -> None:
    """The idle timer does not stop a replica that loads for longer than `idle_s`, even without
    waiting calls."""
    play = Play(PoolSpec(A, idle_s=1.0, load_s=20.0))
    play.demand(a=1)
    play.demand(0.5)

    assert play.tick(50.0) == []
    play.on(events.Greeted("r1", {}))
    assert play.tick(190.0) == []
    play.on(events.Loaded("r1", 4, True, 80.0, {}))

    assert play.tick(0.9) == []
    assert play.tick(0.1) == [Drain("r1", 1.0)]


def test_idle_time_does_not_run_while_busy() -> None:
    """A request that runs for longer than `idle_s` keeps its replica."""
    play = Play(PoolSpec(A, idle_s=5.0))
    play.demand(a=1)
    play.ready("r1")
    busy = {A: Load(0, 1, 0.0)}

    for seq in range(100, 120):
        play.on(events.DemandReported(Demand("w1", seq, True, busy)), 1.0)
        assert play.tick() == []


def test_an_idle_stop_is_asked_for_and_may_be_refused() -> None:
    """After `idle_s` the replica is asked to stop; a refusal counts as a use at the reported
    time."""
    play = Play(PoolSpec(A, idle_s=300.0))
    play.demand(a=1)
    play.ready("r1")
    play.demand()
    assert play.tick(299.9) == []

    assert play.tick(0.1) == [Drain("r1", 300.0)]
    assert play.on(events.NotIdle("r1", 100.0)) == []
    assert play.tick(199.9) == []
    assert play.tick(0.1) == [Drain("r1", 300.0)]


def test_replicas_that_may_all_say_yes_leave_the_floor() -> None:
    """No more replicas are asked at once than may stop without falling below `min`."""
    play = Play(PoolSpec(A, min=1, max=2, idle_s=10.0))
    play.demand(a=4)
    play.ready("r1")
    play.tick()
    play.ready("r2")
    play.demand()

    assert play.tick(10.0) == [Drain("r2", 10.0)]
    assert play.tick(10.0) == []


def test_a_floor_is_started_without_demand() -> None:
    """`min` replicas are started without calls, and are not stopped for being idle."""
    play = Play(PoolSpec(A, min=2, max=2))

    assert launched(play.demand()) == [("r1", "d0"), ("r2", "d1")]
    play.ready("r1", "r2")
    assert play.tick(10_000.0) == []


def test_nothing_is_decided_before_the_list_is_read() -> None:
    """No replica is started before the driver's list is complete, even with waiting calls."""
    play = Play(PoolSpec(A), is_open=False)

    assert play.demand(a=1) == []
    assert play.tick(60.0) == []
    play.demand(a=1)
    assert launched(play.on(events.ReplicasListed())) == [("r1", "d0")]


def test_without_a_gateway_three_seconds_are_waited() -> None:
    """After the list, decisions begin with the first demand or after 3 s; then floors and trials
    start."""
    play = Play(PoolSpec(A, min=1), PoolSpec(B, role="trial"))

    assert play.tick(2.9) == []
    assert launched(play.tick(0.1)) == [("r1", "d0"), ("r2", "d1")]


def test_a_failed_load_backs_off() -> None:
    """The next try comes after 1, 2, 4, ... 60 s, and not earlier."""
    play = Play(PoolSpec(A))
    play.demand(a=1)
    for number, pause in enumerate((1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0), 1):
        assert launched(play.lose(f"r{number}")) == []
        play.demand(a=1)
        assert play.tick(pause - 0.5) == []
        play.demand(a=1)
        assert [id for id, _ in launched(play.tick(0.5))] == [f"r{number + 1}"]


def test_after_five_failed_loads_every_waiter_is_woken() -> None:
    """The fifth failure in a row publishes the pool as failing, with the reason and the last log
    lines."""
    play = Play(PoolSpec(A))
    for number in range(1, 6):
        play.demand(60.0, a=1)
        play.tick()
        play.published.clear()
        play.on(events.Lost(f"r{number}", "no memory", ("last line",)))
        if number < 5:
            assert play.machine.endpoints(A, play.now).state == "waking"
            play.on(events.Released(f"r{number}"))

    assert play.published == [{A}]
    assert play.machine.endpoints(A, play.now) == PoolEndpoints(
        [], "failing", "no memory", play.now + 16.0, ["last line"]
    )


def test_a_failing_pool_is_tried_at_once_when_the_cause_was_removed() -> None:
    """Its failures are forgotten, and a call starts a replica without the rest of the back-off. An
    unknown pool changes nothing."""
    play = Play(PoolSpec(A))
    for number in range(1, 6):
        play.demand(60.0, a=1)
        play.tick()
        play.lose(f"r{number}")
    assert play.machine.endpoints(A, play.now).state == "failing"

    assert play.on(events.CauseRemoved(B)) == []
    assert len(launched(play.on(events.CauseRemoved(A)))) == 1

    assert play.machine.endpoints(A, play.now).state == "waking"


def test_a_pool_may_be_tried_again_after_failing() -> None:
    """After its back-off a failing pool is shown as cold, without a new call."""
    play = Play(PoolSpec(A))
    for number in range(1, 6):
        play.demand(60.0, a=1)
        play.tick()
        play.lose(f"r{number}")
    play.demand()
    play.published.clear()

    play.tick(16.0)

    assert play.published == [{A}]
    assert play.machine.endpoints(A, play.now).state == "cold"


def test_what_is_ready_is_published() -> None:
    """Endpoints list a ready replica with its limit and properties."""
    play = Play(PoolSpec(A))
    play.demand(a=1)
    play.on(events.Greeted("r1", {}))
    play.published.clear()

    play.on(events.Loaded("r1", 4, False, 80.0, {"load": 5.0}))

    assert play.published == [{A}]
    endpoint = ReplicaEndpoint("r1", "", 4, False, ("d0",), {"load": 5.0})
    assert play.machine.endpoints(A, play.now).replicas == [endpoint]
    assert play.machine.endpoints(A, play.now).state == "warm"


def test_what_did_not_change_is_not_published() -> None:
    """A Tick that changes nothing publishes nothing."""
    play = Play(PoolSpec(A))
    play.demand(a=1)
    play.published.clear()

    play.tick()

    assert play.published == []


def test_a_full_house_evicts_who_is_idle() -> None:
    """Without a free device the longest idle replica is asked to stop, and the waiting pool gets
    its device."""
    play = Play(PoolSpec(A), PoolSpec(B), PoolSpec(C))
    play.demand(a=1)
    play.ready("r1")
    play.demand(1.0, b=1)
    play.ready("r2")

    assert play.demand(1.0, c=1) == [Drain("r1", 0.001)]
    assert play.machine.endpoints(C, play.now).reason == f"waits for {A} to make room on d0"
    assert play.machine.endpoints(A, play.now).state == "warm"
    assert play.tick() == []

    play.on(events.Lost("r1", "exit 0"), 0.5)
    (launch,) = play.on(events.Released("r1"))
    assert launch == Launch("r3", C, ("d0",), "serve", {"place": 0.0, "evict": 500.0})


def test_who_refused_to_make_room_does_not_block_the_waiter() -> None:
    """After a refusal the next idle replica is asked, or the same one again if there is no
    other."""
    play = Play(PoolSpec(A), PoolSpec(B), devices=1)
    play.demand(a=1)
    play.ready("r1")
    assert play.demand(1.0, b=1) == [Drain("r1", 0.001)]

    play.on(events.NotIdle("r1", 0.0))

    assert play.tick(1.0) == [Drain("r1", 0.001)]


def test_an_eviction_for_somebody_who_left_is_no_phase_of_a_later_start() -> None:
    """A cold start's phases exclude everything before the arrival of its first waiting call."""
    play = Play(PoolSpec(A), PoolSpec(B), devices=1)
    play.demand(a=1)
    play.ready("r1")
    play.demand(1.0, b=1)
    play.demand(1.0)
    play.lose("r1", "exit 0")

    (launch,) = play.demand(1000.0, b=1)

    assert isinstance(launch, Launch)
    assert launch.phases == {"place": 0.0}


def test_nobody_is_evicted_below_the_floor_or_while_busy() -> None:
    """Pools at their `min` and pools with load keep their replicas; the waiting pool has a
    reason."""
    play = Play(PoolSpec(A, min=1), PoolSpec(B), PoolSpec(C))
    play.demand(b=1)
    play.tick()
    play.ready("r1", "r2")

    assert play.demand(10.0, b=1, c=1) == []
    assert play.machine.endpoints(C, play.now).reason == (
        "no free device (2 in use, 1 of them kept by the min of other functions)"
    )


def test_a_trial_is_not_evicted_and_evicts() -> None:
    """A trial evicts an idle replica and keeps its device until its end."""
    play = Play(PoolSpec(A), devices=1)
    play.demand(a=1)
    play.ready("r1")
    play.demand()
    play.demand(CALLED_S)

    assert play.on(events.PoolDefined(PoolSpec("trial", role="trial"))) == [Drain("r1", 0.001)]
    assert launched(play.lose("r1")) == [("r2", "d0")]
    play.on(events.Greeted("r2", {}))
    assert play.demand(a=1) == []
    assert play.tick(10.0) == []


def test_a_trial_that_found_no_room_is_tried_again() -> None:
    """A trial that found all devices busy starts when a function is not called any more."""
    play = Play(PoolSpec(A), devices=1)
    play.demand(a=1)
    play.ready("r1")
    assert play.on(events.PoolDefined(PoolSpec("trial", role="trial"))) == []

    assert play.demand() == []
    assert play.tick(CALLED_S) == [Drain("r1", 0.001)]


def test_a_trial_ends_and_can_be_wanted_again() -> None:
    """A second trial with the same key is run, also while the first is still being released."""
    play = Play(PoolSpec(A, role="trial"))
    play.demand()
    play.tick()
    play.on(events.Greeted("r1", {}))
    ended, _ = play.on(events.Loaded("r1", 2, True, 80.0, {}, {"load_ms": 5.0}))
    placed = {"device_kind": "cuda", "device_type": DeviceType("local")}
    assert ended == EndTrial(A, {"load_ms": 5.0, **placed})

    assert launched(play.on(events.PoolDefined(PoolSpec(A, role="trial")))) == [("r2", "d1")]
    play.on(events.Released("r1"))
    assert A in play.machine.pools


def test_who_waits_for_longest_gets_the_device() -> None:
    """A freed device goes to the pool whose call came first, whatever its name."""
    play = Play(PoolSpec(A), PoolSpec(B), PoolSpec(C), devices=1)
    play.demand(b=1)
    play.ready("r1")
    for seq, held in enumerate(([C], [C, A], [C, A, B]), 100):
        loads = {B: Load(0, 1, 0.0)} | {key: Load(1, 0, 0.0) for key in held}
        play.on(events.DemandReported(Demand("w1", seq, True, loads)), 1.0)

    assert launched(play.lose("r1")) == [("r2", "d0")]
    replica = play.machine.replica("r2")
    assert replica is not None
    assert replica.pool == C


def test_a_missing_kind_of_device_is_said() -> None:
    """A function that needs a GPU on a host without one waits with that reason."""
    play = Play(PoolSpec(A, device_kind="cuda"), devices=cpus(2))

    assert play.demand(a=1) == []
    assert play.machine.endpoints(A, play.now).reason == "no device of kind cuda"


def test_found_replicas_are_kept() -> None:
    """An adopted replica keeps serving, and no second one is started."""
    play = Play(PoolSpec(A), is_open=False)
    play.on(events.Found("old", A, ("d1",)))
    play.on(events.ReplicasListed())
    assert play.demand(a=1) == []

    play.on(events.Greeted("old", {}, loaded=True))
    play.on(events.Loaded("old", 4, True, 80.0, {}))

    assert play.machine.endpoints(A, play.now).state == "warm"
    assert play.demand(1.0, a=1) == []


def test_a_found_replica_without_a_function_goes() -> None:
    """An adopted replica of a removed function is released and its pool removed."""
    play = Play(is_open=False)

    assert play.on(events.Found("old", A, ("d0",))) == [Release("old", "the pool was removed")]
    play.on(events.Released("old"))
    assert play.machine.pools == {}


def test_a_removed_pool_drains_and_is_forgotten() -> None:
    """The replicas of a removed pool are drained unconditionally; then the pool is removed, and
    that is published."""
    play = Play(PoolSpec(A))
    play.demand(a=1)
    play.ready("r1")

    assert play.on(events.PoolRemoved(A)) == [Drain("r1", None)]
    assert play.machine.endpoints(A, play.now).replicas == []
    assert play.tick(1.0) == []
    play.published.clear()
    play.lose("r1", "exit 0")

    assert A not in play.machine.pools
    assert play.published[-1] == {A}


def test_a_pool_defined_again_while_it_goes_stays() -> None:
    """A revision that is deployed again before its last replica has stopped is served."""
    play = Play(PoolSpec(A))
    play.demand(a=1)
    play.ready("r1")
    play.on(events.PoolRemoved(A))

    assert launched(play.on(events.PoolDefined(PoolSpec(A)))) == [("r2", "d1")]
    play.lose("r1", "exit 0")
    assert A in play.machine.pools


def test_removing_what_is_not_there_does_nothing() -> None:
    """Removing an unknown pool has no effect, and demand for an unknown pool is kept."""
    play = Play()
    play.published.clear()

    assert play.on(events.PoolRemoved(A)) == []
    assert play.demand(a=1) == []
    assert play.published == []
    assert launched(play.on(events.PoolDefined(PoolSpec(A)))) == [("r1", "d0")]


def test_new_settings_hold_at_once() -> None:
    """A raised `min` is met in the step that raised it."""
    play = Play(PoolSpec(A))
    play.demand()

    assert launched(play.on(events.PoolDefined(PoolSpec(A, min=1)))) == [("r1", "d0")]


def test_a_worker_that_is_gone_holds_nothing() -> None:
    """A worker's load ends with its connection, or after 3 s of silence."""
    play = Play(PoolSpec(A, idle_s=0.0), PoolSpec(B, idle_s=0.0))
    play.demand(a=1)
    play.demand(worker="w2", b=1)
    play.ready("r1", "r2")

    assert play.on(events.WorkerLost("w1")) == [Drain("r1", 0.0)]
    assert play.tick(3.0 - LOAD_S) == []
    assert play.tick(0.1) == [Drain("r2", 0.0)]


def test_a_shutdown_lets_everybody_finish() -> None:
    """A shutdown drains serving replicas unconditionally, releases starting ones, and starts
    none."""
    play = Play(PoolSpec(A, min=1), PoolSpec(B))
    play.demand(b=1)
    play.ready("r2")

    assert play.on(events.Shutdown()) == [
        Release("r1", "the server is shutting down"),
        Drain("r2", None),
    ]
    play.on(events.Released("r1"))
    play.lose("r2", "exit 0")
    assert play.demand(a=5, b=5) == []
    assert play.tick(60.0) == []
    assert play.machine.replicas() == []


def test_a_drain_that_hangs_is_pressed_by_ticks() -> None:
    """Ticks alone end a replica that does not drain."""
    play = Play(PoolSpec(A))
    play.demand(a=1)
    play.ready("r1")
    play.on(events.Shutdown())

    commands = [c for _ in range(4) for c in play.tick(10.0)]

    assert [type(c).__name__ for c in commands] == ["Terminate", "Release"]
    assert play.state("r1") == "releasing"


def test_decisions_carry_their_reasons() -> None:
    """The reason of a start is noted, with the load that caused it."""
    play = Play(PoolSpec(A))

    play.demand(a=3)

    assert [note.text for note in play.notes] == [
        "wants 1 replica: 3 held and 0 in flight, none is ready yet",
        "starts r1 on d0: 3 held and 0 in flight, none is ready yet",
    ]


def test_a_new_replica_gets_a_new_id() -> None:
    """Each start takes a new id from the generator."""
    play = Play(PoolSpec(A), devices=1)
    play.demand(a=1)
    play.ready("r1")

    assert launched(play.lose("r1")) == [("r2", "d0")]
    assert play.on(events.Greeted("r1", {})) == []
    assert play.on(events.Greeted("r2", {})) == [Bind("r2", A)]


@pytest.mark.parametrize("is_open", [False, True])
def test_an_empty_house_is_quiet(is_open: bool) -> None:
    """Without pools no event causes a command."""
    play = Play(is_open=is_open)

    assert [play.tick(1.0), play.demand(), play.on(events.Shutdown())] == [[], [], []]


def test_what_there_is_can_be_seen() -> None:
    """Devices, pools and replicas can be queried."""
    play = Play(PoolSpec(A), devices=1)
    play.demand(a=1)

    assert list(play.machine.devices) == ["d0"]
    assert list(play.machine.pools) == [A]
    assert play.machine.replicas() == [play.machine.replica("r1")]


def test_a_pool_is_decided_on_once_that_is_allowed() -> None:
    """The wanted number of a pool whose adopted replicas meet its floor is decided without an event
    about it."""
    play = Play(PoolSpec(A, min=1), is_open=False)
    play.on(events.Found("old", A, ("d0",)))
    play.on(events.ReplicasListed())
    play.on(events.Greeted("old", {}, loaded=True))
    play.on(events.Loaded("old", 4, True, 80.0, {}))
    assert play.pool("a").wanted == 0

    play.tick(3.0)

    assert play.pool("a").wanted == 1


@pytest.mark.parametrize("is_silent", [False, True])
def test_load_that_ended_with_its_worker_is_no_measure(is_silent: bool) -> None:
    """The load windows record the end of a lost worker's load."""
    play = Play(PoolSpec(A, max=4), devices=4)
    play.run(a=1)
    play.ready("r1")
    play.seconds(60, a=4)
    assert play.pool("a").scaler.window.mean(60, play.now) == 4.0
    if is_silent:
        play.tick(3.5)
    else:
        play.on(events.WorkerLost("w1"))

    assert play.pool("a").scaler.window.mean(6, play.now + 60.0) == 0.0


def test_a_removed_pool_does_not_look_as_if_it_woke() -> None:
    """A removed pool is shown as draining while its last replica finishes, even with waiting
    calls."""
    play = Play(PoolSpec(A))
    play.demand(a=1)
    play.ready("r1")

    assert play.on(events.PoolRemoved(A)) == [Drain("r1", None)]
    assert play.machine.endpoints(A, play.now) == PoolEndpoints(
        [], "draining", "the pool was removed"
    )


def test_a_back_off_that_nobody_waits_for_ends_quietly() -> None:
    """A failed pool is settled when its back-off ends, and then no more."""
    play = Play(PoolSpec(A))
    play.demand(a=1)
    play.lose("r1")
    play.demand()
    assert play.pool("a").quiet_until_s == play.now + 1.0

    play.tick(1.0)

    assert list(play.machine.cluster.live) == []


def test_a_pool_that_is_idle_is_not_looked_at_before_its_time() -> None:
    """A Tick does not settle a warm idle pool before its idle time has passed."""
    play = Play(PoolSpec(A, idle_s=300.0))
    play.warm(a="r1")

    assert play.pool("a").quiet_until_s == play.now - LOAD_S + 300.0


def test_a_pool_with_no_more_than_it_must_have_is_not_looked_at() -> None:
    """Ticks do not settle a pool at its `min`, however long it gets no calls."""
    play = Play(PoolSpec(A, min=2, max=2, idle_s=300.0))
    play.tick(3.0)
    for id in ("r1", "r2"):
        play.ready(id)
        play.tick(1.0)

    assert {play.state(id) for id in play.pool("a").replicas} == {State.READY}
    assert play.pool("a").quiet_until_s > play.now


def test_the_reason_of_a_floor_follows_its_start() -> None:
    """A floor raised long after the last call starts a replica; from the next Tick on the reason is
    why it is kept."""
    play = Play(PoolSpec(A, min=1, idle_s=0))
    play.tick(3.0)
    play.ready("r1")
    play.on(events.PoolDefined(PoolSpec(A, min=2, max=2, idle_s=0)), 400.0)
    before = play.reason("a")

    play.tick(1.0)

    assert before == "no calls; min is 2"
    assert play.reason("a") == "kept for the next call; min is 2"


def test_an_engine_that_is_away_is_watched() -> None:
    """While the engine is away nothing is started and waiting pools have the reason; on its return
    ended replicas are released and missing ones started."""
    play = Play(PoolSpec(A), PoolSpec(B))
    play.warm(a="r1")
    assert play.on(events.EngineLost("no answer")) == [WatchEngine("no answer")]
    assert play.demand(a=1, b=1) == []
    assert play.on(events.EngineLost("still no answer")) == [WatchEngine("still no answer")]
    assert play.reason("b") == "nothing can be started: still no answer"

    commands = play.on(events.EngineBack(frozenset()))

    assert commands[0] == Release("r1", "it ended while the engine was away")
    assert play.state("r2") == "starting"
    assert play.pool("a").failures == 0


def test_who_asks_is_answered() -> None:
    """Warm-ups and sleep requests reach their pool; a warm-up of an unknown pool fails."""
    play = Play(PoolSpec(A))
    play.demand()
    play.on(events.WarmRequested(A))
    play.on(events.WarmCancelled(A))
    assert play.pool("a").warming is None
    play.ready("r1")

    assert play.on(events.SleepRequested(A)) == [Drain("r1", 0.001)]
    assert play.on(events.SleepRequested(B)) == []
    assert play.on(events.WarmCancelled(B)) == []
    assert play.on(events.WarmRequested(B)) == [EndWarm(B, "failed", "no such pool")]


def test_standbys_are_kept_from_the_beginning() -> None:
    """A host with standbys has pools for them, which are not published."""
    play = Play(standbys=1)
    play.demand()

    assert [one.role for one in play.machine.replicas()] == ["standby"]
    assert play.published == []


def test_who_falls_idle_makes_room_at_once() -> None:
    """A pool that becomes idle causes waiting pools to be settled at once."""
    play = Play(PoolSpec(A), PoolSpec(B), devices=1)
    play.run(a=1)
    play.ready("r1")
    assert play.run(a=1) == []
    assert play.demand(b=1, a=1) == []

    assert play.hear({A: Load(0, 0, 0.0)}, full=False) == [Drain("r1", 0.001)]


def test_a_tick_is_asked_for_when_a_stay_ends() -> None:
    """`due_s` is the end of a residency that a waiting pool waits for, before the next regular
    Tick."""
    play = Play(PoolSpec(A), PoolSpec(B), devices=1)
    assert play.machine.due_s(play.now) == inf
    play.demand(a=1)
    play.on(events.Greeted("r1", {"start": 3.0}))
    play.on(events.Loaded("r1", 4, True, 80.0, {"load": 250.0}))
    ready_s = play.now

    assert play.demand(b=1) == []
    assert play.machine.due_s(play.now) == ready_s + 0.25
    assert play.tick(0.25) == [Drain("r1", 0.001)]
    assert play.machine.due_s(play.now) == inf


def test_a_tick_is_asked_for_when_a_back_off_ends() -> None:
    """`due_s` is the end of a back-off, so that the next try is not up to a second late."""
    play = Play(PoolSpec(A))
    play.demand(a=1)
    play.lose("r1")

    assert play.machine.due_s(play.now) == play.now + 1.0
    assert [id for id, _ in launched(play.tick(1.0))] == ["r2"]


def test_a_wait_for_a_start_is_settled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the same number of calls waits for a replica that starts, ticks and reports settle
    nothing."""
    play = Play(PoolSpec(A), devices=1)
    play.demand(a=1)
    play.demand(1.0, a=1)
    began_s = play.pool("a").waiting_since_s
    settled = []
    settle = play.machine._settle

    def counted(pool: Pool, *rest: Any) -> None:
        settled.append(pool.key)
        settle(pool, *rest)

    monkeypatch.setattr(play.machine, "_settle", counted)

    assert play.demand(1.0, a=1) == play.tick() == []
    assert settled == []
    assert play.pool("a").warm_s < play.now

    play.demand(1.0, a=2)
    assert settled == [A]
    assert play.pool("a").wanted_reason.startswith("2 held")
    assert play.pool("a").waiting_since_s == began_s


def test_the_first_known_device_stands_for_all() -> None:
    """Devices that are not known (any more) are passed over; a replica without one has none."""
    machine = Play(PoolSpec(A)).machine

    assert machine.first_device(("gone", "d1", "d0")) == machine.devices["d1"]
    assert machine.first_device(("gone",)) is None
    assert machine.first_device(()) is None
