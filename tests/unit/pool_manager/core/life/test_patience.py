"""How long a replica may stay in a state."""

from __future__ import annotations

import pytest

from pool_manager.core.life.patience import load_deadline_s, patience_s
from pool_manager.core.state import PoolSpec, Replica, State

KEY = "default/a@1"


@pytest.mark.parametrize(
    ("load_s", "gib", "expected"), [(0.0, 0, 60.0), (12.0, 1, 120.0), (1.0, 8, 160.0)]
)
def test_the_largest_need_counts(load_s: float, gib: int, expected: float) -> None:
    """Loading may take the largest of 60 s, ten times the measured load and 20 s per GiB."""
    spec = PoolSpec(KEY, load_s=load_s, bundle_bytes=gib * 2**30)

    assert expected == load_deadline_s(spec)


def test_idle_time_has_no_part_in_loading() -> None:
    """A function that may sleep after a second has all the time it needs to load."""
    assert load_deadline_s(PoolSpec(KEY)) == load_deadline_s(PoolSpec(KEY, idle_s=1.0))


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
    """Nothing presses a replica that is ready; every state on the way has an end."""
    replica = Replica("r1", KEY, "cpu0", "serve", 0.0, state, adopted=adopted)

    assert expected == patience_s(replica, PoolSpec(KEY))


def test_a_standby_may_wait_for_ever() -> None:
    """It is there to wait; one that got a model and did not take it is pressed."""
    standby = Replica("r1", "standby/cpu", "", "standby", 0.0, State.STANDBY)

    assert patience_s(standby, PoolSpec("standby/cpu")) == float("inf")


def test_a_trial_has_time_to_check_and_prepare() -> None:
    """On top of what loading may take: its server gives up waiting for that before."""
    trial = Replica("r1", KEY, "cpu0", "trial", 0.0, State.LOADING)

    assert patience_s(trial, PoolSpec(KEY, role="trial")) == 150.0
    assert patience_s(trial, PoolSpec(KEY, role="trial", bundle_bytes=8 * 2**30)) == 490.0
