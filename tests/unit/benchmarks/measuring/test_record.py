"""Medians, ratios per round, and the order of rounds."""

from __future__ import annotations

from functools import partial

import pytest

from benchmarks.measuring.record import (
    Figures,
    Record,
    differences,
    interleaved,
    percentile,
    ratios,
    spread,
)


def test_rounds_go_forth_and_back() -> None:
    """Each case runs once per round, and the order alternates, so that no case always follows the
    same one."""
    turns: list[str] = []

    def case(name: str) -> Figures:
        turns.append(name)
        return {"ms": float(len(turns))}

    record = interleaved({name: partial(case, name) for name in "abc"}, 3)

    assert "".join(turns) == "abccbaabc"
    assert record.of("ms") == {"a": [1, 6, 7], "b": [2, 5, 8], "c": [3, 4, 9]}


def test_a_record_keeps_metrics_apart() -> None:
    """A case has only the metrics that it measured."""
    record = Record()
    record.add("one", {"ms": 1.0, "us": 2.0})
    record.add("other", {"ms": 3.0})

    assert record.metrics == ["ms", "us"]
    assert record.of("us") == {"one": [2.0]}
    assert record.of("ms", ["other", "nobody"]) == {"other": [3.0]}
    assert record.only("us", "none").metrics == ["us"]


def test_a_ratio_is_taken_within_each_round() -> None:
    """Ratios are taken within each round, so a round slower by 10x changes nothing."""
    assert ratios([2.0, 20.0, 3.0], [1.0, 10.0, 1.0]) == spread([2.0, 2.0, 3.0])
    assert differences([2.0, 20.0, 3.0], [1.0, 10.0, 1.0]) == spread([1.0, 10.0, 2.0])


@pytest.mark.parametrize(("values", "reference"), [([1.0], []), ([], []), ([1.0], [0.0])])
def test_there_is_no_ratio_to_nothing(values: list[float], reference: list[float]) -> None:
    """Rounds that do not pair up and a reference of zero give no ratio."""
    assert ratios(values, reference) is None


def test_a_spread_has_middle_and_ends() -> None:
    """The median of an even count lies between the two middle values; no values give no spread."""
    at = spread([4.0, 1.0, 2.0, 3.0])

    assert (at.median, at.min, at.max) == (2.5, 1.0, 4.0)
    with pytest.raises(ValueError, match="at least one"):
        spread([])


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1.0), (0.5, 50.0), (0.99, 99.0), (0.991, 100.0), (1.0, 100.0)]
)
def test_a_percentile_is_one_of_the_values(share: float, expected: float) -> None:
    """A percentile is the smallest value that this share does not exceed."""
    assert percentile([float(value) for value in range(100, 0, -1)], share) == expected


def test_a_percentile_of_nothing_is_zero_and_its_share_is_checked() -> None:
    """No values give 0, and the share is validated."""
    assert percentile([], 0.99) == 0.0
    with pytest.raises(ValueError, match=r"expected 0 to 1, got 99"):
        percentile([1.0], 99)
