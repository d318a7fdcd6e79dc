"""The forecast of a pool."""

from __future__ import annotations

import pytest

from pool_manager.core.pool import AT_REST, Pool, forecast
from pool_manager.core.state import PoolSpec, Replica, State


def pool(*states: State, **spec: float) -> Pool:
    """A pool whose replicas are so, since 100 s on its clock."""
    made = Pool(PoolSpec("default/f@1", idle_s=30.0, **spec))  # type: ignore[arg-type]
    for number, state in enumerate(states):
        one = Replica(f"r{number}", made.key, (f"cpu:{number}",), "serve", 100.0, state)
        one.last_used_s = 100.0 + number
        made.replicas[one.id] = one
    return made


def test_a_pool_without_anything_is_at_rest() -> None:
    """A pool without replicas and calls is at rest."""
    assert forecast(pool(), 0, 105.0) is AT_REST


@pytest.mark.parametrize(
    ("states", "phase"),
    [
        ([State.STARTING], "start"),
        ([State.STANDBY, State.STARTING], "bind"),
        ([State.STARTING, State.LOADING], "load"),
        ([State.LOADING, State.READY], None),
        ([State.RELEASING], None),
    ],
)
def test_the_replica_that_is_furthest_gives_the_phase(
    states: list[State], phase: str | None
) -> None:
    """The replica that is furthest along determines the phase; a warm pool has none."""
    assert forecast(pool(*states), 1, 105.0).phase == phase


def test_who_waits_for_room_is_being_placed() -> None:
    """A pool with calls but no replica is in the phase `place`."""
    waiting = pool()
    waiting.blocked = "no device has room"

    assert forecast(waiting, 1, 105.0).phase == "place"


def test_the_one_that_is_idle_for_longest_sleeps_first() -> None:
    """The longest idle replica determines the remaining seconds; the forecast lists the devices."""
    shown = forecast(pool(State.READY, State.READY, max=2), 0, 105.0)

    assert shown.sleeps_in_s == 25.0
    assert shown.devices == ("cpu:0", "cpu:1")


@pytest.mark.parametrize(("busy", "floor"), [(1, 0), (0, 1)])
def test_what_is_busy_or_a_floor_does_not_sleep(busy: int, floor: int) -> None:
    """A busy pool, and one at its `min`, has no time of sleep."""
    assert forecast(pool(State.READY, min=floor), busy, 105.0).sleeps_in_s is None


def test_what_is_overdue_sleeps_now() -> None:
    """After a refusal or a late Tick the remaining time is not negative."""
    assert forecast(pool(State.READY), 0, 500.0).sleeps_in_s == 0.0
