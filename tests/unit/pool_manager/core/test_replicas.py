"""The lifecycle of single replicas."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pool_manager.core import events
from pool_manager.core.cluster import STANDBY_KEY
from pool_manager.core.commands import (
    Assign,
    Bind,
    Drain,
    EndTrial,
    RecordColdStart,
    RecordRefutation,
    Release,
    StopBatching,
)
from pool_manager.core.state import PoolSpec, Replica, Role, State
from registry.builds import DeviceType
from tests.support.house import KEY, House

LOADED = events.Loaded("r1", 4, False, 80.0, {"load": 5.0})
REFUTED = events.BatchingRefuted("r1", "rows are lost")


def test_a_greeting_is_answered_with_the_model() -> None:
    """HELLO is answered with the model to load."""
    house = House()

    assert house.on(events.Greeted("r1", {"start": 3.0})) == [Bind("r1", KEY)]
    assert house.replica.state == "loading"
    assert house.replica.phases == {"start": 3.0}
    assert house.touched == {KEY}


def test_a_replica_that_has_its_model_is_not_told_again() -> None:
    """A replica that served an earlier manager gets no second bind request."""
    house = House()

    assert house.on(events.Greeted("r1", {}, loaded=True)) == []
    assert house.on(LOADED) == []
    assert house.replica.state == "ready"


def test_a_loaded_replica_serves_as_it_says() -> None:
    """Limit, marks, memory and phases are those that the replica reported; earlier failures are
    reset."""
    house = House(State.LOADING)
    house.pool.record_failure("no memory", (), 0.0)

    house.on(LOADED)

    assert house.replica.state == "ready"
    assert (house.replica.limit, house.replica.marks_started) == (4, False)
    assert (house.replica.memory_mib, house.replica.phases) == (80.0, {"load": 5.0})
    assert house.replica.last_used_s == 100.0
    assert house.pool.failures == 0


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (State.READY, events.Greeted("r1", {})),
        (State.READY, LOADED),
        (State.STARTING, LOADED),
        (State.READY, events.NotIdle("r1", 0.0)),
        (State.DRAINING, events.NotIdle("r1", 0.0)),
        (State.RELEASING, events.Lost("r1", "exit 1")),
        (State.READY, events.Released("r1")),
    ],
)
def test_what_crossed_a_change_is_ignored(state: State, event: events.Event) -> None:
    """An event that does not fit the present state has no effect."""
    house = House(state)

    assert house.on(event) == []
    assert house.replica.state == state


def test_strangers_are_ignored() -> None:
    """Events about unknown replicas touch no pool."""
    house = House(is_empty=True)

    assert house.on(events.Lost("r9", "exit 0")) == []
    assert house.touched == set()
    assert house.cluster.find("r9") is None


@pytest.mark.parametrize("state", [State.STARTING, State.LOADING])
def test_standing_in_line_is_no_part_of_its_time(state: State) -> None:
    """The time limit of a start counts from the end of its wait in the start queue."""
    house = House(state)
    house.now += 59.0

    assert house.on(events.Begun("r1")) == []

    assert house.enforce_deadline(59.9) == []
    assert Release("r1", f"{state} lasted too long") in house.enforce_deadline(0.1)


def test_a_trial_that_has_begun_has_time_to_prepare() -> None:
    """A trial's time limit includes the preparation, also if it started from a standby and waited
    in the start queue."""
    house = House(State.LOADING, "trial")
    house.on(events.Begun("r1"))

    assert house.enforce_deadline(60.1) == []


def test_who_has_begun_too_late_is_not_held_up() -> None:
    """Begun has no effect on a start that is over or was given up."""
    house = House(State.READY)
    house.on(events.Begun("r1"))

    assert house.replica.deadline_s == float("inf")


def test_a_first_run_completes_the_receipt() -> None:
    """A cold start lasts from the first waiting call to the first result."""
    house = House(State.READY)
    house.replica.phases = {"load": 5.0}
    house.replica.waiting_since_s = 98.0

    receipt = RecordColdStart(KEY, "r1", ("d0",), 2000.0, {"load": 5.0, "first_run": 1.5}, "ready")
    assert house.on(events.FirstRun("r1", 1.5)) == [receipt]


def test_a_first_run_for_somebody_else_is_no_part_of_the_receipt() -> None:
    """If the callers of a cold start left before READY, the time until the next call is not part of
    it."""
    house = House(State.READY)
    house.replica.waiting_since_s, house.replica.ready_s = 90.0, 92.0

    (receipt,) = house.on(events.FirstRun("r1", 500.0))

    assert isinstance(receipt, RecordColdStart)
    assert receipt.total_ms == 2500.0


def test_a_start_whose_callers_left_has_its_receipt_when_it_ends() -> None:
    """A cold start without callers is recorded at the replica's end, dated when it was ready; not
    for replicas that ran a call, were adopted, or have been woken since."""
    house = House(State.READY)
    house.replica.waiting_since_s, house.replica.ready_s = 90.0, 92.0

    receipt, *_ = house.on(events.Lost("r1", "exit 0"))

    assert receipt == RecordColdStart(KEY, "r1", ("d0",), 2000.0, {}, "ready", ago_s=8.0)
    for known in ({"adopted": True}, {"woken_s": 91.0}, {"phases": {"first_run": 1.0}}):
        house = House(State.READY)
        house.replica.ready_s = 92.0
        for name, value in known.items():
            setattr(house.replica, name, value)
        assert not any(isinstance(one, RecordColdStart) for one in house.on(events.Lost("r1", "")))


def test_without_a_waiter_the_phases_are_the_whole() -> None:
    """A cold start without waiting calls lasts as long as its phases together."""
    house = House(State.READY)
    house.replica.phases = {"load": 5.0}

    (receipt,) = house.on(events.FirstRun("r1", 1.5))

    assert isinstance(receipt, RecordColdStart)
    assert receipt.total_ms == 6.5


def test_a_drain_may_be_refused_once() -> None:
    """A replica that was used in the meantime becomes ready again, with the time of its last
    use."""
    house = House(State.READY)
    assert house.drain(300.0) == [Drain("r1", 300.0)]
    assert house.replica.can_serve

    house.on(events.NotIdle("r1", 2.5))

    assert house.replica.state == "ready"
    assert house.replica.last_used_s == 97.5
    assert house.enforce_deadline(1e9) == []


def test_a_released_replica_is_forgotten() -> None:
    """Released settles the replica's pool and every blocked pool."""
    house = House(State.RELEASING)
    for key in ("default/b@1", "default/c@1"):
        house.cluster.define(PoolSpec(key))
    house.cluster.blocked.add("default/b@1")

    house.on(events.Released("r1"))

    assert house.touched == {KEY, "default/b@1"}
    assert house.pool.replicas == {}
    assert house.cluster.find("r1") is None
    assert house.replica.state == "stopped"


def test_a_trial_that_loads_is_over() -> None:
    """When a trial has loaded, its report is passed on, its replica released and its pool
    removed."""
    house = House(State.LOADING, "trial")

    commands = house.on(events.Loaded("r1", 2, True, 80.0, {}, {"load_ms": 5.0}))

    report = {"load_ms": 5.0, "device_kind": "cpu", "device_type": DeviceType("local")}
    assert commands == [EndTrial(KEY, report), Release("r1", "the trial is over")]
    assert house.pool.removed


def test_a_trial_that_fails_says_why() -> None:
    """A trial's failure has stage, reason and last log lines, and causes no back-off."""
    house = House(State.LOADING, "trial")

    commands = house.on(events.Lost("r1", "opset 99", ("line",), "load"))

    assert commands == [EndTrial(KEY, {}, "load", "opset 99", ("line",)), Release("r1", "opset 99")]
    assert house.pool.failures == 0
    assert house.pool.removed


def test_a_found_replica_is_given_time_to_greet() -> None:
    """An adopted replica has time to connect, and its silence is no failed load."""
    house = House(is_empty=True)
    house.on(events.Found("r1", KEY, ("d0",)))
    replica = house.cluster.find("r1")
    assert replica is not None
    house.replica = replica
    assert not house.pool.removed

    assert house.enforce_deadline(9.9) == []
    assert house.enforce_deadline(0.1) == [Release("r1", "starting lasted too long")]
    assert house.pool.failures == 0


def test_a_found_replica_without_a_pool_gets_one_that_is_removed() -> None:
    """A found replica of an unknown pool is recorded, so its device is charged, and then
    drained."""
    house = House(is_empty=True)

    house.on(events.Found("r1", "default/old@1", ("d0",)))

    assert house.touched == {"default/old@1"}
    assert house.pools["default/old@1"].removed


def test_a_found_trial_goes_and_its_pool_stays() -> None:
    """A trial of an earlier manager is released; a present trial with the same key still runs."""
    house = House(role="trial", is_empty=True)

    assert house.on(events.Found("r1", KEY, ("d0",), role="trial")) == [
        Release("r1", "its deploy ended with the earlier manager")
    ]
    assert not house.pool.removed


def test_a_trial_that_nobody_is_to_blame_for_is_run_again() -> None:
    """A trial that ended without fault, e.g. because the engine restarted, is run again."""
    house = House(State.LOADING, "trial")

    assert house.on(events.Lost("r1", "engine restarted", is_its_fault=False)) == [
        Release("r1", "engine restarted")
    ]
    assert not house.pool.removed


def test_what_a_load_costs_has_no_waiting_in_it() -> None:
    """The reload time excludes the time spent on getting a device."""
    house = House(State.LOADING)
    phases = {"place": 500.0, "evict": 3000.0, "start": 200.0, "load": 800.0}

    house.on(events.Loaded("r1", 4, True, 80.0, phases))

    assert house.pool.reload_s == 1.0


def standby(house: House, state: State) -> Replica:
    """A standby."""
    house.cluster.define(PoolSpec(STANDBY_KEY, role="standby"))
    replica = Replica("s1", STANDBY_KEY, (), "standby", 0.0, state, is_bound=False)
    house.replicas.add(replica, house.now)
    return replica


def test_a_standby_that_greets_waits() -> None:
    """A connected standby gets no model, and earlier failures of its pool are reset."""
    house = House(is_empty=True)
    one = standby(house, State.STARTING)
    house.pools[STANDBY_KEY].record_failure("exit 1", (), 0.0)

    assert house.on(events.Greeted("s1", {"start": 3.0})) == []
    assert (one.state, house.pools[STANDBY_KEY].failures) == ("standby", 0)


def test_a_waiting_standby_is_told_its_model_at_once() -> None:
    """An assigned standby gets one Assign command and loads; a failure from then on counts against
    the pool."""
    house = House(is_empty=True)
    one = standby(house, State.STANDBY)
    one.adopted = True

    told = house.replicas.assign(one, house.pool, ("d0",), 100.0)

    assert told == [Assign("s1", KEY, ("d0",), "serve", {})]
    assert (one.state, one.is_bound, one.adopted, one.since_s) == ("loading", True, False, 100.0)
    house.on(events.Lost("s1", "opset 99"))
    assert house.pool.failures == 1


def test_a_starting_standby_is_told_when_it_greets() -> None:
    """An assigned standby that is still starting gets its model after HELLO; earlier import time
    does not count as waiting."""
    house = House(is_empty=True)
    one = standby(house, State.STARTING)
    assert house.replicas.assign(one, house.pool, ("d0",), 100.0) == []
    house.now = 100.25

    told = house.on(events.Greeted("s1", {"import": 900.0}))

    assert told == [Assign("s1", KEY, ("d0",), "serve", {"import": 250.0})]


def test_a_standby_that_dies_while_it_waits_is_no_failure() -> None:
    """The death of a waiting standby is not a failure, but delays the next start."""
    house = House(is_empty=True)
    standby(house, State.STANDBY)

    assert house.on(events.Lost("s1", "exit 1")) == [Release("s1", "exit 1")]
    pool = house.pools[STANDBY_KEY]
    assert (pool.failures, pool.retry_at_s) == (0, 101.0)


def test_who_refuses_lets_others_be_asked() -> None:
    """After a refusal the pool that waits for the device is settled again."""
    house = House(State.READY)
    house.cluster.blocked.add("default/b@1")
    house.drain(0.001)

    house.on(events.NotIdle("r1", 0.0))

    assert house.touched == {KEY, "default/b@1"}
    assert house.replica.refused_s == 100.0


@pytest.mark.parametrize("role", ["serve", "trial", "standby"])
def test_what_is_found_on_a_device_that_is_no_more_is_ended(role: Role) -> None:
    """A found replica on a device that no longer exists is released, without a failure or an
    exception."""
    house = House(is_empty=True)
    pool = "" if role == "standby" else KEY

    assert house.on(events.Found("old", pool, ("GPU-9",), role)) == [
        Release("old", "this host has no device GPU-9")
    ]
    (key,) = house.touched
    assert key == (pool or "standby/GPU-9")
    assert house.pools[key].failures == 0


def test_what_is_found_nowhere_is_ended() -> None:
    """A bound replica without a device is released."""
    house = House(is_empty=True)

    assert house.on(events.Found("old", KEY, ())) == [
        Release("old", "this host has no device without a name")
    ]


def test_what_lost_one_of_its_devices_is_ended() -> None:
    """A found replica needs all of its devices."""
    house = House(is_empty=True)

    assert house.on(events.Found("old", KEY, ("d0", "GPU-8", "GPU-9"))) == [
        Release("old", "this host has no device GPU-8 and GPU-9")
    ]


def house(state: State = State.READY, role: Role = "serve", *, batches: bool = True) -> House:
    made = House(state, role)
    made.pool.spec = replace(made.pool.spec, batches=batches)
    return made


def test_the_others_are_told_and_it_is_kept_once() -> None:
    """The other replicas are commanded to stop batching, and the refutation is recorded once; a
    loading replica is commanded when it has loaded."""
    made = house()
    for id, state in (("r2", State.READY), ("r3", State.DRAINING), ("r4", State.LOADING)):
        made.replicas.add(Replica(id, KEY, ("d0",), "serve", made.now, state), made.now)

    asked = made.on(REFUTED)
    again = made.on(events.BatchingRefuted("r2", "so they are"))
    loaded = made.on(replace(LOADED, id="r4"))

    assert asked == [RecordRefutation(KEY, "rows are lost"), StopBatching("r2"), StopBatching("r3")]
    assert again == []
    assert loaded == [StopBatching("r4")]
    assert made.pool.refuted == "rows are lost"


@pytest.mark.parametrize(
    ("role", "batches"), [("trial", True), ("standby", True), ("serve", False)]
)
def test_only_what_joins_requests_is_believed(role: Role, batches: bool) -> None:
    """A hostile replica can only end the batching of its own revision."""
    made = house(role=role, batches=batches)

    assert made.on(REFUTED) == []
    assert made.pool.refuted == ""


def test_one_that_says_it_again_to_a_new_manager_is_believed() -> None:
    """A repeated refutation is stored: the earlier manager may have ended before it stored it."""
    made = house(State.LOADING)
    made.replica.adopted = True

    assert made.on(replace(LOADED, refuted="rows are lost")) == [
        RecordRefutation(KEY, "rows are lost")
    ]


def test_an_adopted_replica_joins_by_the_rules_of_today() -> None:
    """An adopted replica is commanded to stop batching if its pool must not batch."""
    made = house(State.STARTING, batches=False)
    made.on(events.Greeted("r1", {}, loaded=True))

    assert made.on(LOADED) == [StopBatching("r1")]


def test_a_new_replica_knows_by_its_model() -> None:
    """A new replica needs no StopBatching: its bind request says whether to batch."""
    made = house(State.STARTING, batches=False)

    assert made.on(events.Greeted("r1", {})) == [Bind("r1", KEY)]
    assert made.on(LOADED) == []
