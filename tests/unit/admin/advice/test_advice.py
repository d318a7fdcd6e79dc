"""Tests of the advice on idle times, computed from recorded history."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admin.advice.advice import (
    PLAYED_MAX,
    PLAYED_MIN,
    UNKNOWN_RUN_S,
    Case,
    RecordedSpan,
    advise,
    is_blurred,
    played,
    weigh,
)
from admin.advice.load_model import ServerShape
from admin.documents.history import Advice, AdviceBasis
from registry.catalog import Deployed
from registry.model.functions import ExchangeLimits, Limits, Scaling
from registry.model.history import ColdStart
from registry.model.profiles import Profile
from registry.store.timeline import BucketUse, Seconds, Span
from tests.support.doses import amount
from tests.support.nouns import function, revision, server_deployed

FROM = 1_800_000_000
SPAN = Span(FROM, FROM + 86_400.0 + 30.0, 600)
PROFILE = Profile("b", "onnx", "cpu", 100.0, 10.0, {1: 4.0, 8: 9.0}, True)
PAST = RecordedSpan([(FROM + 60 * n, 5) for n in range(10)], [], [], [], 1.5)


def deployed(profile: Profile | None = PROFILE, **changes: Any) -> Deployed:
    made = replace(function(), **changes)
    return Deployed(made, revision(), profile)


def cold_start(total_ms: float, number: int = 1, outcome: str = "ready") -> ColdStart:
    phases = {"load": total_ms - 20.0, "first_run": 20.0}
    return ColdStart("default", "digits", number, "r1", "cpu", FROM, total_ms, phases, outcome)


def weighed(past: RecordedSpan = PAST, **changes: Any) -> tuple[Advice, Case | None]:
    return weigh(deployed(**changes), SPAN, past)


def test_a_case_has_the_functions_own_times_and_settings() -> None:
    """A case uses the median of this revision's cold starts up to the first run, and the busy time
    per request since busy time is recorded."""
    past = replace(
        PAST,
        arrivals=[(FROM, 1000), (FROM + 600, 50), (FROM + 1200, 50)],
        use=[BucketUse(FROM + at_s, "cuda:0", Seconds(1.0, 2.0, 3.0)) for at_s in (600, 1200)],
        cold_starts=[
            cold_start(220.0),
            cold_start(320.0),
            cold_start(9000.0),
            cold_start(5.0, number=2),
            cold_start(5.0, outcome="failed"),
        ],
    )

    found, case = weighed(past, scaling=Scaling(1, 3, 60.0), limits=Limits(wait_s=7.0))

    assert found.basis == AdviceBasis(300.0, 60.0, 3)
    assert found.requests == 50
    assert case is not None
    assert (case.from_s, case.to_s) == (FROM, FROM + 86_400)
    assert (case.min, case.max, case.idle_s) == (1, 3, 60.0)
    assert case.wait_s == 7.0
    assert any("min is 1" in note for note in found.notes)
    assert any("other functions" in note for note in found.notes)


def test_without_a_history_of_its_own_the_trial_speaks() -> None:
    """Without cold starts of its own, a case uses the trial's estimate and the profile's single
    run; without a profile, a guess. Each has a note."""
    (found, _), (blind, _) = weighed(), weighed(profile=None)

    assert found.basis == AdviceBasis(1500.0, 4.0, 0)
    assert any("is an estimate" in note for note in found.notes)
    assert blind.basis.run_ms == UNKNOWN_RUN_S * 1e3
    assert any("10 ms" in note for note in blind.notes)


def test_too_little_is_no_case() -> None:
    """Fewer than ten requests give no advice, only a note that says so."""
    found, case = weighed(replace(PAST, minutes=[(FROM, 9)]))

    assert case is None
    assert found.notes == [
        "no advice: 9 requests were recorded in 24.0 h, at least 10 are needed; try again later,"
        " or with more hours"
    ]


def test_nothing_is_said_of_the_time_before_it_was_deployed() -> None:
    """The time before the first deploy is not counted: it would look idle."""
    found, _ = weighed(created_s=FROM + 90.0)

    assert (found.from_s, found.requests) == (FROM + 60, 45)
    assert any("first deployed 24.0 h ago" in note for note in found.notes)


@pytest.mark.parametrize(
    ("idle_s", "text"),
    [(300.0, "idle 0 s is left out"), (0.0, "the number of its cold starts is too high")],
)
def test_busy_minutes_have_a_note(idle_s: float, text: str) -> None:
    """A note names each idle time that counts per minute cannot judge."""
    busy = replace(PAST, minutes=[(FROM, 100_000)])

    found, _ = weighed(busy, scaling=Scaling(idle_s=idle_s))

    assert any(text in note for note in found.notes)


@pytest.mark.parametrize("limits", [None, ExchangeLimits(concurrency=4, drain_s=5.0)])
def test_a_server_function_has_its_own_concurrency(limits: ExchangeLimits | None) -> None:
    """The case of a server function has its exchanges at once, their time to end, and no batch."""
    _, case = weigh(server_deployed(exchange=limits, limits=Limits(wait_s=7.0)), SPAN, PAST)

    assert case is not None
    assert case.server == (ServerShape(4, 5.0, 7.0) if limits else ServerShape(32, 600.0, 7.0))
    assert case.batch == 1


HOUR = 3600.0
CASE = Case(0.0, HOUR, [(600, 1), (1200, 1), (1440, 1)], 2.0, 0.5, 300.0)


def test_a_small_case_is_as_worked_out_by_hand() -> None:
    """Three calls have the figures worked out by hand.

    The third call comes less than five minutes after the second. With 10 s each call is a cold
    start of 2 s, with 300 s the third is warm, with an hour only the first is cold. The device is
    taken from each cold start on: 2 s of loading, the run, the idle time, and up to two seconds
    until the next tick.
    """
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


def test_exchanges_of_a_server_overlap() -> None:
    """Exchanges that come together run at once in one replica, and runs of a model one by one."""
    together = replace(CASE, minutes=[(600, 12)], run_s=60.0, wait_s=HOUR)

    (model,) = advise(together, ())
    (server,) = advise(replace(together, server=ServerShape(32, 600.0, HOUR)), ())

    assert server.cold_starts == 1
    assert server.device_s < 60.0 + 60.0 + 300.0 + 5.0 < model.device_s


def test_the_same_case_has_the_same_rows() -> None:
    """The simulation is deterministic: the same case gives the same rows."""
    assert advise(CASE) == advise(CASE)


def test_a_floor_makes_all_idle_times_alike() -> None:
    """With min 1 the replica never stops, so no idle time saves anything."""
    rows = advise(replace(CASE, min=1))

    assert {(row.cold_starts, row.device_s) for row in rows} == {(1, rows[0].device_s)}
    assert rows[0].device_s > HOUR - 10.0


def test_busy_minutes_are_thinned_where_that_changes_nothing() -> None:
    """Minutes with too many requests are simulated with fewer, weighted arrivals.

    An idle time shorter than the gaps between these arrivals has no row, unless it is the present
    one. The load in the other rows is that of all requests.
    """
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
def test_simulated_arrivals_are_closer_than_the_idle_time(idle_s: float) -> None:
    """Between the bounds, two simulated arrivals are always less than the idle time apart."""
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
    """A longer idle time never causes more cold starts, nor less device time beyond the tolerance,
    for one function with a device of its own.

    This holds if the idle times differ by at least a cold start, the runs and two clock ticks:
    callers that arrive during a start share it, so a slightly longer idle time can move the next
    start to a moment where no other caller shares it.
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
