"""What becomes of single replicas."""

from __future__ import annotations

import pytest

from pool_manager.core import events
from pool_manager.core.commands import (
    Assign,
    Bind,
    Command,
    Drain,
    EndTrial,
    KeepColdStart,
    Note,
    Release,
    Terminate,
)
from pool_manager.core.host import STANDBY_KEY, Host
from pool_manager.core.replicas import ReplicaEvents
from pool_manager.core.state import Device, PoolSpec, Replica, Role, State

KEY = "default/a@1"
LOADED = events.Loaded("r1", 4, False, 80.0, {"load": 5.0})


class House:
    """One pool and, unless `is_empty`, one replica r1 on cpu0. `now` is 100."""

    def __init__(
        self, state: State = State.STARTING, role: Role = "serve", *, is_empty: bool = False
    ) -> None:
        self.now = 100.0
        self.host = Host([Device("cpu0", "cpu")])
        self.pool = self.host.define(PoolSpec(KEY, role=role))
        self.pools = self.host.pools
        self.replicas = ReplicaEvents(self.host)
        self.replica = Replica("r1", KEY, "cpu0", role, self.now, state)
        if not is_empty:
            self.replicas.add(self.replica, self.now)

    def on(self, event: events.Event) -> list[Command]:
        """Commands but notes."""
        commands: list[Command] = []
        self.touched = self.replicas.apply(event, self.now, commands)
        return without_notes(commands)

    def drain(self, if_idle_s: float | None) -> list[Command]:
        commands: list[Command] = []
        self.replicas.drain(self.replica, if_idle_s, "idle", self.now, commands)
        return without_notes(commands)

    def press(self, after_s: float) -> list[Command]:
        self.now += after_s
        commands: list[Command] = []
        self.replicas.press(self.replica, self.now, commands)
        return without_notes(commands)


def without_notes(commands: list[Command]) -> list[Command]:
    return [command for command in commands if not isinstance(command, Note)]


def test_a_greeting_is_answered_with_the_model() -> None:
    """A replica that greets is told at once what to load."""
    house = House()

    assert house.on(events.Greeted("r1", {"start": 3.0})) == [Bind("r1", KEY)]
    assert house.replica.state == "loading"
    assert house.replica.phases == {"start": 3.0}
    assert house.touched == {KEY}


def test_a_replica_that_has_its_model_is_not_told_again() -> None:
    """One that served an earlier manager goes on with what it has."""
    house = House()

    assert house.on(events.Greeted("r1", {}, loaded=True)) == []
    assert house.on(LOADED) == []
    assert house.replica.state == "ready"


def test_a_loaded_replica_serves_as_it_says() -> None:
    """Limit, marks, memory and phases are what the replica reported; the past is forgiven."""
    house = House(State.LOADING)
    house.pool.fail("no memory", (), 0.0)

    house.on(LOADED)

    assert house.replica.state == "ready"
    assert (house.replica.limit, house.replica.marks_started) == (4, False)
    assert (house.replica.memory_mib, house.replica.phases) == (80.0, {"load": 5.0})
    assert house.replica.last_used_s == 100.0
    assert house.pool.failures == 0


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (State.LOADING, events.Greeted("r1", {})),
        (State.READY, LOADED),
        (State.STARTING, LOADED),
        (State.READY, events.NotIdle("r1", 0.0)),
        (State.DRAINING, events.NotIdle("r1", 0.0)),
        (State.RELEASING, events.Lost("r1", "exit 1")),
        (State.READY, events.Released("r1")),
    ],
)
def test_what_crossed_a_change_is_ignored(state: State, event: events.Event) -> None:
    """An event that does not belong to the present state changes nothing and asks nothing."""
    house = House(state)

    assert house.on(event) == []
    assert house.replica.state == state


def test_strangers_are_ignored() -> None:
    """Events about replicas that are gone touch no pool."""
    house = House(is_empty=True)

    assert house.on(events.Lost("r9", "exit 0")) == []
    assert house.touched == set()
    assert house.host.find("r9") is None


def test_a_first_run_completes_the_receipt() -> None:
    """A cold start lasts from the first waiter to the first result."""
    house = House(State.READY)
    house.replica.phases = {"load": 5.0}
    house.replica.waiting_since_s = 98.0

    receipt = KeepColdStart(KEY, "r1", "cpu0", 2000.0, {"load": 5.0, "first_run": 1.5}, "ready")
    assert house.on(events.FirstRun("r1", 1.5)) == [receipt]


def test_without_a_waiter_the_phases_are_the_whole() -> None:
    """A start that nobody waited for lasts as long as its phases together."""
    house = House(State.READY)
    house.replica.phases = {"load": 5.0}

    (receipt,) = house.on(events.FirstRun("r1", 1.5))

    assert isinstance(receipt, KeepColdStart)
    assert receipt.total_ms == 6.5


def test_a_drain_may_be_refused_once() -> None:
    """A replica that was used in the meantime is ready again, with the time of its last use."""
    house = House(State.READY)
    assert house.drain(300.0) == [Drain("r1", 300.0)]
    assert house.replica.can_serve

    house.on(events.NotIdle("r1", 2.5))

    assert house.replica.state == "ready"
    assert house.replica.last_used_s == 97.5
    assert house.press(1e9) == []


def test_an_unconditional_drain_cannot_be_refused() -> None:
    """Once asked to go for good, no replica comes back, and it serves no more."""
    house = House(State.READY)
    house.drain(300.0)

    assert house.drain(None) == [Drain("r1", None)]
    assert not house.replica.can_serve
    house.on(events.NotIdle("r1", 0.0))
    assert house.replica.state == "draining"


def test_what_has_no_model_is_released_instead_of_drained() -> None:
    """A replica that has not greeted has nothing to finish."""
    house = House()

    assert house.drain(None) == [Release("r1", "idle")]
    assert house.replica.state == "releasing"


def test_a_drain_ends_with_term_and_kill() -> None:
    """After 30 s TERM is sent, 5 s later the group is killed, and neither sooner."""
    house = House(State.READY)
    house.drain(None)

    assert house.press(29.9) == []
    assert house.press(0.1) == [Terminate("r1", "did not drain: idle")]
    assert house.press(4.9) == []
    assert house.press(0.1) == [Release("r1", "idle")]


def test_after_term_nobody_comes_back() -> None:
    """A refusal that crosses TERM is too late: no request is sent to what is about to end."""
    house = House(State.READY)
    house.drain(300.0)
    house.press(30.0)

    house.on(events.NotIdle("r1", 0.0))

    assert house.replica.state == "draining"
    assert not house.replica.can_serve


@pytest.mark.parametrize("state", [State.STARTING, State.STANDBY, State.LOADING])
def test_a_start_that_hangs_is_a_failure(state: State) -> None:
    """A replica that does not get ready in time is given up and counts against its pool."""
    house = House(state)

    kept, released = house.press(60.0)

    assert isinstance(kept, KeepColdStart)
    assert kept.outcome == f"failed: {state} lasted too long"
    assert released == Release("r1", f"{state} lasted too long")
    assert house.pool.failures == 1


def test_a_crash_while_serving_is_no_failed_load() -> None:
    """The end of a replica that had been ready brings no back-off."""
    house = House(State.READY)

    assert house.on(events.Lost("r1", "exit 139")) == [Release("r1", "exit 139")]
    assert house.pool.failures == 0


def test_the_end_of_a_drain_keeps_its_reason() -> None:
    """A replica that went as asked is released for the reason it was asked to go."""
    house = House(State.READY)
    house.drain(None)

    assert house.on(events.Lost("r1", "exit 0")) == [Release("r1", "idle")]


def test_a_release_that_fails_is_tried_again() -> None:
    """The device stays taken, and every 5 s the release is tried anew."""
    house = House(State.READY)
    house.on(events.Lost("r1", "exit 1"))
    assert house.press(60.0) == []

    house.on(events.NotReleased("r1", "in uninterruptible sleep"))

    assert house.replica.why == "in uninterruptible sleep"
    assert house.press(4.9) == []
    assert house.press(0.1) == [Release("r1", "tried again")]
    assert house.press(4.9) == []
    assert house.press(0.1) == [Release("r1", "tried again")]


def test_a_released_replica_is_forgotten() -> None:
    """Its pool and every pool that waits for a device are looked at."""
    house = House(State.RELEASING)
    for key in ("default/b@1", "default/c@1"):
        house.host.define(PoolSpec(key))
    house.host.blocked.add("default/b@1")

    house.on(events.Released("r1"))

    assert house.touched == {KEY, "default/b@1"}
    assert house.pool.replicas == {}
    assert house.host.find("r1") is None
    assert house.replica.state == "stopped"


def test_a_trial_that_loads_is_over() -> None:
    """Its report is passed on, its replica goes, and the pool is not kept."""
    house = House(State.LOADING, "trial")

    commands = house.on(events.Loaded("r1", 2, True, 80.0, {}, {"load_ms": 5.0}))

    assert commands == [EndTrial(KEY, {"load_ms": 5.0}), Release("r1", "the trial is over")]
    assert house.pool.removed


def test_a_trial_that_fails_says_why() -> None:
    """Stage, reason and last lines are passed on; no back-off is counted."""
    house = House(State.LOADING, "trial")

    commands = house.on(events.Lost("r1", "opset 99", ("line",), "load"))

    assert commands == [EndTrial(KEY, {}, "load", "opset 99", ("line",)), Release("r1", "opset 99")]
    assert house.pool.failures == 0
    assert house.pool.removed


def test_a_found_replica_is_given_time_to_greet() -> None:
    """A replica of an earlier manager is not released before it could say what it serves, and its
    silence is no failed load."""
    house = House(is_empty=True)
    house.on(events.Found("r1", KEY, "cpu0"))
    replica = house.host.find("r1")
    assert replica is not None
    house.replica = replica
    assert not house.pool.removed

    assert house.press(9.9) == []
    assert house.press(0.1) == [Release("r1", "starting lasted too long")]
    assert house.pool.failures == 0


def test_a_found_replica_without_a_pool_gets_one_that_is_removed() -> None:
    """It is known, so its device is taken, and it will be let go."""
    house = House(is_empty=True)

    house.on(events.Found("r1", "default/old@1", "cpu0"))

    assert house.touched == {"default/old@1"}
    assert house.pools["default/old@1"].removed


def test_a_found_trial_goes_and_its_pool_stays() -> None:
    """Nobody waits for the report of an earlier manager's trial; one that is wanted now runs."""
    house = House(role="trial", is_empty=True)

    assert house.on(events.Found("r1", KEY, "cpu0", role="trial")) == [
        Release("r1", "its deploy ended with the earlier manager")
    ]
    assert not house.pool.removed


@pytest.mark.parametrize(
    ("state", "is_ended"),
    [
        (State.STARTING, False),
        (State.LOADING, True),
        (State.READY, True),
        (State.DRAINING, True),
    ],
)
def test_what_ended_unseen_is_released(state: State, is_ended: bool) -> None:
    """When the engine is back, what its list lacks is over; what was about to start is not judged
    by it, and nobody is blamed."""
    house = House(state)
    house.replica.why = "idle"
    commands: list[Command] = []

    house.replicas.end_missing(frozenset(), house.now, commands)

    why = "idle" if state is State.DRAINING else "it ended while the engine was away"
    assert without_notes(commands) == ([Release("r1", why)] if is_ended else [])
    assert house.pool.failures == 0


def test_a_release_is_tried_again_when_the_engine_is_back() -> None:
    """Whether it is on the list or not: while the engine was away nothing could be proved. One
    that goes on is left alone."""
    house = House(State.RELEASING)
    commands: list[Command] = []

    house.replicas.end_missing(frozenset(), house.now, commands)
    assert commands == []
    house.replica.kill_at_s = house.now + 5.0

    house.replicas.end_missing(frozenset({"r1"}), house.now, commands)

    assert commands == [Release("r1", "tried again")]


def test_what_still_runs_is_kept() -> None:
    """An engine that comes back with its replicas has lost none."""
    house = House(State.READY)
    commands: list[Command] = []

    house.replicas.end_missing(frozenset({"r1"}), house.now, commands)

    assert commands == []
    assert house.replica.state == "ready"


def test_nobody_is_blamed_while_the_engine_is_away() -> None:
    """A start that hangs then is given up, but no failure."""
    house = House()
    house.host.engine_down = "no answer"

    assert house.press(60.0) == [Release("r1", "starting lasted too long")]
    assert (house.pool.failures, house.pool.retry_at_s) == (0, house.now + 1.0)


def test_a_trial_that_nobody_is_to_blame_for_is_run_again() -> None:
    """A deploy is not refused because the engine restarted."""
    house = House(State.LOADING, "trial")

    assert house.on(events.Lost("r1", "engine restarted", is_its_fault=False)) == [
        Release("r1", "engine restarted")
    ]
    assert not house.pool.removed


def test_what_a_load_costs_has_no_waiting_in_it() -> None:
    """Time spent on getting a device says nothing about how long the next load takes."""
    house = House(State.LOADING)
    phases = {"place": 500.0, "evict": 3000.0, "start": 200.0, "load": 800.0}

    house.on(events.Loaded("r1", 4, True, 80.0, phases))

    assert house.pool.reload_s == 1.0


def test_every_end_is_noted_with_its_reason() -> None:
    """Being asked to go and being terminated are decisions, and are kept."""
    house = House(State.READY)
    commands: list[Command] = []
    house.replicas.drain(house.replica, None, "put to sleep", house.now, commands)
    house.replicas.press(house.replica, house.now + 30.0, commands)

    assert [one.text for one in commands if isinstance(one, Note)] == [
        "r1 is asked to go: put to sleep",
        "r1 is terminated: it did not drain: put to sleep",
    ]


def standby(house: House, state: State) -> Replica:
    """One that has no model yet."""
    house.host.define(PoolSpec(STANDBY_KEY, role="standby"))
    replica = Replica("s1", STANDBY_KEY, "", "standby", 0.0, state, is_bound=False)
    house.replicas.add(replica, house.now)
    return replica


def test_a_standby_that_greets_waits() -> None:
    """It is not told to load anything, and earlier failures are forgiven."""
    house = House(is_empty=True)
    one = standby(house, State.STARTING)
    house.pools[STANDBY_KEY].fail("exit 1", (), 0.0)

    assert house.on(events.Greeted("s1", {"start": 3.0})) == []
    assert (one.state, house.pools[STANDBY_KEY].failures) == ("standby", 0)


def test_a_waiting_standby_is_told_its_model_at_once() -> None:
    """One message, and it loads; a failure from now on is the pool's."""
    house = House(is_empty=True)
    one = standby(house, State.STANDBY)
    one.adopted = True

    told = house.replicas.assign(one, house.pool, "cpu0", 100.0)

    assert told == [Assign("s1", KEY, "cpu0", "serve", {})]
    assert (one.state, one.is_bound, one.adopted, one.since_s) == ("loading", True, False, 100.0)
    house.on(events.Lost("s1", "opset 99"))
    assert house.pool.failures == 1


def test_a_starting_standby_is_told_when_it_greets() -> None:
    """What it has imported before it was needed nobody waited for."""
    house = House(is_empty=True)
    one = standby(house, State.STARTING)
    assert house.replicas.assign(one, house.pool, "cpu0", 100.0) == []
    house.now = 100.25

    told = house.on(events.Greeted("s1", {"import": 900.0}))

    assert told == [Assign("s1", KEY, "cpu0", "serve", {"import": 250.0})]


def test_a_standby_that_dies_while_it_waits_is_no_failure() -> None:
    """It is let go, and the next one is not started in the same moment."""
    house = House(is_empty=True)
    standby(house, State.STANDBY)

    assert house.on(events.Lost("s1", "exit 1")) == [Release("s1", "exit 1")]
    pool = house.pools[STANDBY_KEY]
    assert (pool.failures, pool.retry_at_s) == (0, 101.0)


def test_who_refuses_lets_others_be_asked() -> None:
    """Whoever it was to make room for is looked at again."""
    house = House(State.READY)
    house.host.blocked.add("default/b@1")
    house.drain(0.001)

    house.on(events.NotIdle("r1", 0.0))

    assert house.touched == {KEY, "default/b@1"}
    assert house.replica.refused_s == 100.0
