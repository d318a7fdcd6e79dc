"""Plan, tally and result of a load: which calls count."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from admin.cli.bench.load import CODES_MAX, OTHER, LoadPlan, Tally, gaps
from admin.cli.bench.points import Limits


def tally(**changes: Any) -> Tally:
    """A tally whose warm-up begins at 10 s, window from 11 to 13 s."""
    plan = LoadPlan(1, replace(Limits(seconds=2.0, warmup_s=1.0), **changes))
    return Tally(plan, 10.0)


def test_calls_of_the_warm_up_do_not_count() -> None:
    """A call counts by its start; an answer counts for the rate by its end."""
    one = tally()
    assert [one.starts(at) for at in (10.0, 10.99, 11.0, 12.99)] == [False, False, True, True]
    one.answered(10.99, 11.5, is_counted=False)
    one.answered(11.0, 11.25, is_counted=True)
    one.answered(12.99, 13.5, is_counted=True)
    one.failed("503", 10.5, is_counted=False)

    found = one.result()

    assert list(found.taken_s) == pytest.approx([0.25, 0.51])
    assert (found.in_window, found.window_s, found.elapsed_s) == (2, 2.0, 2.5)
    assert (found.errors, found.warmup_errors, found.cut) == ({}, 1, 0)


def test_the_window_closes_by_time_or_by_calls() -> None:
    """The last allowed call closes the window at its start; a second end changes nothing."""
    one = tally(calls_max=2)
    assert one.is_open(12.9)
    assert not one.is_open(13.0)
    one.starts(11.5)
    one.starts(12.0)
    one.close(99.0)
    assert not one.is_open(12.0)
    assert one.result().window_s == 1.0


def test_an_interrupted_load_counts_the_calls_that_it_cut() -> None:
    """Counted calls without an end are neither answers nor errors; a window may never open."""
    one = tally()
    one.starts(11.0)
    one.starts(11.1)
    one.failed("timeout", 11.4, is_counted=True)
    one.close(11.5)
    found = one.result(stopped="interrupted")
    assert (found.cut, found.failed, found.window_s, found.stopped) == (1, 1, 0.5, "interrupted")

    early = tally()
    early.close(10.2)
    assert early.result().window_s == 0.0


def test_kinds_of_errors_are_bounded() -> None:
    """A server that invents codes fills no memory: later kinds count together."""
    one = tally()
    for number in range(CODES_MAX + 10):
        one.failed(f"500 code_{number}", 12.0, is_counted=True)
    assert len(one.errors) == CODES_MAX + 1
    assert one.errors[OTHER] == 10


def test_gaps_are_poisson_or_fixed() -> None:
    """Both have the rate; only one is regular, and a seed gives the same gaps again."""
    plans = [LoadPlan(1, Limits(), rate=50.0, is_poisson=one, seed=3) for one in (False, True)]

    fixed, random = (list(islice(gaps(one), 2000)) for one in plans)

    assert set(fixed) == {0.02}
    assert len(set(random)) == 2000
    assert sum(random) / 2000 == pytest.approx(0.02, rel=0.1)
    assert random == list(islice(gaps(plans[1]), 2000))
