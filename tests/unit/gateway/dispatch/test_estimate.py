"""Estimates of when to try again."""

from __future__ import annotations

import pytest

from gateway.dispatch.estimate import SAMPLES_MAX, Pace
from registry.exchange import Expected


def answering(*ends: float, cold_start_s: float = 0.0) -> Pace:
    pace = Pace(Expected(0.0, 0.0, cold_start_s, 10)) if cold_start_s else Pace()
    for end in ends:
        pace.answered(end)
    return pace


@pytest.mark.parametrize(
    ("cold_start_s", "waking_s", "expected"),
    [(0.0, 0.0, 5), (12.0, 0.0, 12), (12.0, 3.5, 9), (12.0, 30.0, 1), (900.0, 0.0, 60)],
)
def test_a_cold_function_is_judged_by_its_past(
    cold_start_s: float, waking_s: float, expected: int
) -> None:
    """What is left until most cold starts are over, in whole seconds between 1 and 60."""
    pace = answering(cold_start_s=cold_start_s)

    assert pace.retry_cold_s(waking_s) == expected


@pytest.mark.parametrize(
    ("samples", "waking_s", "budget_s", "expected"),
    [
        (5, 0.0, 1.9, True),
        (5, 0.0, 2.0, False),
        (4, 0.0, 0.0, False),
        (5, 1.0, 0.9, True),
        (5, 1.0, 1.0, False),
        (5, 9.0, 0.0, False),
    ],
)
def test_a_cold_start_may_be_too_long_for_somebody(
    samples: int, waking_s: float, budget_s: float, *, expected: bool
) -> None:
    """Nine of ten take longer than the caller would wait, and there were enough of them."""
    pace = Pace(Expected(2.0, 3.0, 9.0, samples))

    assert pace.is_too_long(waking_s, budget_s) is expected


def test_a_warm_function_is_judged_by_its_rate() -> None:
    """Ten answers in five seconds are two a second, so thirty calls ahead need fifteen."""
    pace = answering(*(95.0 + n / 2 for n in range(10)), cold_start_s=40.0)

    assert pace.retry_warm_s(30, 100.0) == 15


def test_old_answers_say_nothing() -> None:
    """What was answered more than ten seconds ago is no present rate."""
    assert answering(80.0, 85.0).retry_warm_s(3, 100.0) == 5


def test_a_single_answer_just_now_is_no_division_by_zero() -> None:
    """The time span is at least a tenth of a second."""
    assert answering(100.0).retry_warm_s(40, 100.0) == 4


def test_the_past_is_bounded() -> None:
    """Only the last answers are kept: their rate is as good."""
    pace = answering(*(90.0 + n / 1000 for n in range(10 * SAMPLES_MAX)))

    assert pace.retry_warm_s(10 * SAMPLES_MAX, 100.25) == 11
