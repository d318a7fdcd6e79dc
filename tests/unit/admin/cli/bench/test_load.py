"""Plan, tally and result of a load: which calls count."""

from __future__ import annotations

import math
from array import array
from itertools import islice

import pytest

from admin.cli.bench.load import (
    CODES_MAX,
    OTHER,
    LoadPlan,
    LoadResult,
    Tally,
    decode,
    from_json,
    gaps,
    merge,
)

PLAN = LoadPlan("127.0.0.1", 80, 5, seconds=2.0, warmup_s=1.0, calls_max=7, rate=10.0)


def tally(**changes: object) -> Tally:
    """A tally whose warm-up begins at 10 s, window from 11 to 13 s."""
    plan = LoadPlan("h", 1, **{"connections": 1, "seconds": 2.0, "warmup_s": 1.0, **changes})
    return Tally(plan, 10.0)


def test_a_plan_and_its_request_survive_encoding() -> None:
    """The first line has the plan, the request's bytes follow."""
    line, _, request = PLAN.encode(b"POST /\n\n{}").partition(b"\n")

    assert decode(line) == (PLAN, len(request))
    assert request == b"POST /\n\n{}"


@pytest.mark.parametrize(("asked", "count"), [(1, 1), (2, 2), (64, 5)])
def test_processes_share_a_load(asked: int, count: int) -> None:
    """Connections, calls and rate add up to the whole; each process has a connection."""
    shares = PLAN.split(asked)

    assert len(shares) == count
    assert sum(one.connections for one in shares) == 5
    assert sum(one.calls_max for one in shares) == 7
    assert sum(one.rate for one in shares) == pytest.approx(10.0)
    assert min(one.connections for one in shares) >= 1
    assert len({one.seed for one in shares}) == count


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
    assert tally(each=3).is_open(math.inf) is False
    assert tally(each=3).is_open(1e9)


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


def test_results_of_processes_add_up() -> None:
    """Counts add up, times do not; the busiest process is reported, and a reason survives JSON."""
    first = LoadResult(array("d", [1.0]), array("d"), 2.0, 1, 2.0, {"429": 1}, 1, 1, 1, 0.5, 0.1)
    second = LoadResult(
        array("d", [2.0]), array("d"), 1.5, 2, 2.5, {"429": 2, "timeout": 1}, busy=0.9, stopped="x"
    )

    both = from_json(merge([first, second]).to_json())

    assert sorted(both.taken_s) == [1.0, 2.0]
    assert (both.in_window, both.window_s, both.elapsed_s) == (3, 2.0, 2.5)
    assert both.errors == {"429": 3, "timeout": 1}
    assert (both.cut, both.unsent, both.warmup_errors) == (1, 1, 1)
    assert (both.busy, both.starved, both.stopped) == (0.9, 0.1, "x")


def test_gaps_are_poisson_or_fixed() -> None:
    """Both have the rate; only one is regular, and a seed gives the same gaps again."""
    plans = [LoadPlan("h", 1, 1, 1.0, rate=50.0, is_poisson=one, seed=3) for one in (False, True)]

    fixed, random = (list(islice(gaps(one), 2000)) for one in plans)

    assert set(fixed) == {0.02}
    assert len(set(random)) == 2000
    assert sum(random) / 2000 == pytest.approx(0.02, rel=0.1)
    assert random == list(islice(gaps(plans[1]), 2000))
