"""How replicas end, and whether that counts as a failure."""

from __future__ import annotations

import pytest

from pool_manager.core import events
from pool_manager.core.commands import (
    Command,
    Drain,
    Note,
    RecordColdStart,
    Release,
    Terminate,
)
from pool_manager.core.pool import ENDED_MAX
from pool_manager.core.state import PoolSpec, Replica, State, load_limit_s, state_limit_s
from registry.model.hosts import LOCAL_HOST
from tests.support.house import House, without_notes

KEY = "default/a@1"


def test_what_has_no_model_is_released_instead_of_drained() -> None:
    """A replica that has not connected yet is released instead of drained."""
    house = House()

    assert house.drain(None) == [Release("r1", "idle")]
    assert house.replica.state == "releasing"


def test_an_unconditional_drain_cannot_be_refused() -> None:
    """After an unconditional drain a refusal is ignored, and the replica does not serve."""
    house = House(State.READY)
    house.drain(300.0)

    assert house.drain(None) == [Drain("r1", None)]
    assert not house.replica.can_serve
    house.on(events.NotIdle("r1", 0.0))
    assert house.replica.state == "draining"


def test_a_drain_ends_with_term_and_kill() -> None:
    """After 30 s of draining TERM is sent, 5 s later the replica is released, neither earlier."""
    house = House(State.READY)
    house.drain(None)

    assert house.enforce_deadline(29.9) == []
    assert house.enforce_deadline(0.1) == [Terminate("r1", "did not drain: idle")]
    assert house.enforce_deadline(4.9) == []
    assert house.enforce_deadline(0.1) == [Release("r1", "idle")]


def test_after_term_nobody_comes_back() -> None:
    """A refusal that arrives after TERM is ignored: no request is sent to a replica that is about
    to end."""
    house = House(State.READY)
    house.drain(300.0)
    house.enforce_deadline(30.0)

    house.on(events.NotIdle("r1", 0.0))

    assert house.replica.state == "draining"
    assert not house.replica.can_serve


@pytest.mark.parametrize("state", [State.STARTING, State.STANDBY, State.LOADING])
def test_a_start_that_hangs_is_a_failure(state: State) -> None:
    """A replica that is not ready in time is released and counts as a failure of its pool."""
    house = House(state)
    house.on(events.Begun("r1"))

    kept, released = house.enforce_deadline(60.0)

    assert isinstance(kept, RecordColdStart)
    assert kept.outcome == f"failed: {state} lasted too long"
    assert released == Release("r1", f"{state} lasted too long")
    assert house.pool.failures == 1


def test_a_crash_while_serving_is_no_failed_load() -> None:
    """The end of a replica that had been ready causes no back-off."""
    house = House(State.READY)

    assert house.on(events.Lost("r1", "exit 139")) == [Release("r1", "exit 139")]
    assert house.pool.failures == 0


def test_the_end_of_a_drain_keeps_its_reason() -> None:
    """A replica that exits while draining is released with the reason of the drain."""
    house = House(State.READY)
    house.drain(None)

    assert house.on(events.Lost("r1", "exit 0")) == [Release("r1", "idle")]


def test_a_release_that_fails_is_tried_again() -> None:
    """The device stays charged, and the release is retried every 5 s."""
    house = House(State.READY)
    house.on(events.Lost("r1", "exit 1"))
    assert house.enforce_deadline(60.0) == []

    house.on(events.NotReleased("r1", "in uninterruptible sleep"))

    assert house.replica.why == "in uninterruptible sleep"
    assert house.enforce_deadline(4.9) == []
    assert house.enforce_deadline(0.1) == [Release("r1", "tried again")]
    assert house.enforce_deadline(4.9) == []
    assert house.enforce_deadline(0.1) == [Release("r1", "tried again")]


def test_why_a_release_fails_is_noted_once() -> None:
    """A release that fails for the same reason again and again does not fill the decisions."""
    house, commands = House(State.READY), list[Command]()
    house.on(events.Lost("r1", "exit 1"))
    for reason in ("its lease", "its lease", "its node", "its lease"):
        event = events.NotReleased("r1", reason)
        house.replicas.apply(event, house.now, commands)

    assert [one.text for one in commands if isinstance(one, Note)] == [
        "r1 cannot be released: its lease",
        "r1 cannot be released: its node",
        "r1 cannot be released: its lease",
    ]


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
    """When the engine is back, replicas missing from its list are released without a failure;
    starting ones are not judged by it."""
    house = House(state)
    house.replica.why = "idle"
    commands: list[Command] = []

    house.contacts.end_missing(LOCAL_HOST, frozenset(), house.now, commands)

    why = "idle" if state is State.DRAINING else "it ended while the engine was away"
    assert without_notes(commands) == ([Release("r1", why)] if is_ended else [])
    assert house.pool.failures == 0


def test_a_release_is_tried_again_when_the_engine_is_back() -> None:
    """When the engine is back, a failed release is retried whether or not the list has the replica;
    a release in progress is not."""
    house = House(State.RELEASING)
    commands: list[Command] = []

    house.contacts.end_missing(LOCAL_HOST, frozenset(), house.now, commands)
    assert commands == []
    house.replica.deadline_s = house.now + 5.0

    house.contacts.end_missing(LOCAL_HOST, frozenset({"r1"}), house.now, commands)

    assert commands == [Release("r1", "tried again")]


def test_what_still_runs_is_kept() -> None:
    """Replicas on the list of an engine that is back are kept."""
    house = House(State.READY)
    commands: list[Command] = []

    house.contacts.end_missing(LOCAL_HOST, frozenset({"r1"}), house.now, commands)

    assert commands == []
    assert house.replica.state == "ready"


def test_nobody_is_blamed_while_the_engine_is_away() -> None:
    """A start above its time limit while the engine is away is released but is no failure."""
    house = House()
    house.cluster.hosts[LOCAL_HOST].engine_down = "no answer"
    house.on(events.Begun("r1"))

    assert house.enforce_deadline(60.0) == [Release("r1", "starting lasted too long")]
    assert (house.pool.failures, house.pool.retry_at_s) == (0, house.now + 1.0)


def test_every_end_is_noted_with_its_reason() -> None:
    """Drains, terminations and ends are noted with their reasons."""
    house = House(State.READY)
    commands: list[Command] = []
    house.replicas.drain(house.replica, None, "put to sleep", house.now, commands)
    house.replicas.enforce_deadline(house.replica, house.now + 30.0, commands)

    assert [one.text for one in commands if isinstance(one, Note)] == [
        "r1 is asked to stop: put to sleep",
        "r1 is terminated: it did not drain: put to sleep",
    ]


def test_gateways_are_told_how_a_serving_replica_died() -> None:
    """Endpoints contain the causes of the last deaths of serving replicas, in words for callers;
    failed starts are not among them."""
    house = House(State.READY)
    house.on(events.Lost("r1", "was killed by SIGKILL: secret", cause="was killed by SIGKILL"))
    assert house.pool.ended == {"r1": "was killed by SIGKILL"}

    for number in range(ENDED_MAX):
        house.pool.record_death(f"x{number}", "exited with code 1")
    assert list(house.pool.ended) == [f"x{number}" for number in range(ENDED_MAX)]

    loading = House(State.LOADING)
    loading.on(events.Lost("r1", "exited with code 1", cause="exited with code 1"))
    assert loading.pool.ended == {}


@pytest.mark.parametrize(
    ("load_s", "gib", "expected"), [(0.0, 0, 60.0), (12.0, 1, 120.0), (1.0, 8, 160.0)]
)
def test_the_largest_need_counts(load_s: float, gib: int, expected: float) -> None:
    """Loading may take the largest of 60 s, ten times the measured load and 20 s per GiB."""
    spec = PoolSpec(KEY, load_s=load_s, bundle_bytes=gib * 2**30)

    assert expected == load_limit_s(spec)


def test_idle_time_has_no_part_in_loading() -> None:
    """The load time limit does not depend on `idle_s`."""
    assert load_limit_s(PoolSpec(KEY)) == load_limit_s(PoolSpec(KEY, idle_s=1.0))


@pytest.mark.parametrize(
    ("state", "adopted", "expected"),
    [
        (State.STARTING, False, 600.0),
        (State.STARTING, True, 10.0),
        (State.STANDBY, False, 60.0),
        (State.LOADING, True, 60.0),
        (State.DRAINING, False, 30.0),
        (State.READY, False, float("inf")),
        (State.RELEASING, False, float("inf")),
    ],
)
def test_every_state_has_its_patience(state: State, adopted: bool, expected: float) -> None:
    """Every transitional state has a time limit; READY has none."""
    replica = Replica("r1", KEY, ("d0",), "serve", 0.0, state, adopted=adopted)

    assert expected == state_limit_s(replica, PoolSpec(KEY))


def test_a_standby_may_wait_for_ever() -> None:
    """A standby has no time limit; one that was assigned has."""
    standby = Replica("r1", "standby/cpu", (), "standby", 0.0, State.STANDBY)

    assert state_limit_s(standby, PoolSpec("standby/cpu")) == float("inf")


def test_a_trial_has_time_to_check_and_prepare() -> None:
    """A trial's time limit is the load limit plus the time for verification and preparation; the
    server ends its wait for the preparation earlier."""
    trial = Replica("r1", KEY, ("d0",), "trial", 0.0, State.LOADING)

    assert state_limit_s(trial, PoolSpec(KEY, role="trial")) == 150.0
    assert state_limit_s(trial, PoolSpec(KEY, role="trial", bundle_bytes=8 * 2**30)) == 490.0
    assert state_limit_s(trial, PoolSpec(KEY, role="trial", trial_s=120.0)) == 270.0
