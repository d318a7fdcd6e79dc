"""Confidence interval of a median, and the table of pairs."""

from __future__ import annotations

import pytest

from benchmarks import versions


@pytest.mark.parametrize(
    ("size", "expected"),
    [(1, (0, 0)), (5, (0, 4)), (6, (0, 5)), (15, (3, 11)), (16, (3, 12)), (100, (39, 60))],
)
def test_the_interval_is_that_of_the_sign_test(size: int, expected: tuple[int, int]) -> None:
    """The ranks equal those of published tables of the sign test, counted from 0."""
    assert versions.interval([*map(float, reversed(range(size)))]) == expected


def test_a_report_has_a_row_for_each_load_and_one_for_all() -> None:
    """Ratios are those of pairs, not of medians."""
    pairs = [{"a": [1.0, 2.0], "b": [4.0, 2.0]}, {"a": [2.0, 4.0], "b": [2.0, 1.0]}]

    assert versions.report(pairs)[2:] == [
        "| a | 1.5 | 3.0 | 2.000 | 2.000 to 2.000 |",
        "| b | 3.0 | 1.5 | 0.500 | 0.500 to 0.500 |",
        "| all | | | 1.000 | 1.000 to 1.000 |",
    ]
