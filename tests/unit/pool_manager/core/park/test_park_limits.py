"""Limits of a park, and the parks that went wrong."""

from __future__ import annotations

import pytest

from pool_manager.core.pool import WRONG_SPAN_S, ParkRecord
from pool_manager.core.state import ParkSpec, PoolSpec, Replica, State, limit_s, state_limit_s
from runtime_image.contract.server import QUIESCE_S

PARK = ParkSpec(3.0, 1.0, 6_000.0, 500.0, verify_s=4.0, park_s=99.0)


@pytest.mark.parametrize(("measured_s", "limit"), [(0.0, 20.0), (2.0, 20.0), (3.0, 30.0)])
def test_a_limit_is_ten_times_the_measured(measured_s: float, limit: float) -> None:
    """A limit is ten times what was measured, at least 20 s."""
    assert limit_s(measured_s) == limit


@pytest.mark.parametrize(
    ("state", "limit"),
    [
        (State.PARKING, QUIESCE_S + 40.0 + 30.0),
        (State.PROVING, 20.0),
        (State.PARKED, 99.0),
        (State.UNPARKING, 20.0),
        (State.VERIFYING, 40.0),
        (State.READY, float("inf")),
    ],
)
def test_each_state_has_its_limit(state: State, limit: float) -> None:
    """The sample is asked before the sleep, too; without a profile the least limits hold."""
    replica = Replica("r1", "a", ("g0",), "serve", 0.0, state)

    assert state_limit_s(replica, PoolSpec("a", park=PARK)) == limit
    assert state_limit_s(replica, PoolSpec("a")) >= 20.0


def test_two_within_a_day_are_too_many() -> None:
    """Two that are more than a day apart change nothing; the first reason stays."""
    record = ParkRecord()
    record.add_wrong("one", 0.0)
    record.add_wrong("two", WRONG_SPAN_S + 1.0)
    assert record.off == ""

    record.add_wrong("three", WRONG_SPAN_S + 2.0)
    record.add_wrong("four", WRONG_SPAN_S + 3.0)

    assert record.off == "2 went wrong within a day, the last one because three"
    assert PARK.return_s == 5.0
