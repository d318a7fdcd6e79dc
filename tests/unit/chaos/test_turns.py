"""How turns are judged."""

from __future__ import annotations

from tests.chaos.turns import longest_gap_s


def test_the_longest_time_without_an_answer_counts() -> None:
    """Of all times between two answers, whatever their order of length."""
    assert longest_gap_s([1.0, 2.0, 7.5, 8.0]) == 5.5


def test_one_time_alone_is_no_gap() -> None:
    """Without a second one nothing was waited for, which is for the caller to judge."""
    assert longest_gap_s([1.0]) == 0.0
