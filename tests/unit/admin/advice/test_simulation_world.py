"""The real machine and dispatcher in a world small enough to be worked out by hand."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from admin.advice.load_model import Arrival, Conditions, Figures, Function
from admin.advice.simulation import World


def play(*calls: Arrival, run_s: float = 0.1, load_s: float = 2.0, **changes: Any) -> Figures:
    """An hour, or what `changes` say, of one function."""
    given = {"start_s": 1.0, "release_s": 0.0, "hours": 1 / 60, "idle_s": 10.0, "max": 1}
    conditions = Conditions(**{**given, **changes})
    one = Function("default/f@1", run_s, load_s, 0.0, iter(calls), Random(0), Random(0))
    return World(conditions, [one]).run().figures


def test_one_call_is_one_cold_start() -> None:
    """It waits for start, bind and load, is answered, and its replica goes when it was idle."""
    figures = play(Arrival(5.2))

    assert (figures.requests, figures.answered, figures.held) == (1, 1, 1)
    assert (figures.starts, figures.cold_starts, figures.idle_stops) == (1, 1, 1)
    assert figures.held_wait_s == pytest.approx(3.002, abs=1e-6)
    assert figures.loading_s == pytest.approx(3.001, abs=1e-6)
    assert figures.busy_s == 0.1
    assert 10.0 <= figures.ready_s <= 12.0


def test_a_warm_call_waits_for_nobody() -> None:
    """The second finds the replica of the first."""
    figures = play(Arrival(5.2), Arrival(12.0))

    assert (figures.requests, figures.held, figures.cold_starts) == (2, 1, 1)


def test_a_call_that_stands_for_several_counts_as_many() -> None:
    """They came, waited and were answered; their run takes as long as all of them."""
    figures = play(Arrival(5.2, 4))

    assert (figures.requests, figures.answered, figures.held) == (4, 4, 4)
    assert figures.busy_s == pytest.approx(0.4)
    assert figures.held_wait_s == pytest.approx(4 * 3.002, abs=1e-6)


def test_another_replica_of_a_warm_function_is_no_cold_start() -> None:
    """Load that one cannot take starts a second, which nobody found cold."""
    calls = [Arrival(5.0 + n / 10) for n in range(300)]

    figures = play(*calls, run_s=0.5, max=2, batch=1)

    assert figures.starts == 2
    assert figures.cold_starts == 1


def test_who_waits_for_too_long_leaves() -> None:
    """A wait budget shorter than the cold start is over before."""
    figures = play(Arrival(5.2), wait_s=1.0)

    assert (figures.expired, figures.answered) == (1, 0)
    assert figures.held_wait_s == pytest.approx(1.0)


def test_a_floor_keeps_its_replica() -> None:
    """With min 1 nothing goes, and only whoever comes before it is ready waits."""
    figures = play(Arrival(0.5), Arrival(30.0), min=1, idle_s=1.0)

    assert (figures.starts, figures.idle_stops, figures.held) == (1, 0, 1)


def test_standbys_are_given_away() -> None:
    """A cold start with a standby has no start phase."""
    figures = play(Arrival(20.2), standbys=1, device_kind="cpu", devices=2)

    assert figures.held_wait_s == pytest.approx(2.002, abs=1e-6)


def test_callers_who_ask_again_are_bounded() -> None:
    """A closed loop of two: each asks again when it was answered and has thought."""
    figures = play(closed=2, think_s=1.0, run_s=0.5)

    assert figures.answered > 20
    assert figures.requests - figures.answered <= 2
