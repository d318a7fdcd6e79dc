"""How many replicas are wanted."""

from __future__ import annotations

import pytest
from pool_manager.core.scaling import wanted

from pool_manager.core.state import PoolSpec
from registry.exchange import Load


def spec(least: int = 0, most: int = 3, target: int = 2, *, trial: bool = False) -> PoolSpec:
    return PoolSpec("default/a@1", least, most, target=target, trial=trial)


@pytest.mark.parametrize(
    ("queued", "in_flight", "expected"),
    [(1, 0, 1), (2, 0, 1), (1, 2, 2), (3, 2, 3), (500, 0, 3)],
)
def test_a_warm_pool_follows_its_load(queued: int, in_flight: int, expected: int) -> None:
    """What is held and in flight is divided by the target, up to `max`."""
    assert expected == wanted(spec(), Load(queued, in_flight, 0.0), is_warm=True).replicas


def test_a_burst_at_zero_wants_one() -> None:
    """While none is ready a burst wants one replica, not as many as its size would."""
    count, reason = wanted(spec(), Load(500, 0, 0.0), is_warm=False)

    assert count == 1
    assert reason == "500 held and 0 in flight, 2 per replica, none is ready yet"


def test_max_is_named_where_it_bounds() -> None:
    """The reason says that more would be wanted if `max` allowed it."""
    assert "max is 3" in wanted(spec(), Load(7, 0, 0.0), is_warm=True).reason
    assert "max" not in wanted(spec(), Load(6, 0, 0.0), is_warm=True).reason


@pytest.mark.parametrize("is_warm", [False, True])
@pytest.mark.parametrize("queued", [0, 1])
def test_min_is_a_floor(queued: int, is_warm: bool) -> None:
    """With and without load, and also from zero, no fewer than `min` are wanted."""
    assert wanted(spec(least=2), Load(queued, 0, 0.0), is_warm).replicas == 2


def test_nobody_calls() -> None:
    """Without load and floor none is wanted."""
    assert wanted(spec(), Load(0, 0, 0.0), is_warm=True) == (0, "no requests, min is 0")


def test_a_trial_wants_one() -> None:
    """A deploy needs one replica and no load."""
    assert wanted(spec(trial=True), Load(0, 0, 0.0), is_warm=False) == (1, "a deploy verifies it")
