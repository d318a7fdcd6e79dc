"""Estimates of when to try again."""

from __future__ import annotations

import pytest

from gateway.dispatch.estimate import SAMPLES_MAX, Pace


def answering(*ends: float, cold_start_s: float = 0.0) -> Pace:
    pace = Pace(cold_start_s)
    for end in ends:
        pace.answered(end)
    return pace


@pytest.mark.parametrize(
    ("cold_start_s", "waited_s", "expected"),
    [(0.0, 0.0, 5), (12.0, 0.0, 12), (12.0, 3.5, 9), (12.0, 30.0, 1), (900.0, 0.0, 60)],
)
def test_a_cold_function_is_judged_by_its_past(
    cold_start_s: float, waited_s: float, expected: int
) -> None:
    """What is left of a usual cold start, in whole seconds between 1 and 60."""
    assert answering(cold_start_s=cold_start_s).retry_after_s(3, waited_s, 100.0) == expected


def test_a_warm_function_is_judged_by_its_rate() -> None:
    """Ten answers in five seconds are two a second, so thirty calls ahead need fifteen."""
    pace = answering(*(95.0 + n / 2 for n in range(10)), cold_start_s=40.0)

    assert pace.retry_after_s(30, 0.0, 100.0) == 15


def test_old_answers_say_nothing() -> None:
    """What was answered more than ten seconds ago is no present rate."""
    assert answering(80.0, 85.0).retry_after_s(3, 0.0, 100.0) == 5


def test_a_single_answer_just_now_is_no_division_by_zero() -> None:
    """The time span is at least a tenth of a second."""
    assert answering(100.0).retry_after_s(40, 0.0, 100.0) == 4


def test_the_past_is_bounded() -> None:
    """Only the last answers are kept: their rate is as good."""
    pace = answering(*(90.0 + n / 1000 for n in range(10 * SAMPLES_MAX)))

    assert pace.retry_after_s(10 * SAMPLES_MAX, 0.0, 100.25) == 11
