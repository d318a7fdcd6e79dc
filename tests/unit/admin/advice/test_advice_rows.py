"""A past played once for each idle time."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admin.advice.advice import PLAYED_MAX, PLAYED_MIN, Case, advise, is_blurred, played
from tests.support.doses import amount

HOUR = 3600.0
CASE = Case(0.0, HOUR, [(600, 1), (1200, 1), (1440, 1)], 2.0, 0.5, 300.0)


def test_a_small_case_is_as_worked_out_by_hand() -> None:
    """Three calls, the last at most five minutes after the second: with 10 s each is a cold start
    of 2 s, with 300 s the last is warm, with an hour only the first is cold. The device is taken
    from each cold start on: 2 s of loading, the run, the idle time, and up to two seconds until
    the clock looks."""
    rows = {row.idle_s: row for row in advise(CASE, (10.0, 3600.0))}

    assert [(row.cold_starts, row.held) for row in rows.values()] == [(3, 3), (2, 2), (1, 1)]
    for row in rows.values():
        assert row.waited_s == pytest.approx(2.0 * row.held, abs=0.01)
    assert rows[10.0].device_s == pytest.approx(3 * (2.0 + 0.5 + 10.0 + 1.0), abs=3.0)
    assert rows[10.0].idle_device_s == pytest.approx(3 * 11.0, abs=3.0)
    whole_s = rows[3600.0].device_s
    assert HOUR - 660.0 - 2.0 <= whole_s <= HOUR - 600.0
    assert rows[3600.0].idle_device_s == pytest.approx(whole_s - 2.0 - 1.5, abs=0.1)
    assert [row.is_current for row in rows.values()] == [False, True, False]


def test_the_same_case_has_the_same_rows() -> None:
    """Nothing is drawn that is not drawn the same again."""
    assert advise(CASE) == advise(CASE)


def test_a_floor_makes_all_idle_times_alike() -> None:
    """With min 1 nothing goes, so nothing can be saved."""
    rows = advise(replace(CASE, min=1))

    assert {(row.cold_starts, row.device_s) for row in rows} == {(1, rows[0].device_s)}
    assert rows[0].device_s > HOUR - 10.0


def test_minutes_with_too_many_are_played_where_that_changes_nothing() -> None:
    """An idle time that lies between the arrivals that are played has no row, unless it is the
    present one; the load of the others is that of all requests."""
    busy = replace(CASE, minutes=[(60 * n, 6000) for n in range(60)], run_s=0.005)

    rows = advise(busy, (0.0, 0.5, 10.0, 300.0))

    assert [row.idle_s for row in rows] == [10.0, 300.0]
    for row in rows:
        assert row.cold_starts == 1
        assert row.device_s - row.idle_device_s == pytest.approx(0.5 * HOUR, rel=0.02)
    current = replace(busy, idle_s=0.5)
    assert [row.idle_s for row in advise(current, (0.0,))] == [0.5]
    assert is_blurred(busy, 0.0)
    assert not is_blurred(busy, 1.0)
    assert not is_blurred(CASE, 0.0)


@given(st.floats(0.0, 100_000.0))
def test_what_is_played_is_closer_than_the_idle_time(idle_s: float) -> None:
    """Between the bounds, two arrivals that are played are always less than the idle time apart."""
    most = played(idle_s)

    assert PLAYED_MIN <= most <= PLAYED_MAX
    if idle_s >= 1.0:
        assert 2 * 60.0 / most < idle_s


MINUTES = st.dictionaries(st.integers(0, 59), st.integers(1, 20), max_size=20)


@pytest.mark.slow
@settings(max_examples=amount(8, 20), deadline=None)
@given(MINUTES, st.floats(0.05, 20.0), st.floats(0.001, 3.0), st.floats(0.0, 60.0))
def test_idling_longer_never_starts_more_often_nor_takes_less(
    counts: dict[int, int], cold_s: float, run_s: float, first_s: float
) -> None:
    """Of one function with a device for itself: whenever a replica is there with some idle time,
    one is there with a longer one.

    That holds if the longer one is so by a cold start, the run and the clock's two looks: callers
    who come during a start share it, so a little more idling can move the next start to where
    nobody shares it.
    """
    step_s = cold_s + 20 * run_s + 3.0
    minutes = [(60 * minute, count) for minute, count in sorted(counts.items())]
    case = Case(0.0, HOUR, minutes, cold_s, run_s, first_s)

    rows = advise(case, [first_s + n * step_s for n in range(1, 8)])

    for row, longer in pairwise(rows):
        assert longer.cold_starts <= row.cold_starts
        assert longer.device_s >= row.device_s - 2.0 * max(1, row.cold_starts)
    requests = sum(counts.values())
    for row in rows:
        assert row.held <= requests
        assert 0.0 <= row.idle_device_s <= row.device_s <= HOUR + 1.0
