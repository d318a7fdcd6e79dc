"""Agreement of a candidate's outputs with the original's."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from runtime_image.verification.precision.agreement import Agreement, Comparison

NAN, INF = float("nan"), float("inf")


def compared(pairs: list[tuple[Any, Any]], labels: str = "y", name: str = "y") -> Agreement:
    """Compare one output over several samples."""
    comparison = Comparison(labels)
    for original, candidate in pairs:
        comparison.add({name: np.array(original)}, {name: np.array(candidate)})
    return comparison.agreement()


def test_cosine_is_taken_over_all_samples_together() -> None:
    """One number per sample has a direction only together with the others."""
    found = compared([([[3.0]], [[3.0]]), ([[4.0]], [[-4.0]])], labels="")

    assert (found.samples, found.output, found.largest_difference) == (2, "y", 8.0)
    assert found.cosine == pytest.approx((9 - 16) / 25)


def test_the_worst_output_counts() -> None:
    """An output that breaks cannot hide behind a good one."""
    comparison = Comparison("")
    comparison.add(
        {"good": np.array([1.0, 2.0]), "bad": np.array([1.0, 0.0])},
        {"good": np.array([1.0, 2.5]), "bad": np.array([0.0, 1.0])},
    )

    found = comparison.agreement()

    assert (found.output, found.cosine, found.largest_difference) == ("bad", 0.0, 1.0)


def test_labels_are_the_largest_entries() -> None:
    """A sample keeps its label if each of its rows does."""
    pairs = [
        ([[0.1, 0.9]], [[0.4, 0.6]]),
        ([[0.1, 0.9]], [[0.6, 0.4]]),
        ([[0.1, 0.9], [0.9, 0.1]], [[0.1, 0.9], [0.1, 0.9]]),
        ([0.1, 0.9], [0.2, 0.8]),
    ]

    assert compared(pairs[:2]).same_label == 0.5
    assert compared(pairs[2:3]).same_label == 0.0
    assert compared(pairs, labels="other").same_label is None


@pytest.mark.parametrize("values", [([1, 2], [1, 3]), (["a"], ["b"]), ([True], [False])])
def test_integers_and_strings_must_be_equal(values: tuple[Any, Any]) -> None:
    """They have no cosine: a sample counts like one that changes its label."""
    found = compared([(values[0], values[0]), values], labels="")

    assert found == Agreement(2, None, "", None, 0.5)


@pytest.mark.parametrize(
    ("original", "candidate", "reason"),
    [
        ([1.0, 2.0], [1.0, NAN], "output y has NaN or infinity where the original has numbers"),
        ([1.0, 2.0], [1.0, INF], "output y has NaN or infinity where the original has numbers"),
        (
            [1.0, NAN],
            [1.0, 2.0],
            "output y has other values where the original has NaN or infinity",
        ),
        (
            [1.0, INF],
            [1.0, -INF],
            "output y has other values where the original has NaN or infinity",
        ),
        ([1.0], [1.0, 2.0], r"output y has shape [2], the original's [1]"),
        ([1.0], [1], "output y is not of the original's type"),
    ],
)
def test_incomparable_outputs_break_a_candidate(original: Any, candidate: Any, reason: str) -> None:
    """No figure can excuse it, and later samples change nothing."""
    found = compared([(original, candidate), ([1.0], [1.0])])

    assert found == Agreement(1, broken=reason)


def test_equal_infinities_are_left_out() -> None:
    """Log-probabilities are often -inf, and may be NaN where an input is missing."""
    found = compared([([1.0, -INF, NAN], [1.5, -INF, NAN])], labels="")

    assert (found.cosine, found.largest_difference) == (1.0, 0.5)


@pytest.mark.parametrize(
    ("original", "candidate", "cosine"),
    [([0.0], [0.0], 1.0), ([0.0], [1e-9], 0.0), ([1.0], [0.0], 0.0), ([1e300], [-1e308], 0.0)],
)
def test_figures_are_always_numbers(original: Any, candidate: Any, cosine: float) -> None:
    """Zero vectors have no direction, and squares of huge values overflow."""
    with np.errstate(over="ignore"):
        found = compared([(original, candidate)], labels="")

    assert found.cosine == cosine
    assert found.largest_difference is not None
    assert 0 <= found.largest_difference <= sys.float_info.max


def test_missing_outputs_and_no_samples_are_broken() -> None:
    """A candidate that was compared with nothing is not good."""
    comparison = Comparison("")
    assert comparison.agreement() == Agreement(0, broken="no sample was compared")

    comparison.add({"y": np.zeros(1)}, {})
    assert comparison.agreement().broken == "output y is not of the original's type"


@pytest.mark.parametrize("value", [[NAN, NAN], [INF, -INF], []])
def test_outputs_without_a_number_agree_about_nothing(value: Any) -> None:
    """No cosine of 1 is claimed for what was not compared. Beside another output they count for
    nothing; a label of NaN is none."""
    pairs = [(np.array([value], np.float32),) * 2] * 3
    found = compared(pairs)
    assert (found.cosine, found.same_label) == (None, None)
    assert found.broken.startswith(
        "nothing could be compared: the original's outputs have only NaN"
    )

    comparison = Comparison("z")
    for _ in range(3):
        comparison.add(*[{"y": np.array([1.0, 2.0]), "z": np.array([value], np.float32)}] * 2)
    found = comparison.agreement()
    assert (found.samples, found.cosine, found.output) == (3, pytest.approx(1.0), "y")
    assert (found.largest_difference, found.same_label) == (0.0, None)
