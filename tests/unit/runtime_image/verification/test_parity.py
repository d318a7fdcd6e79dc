"""Agreement of two sessions, output by output."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from runtime_image.codecs.bfloat16 import BF16
from runtime_image.contract.compiled import OutputParity
from runtime_image.verification.parity import WORST, Parity, refutation


def floats(*values: float) -> Any:
    return np.array(values, np.float32)


def compared(*pairs: tuple[Any, Any]) -> OutputParity:
    parity = Parity()
    for wanted, got in pairs:
        parity.add({"y": wanted}, {"y": got})
    assert parity.samples == len(pairs)
    [one] = parity.outputs()
    json.dumps(one, allow_nan=False)
    return one


def test_equal_outputs_agree() -> None:
    """Zeros, infinities and NaN in the same places included."""
    one = compared(
        (floats(1, -2), floats(1, -2)),
        (floats(0, 0), floats(0, 0)),
        (floats(np.nan, np.inf, 1), floats(np.nan, np.inf, 1)),
        (np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32)),
    )

    assert one["largest_difference"] == one["relative_difference"] == 0
    assert one["cosine"] == pytest.approx(1)


def test_the_difference_is_relative_to_the_largest_value() -> None:
    """Of all samples, the worst counts for every figure."""
    one = compared((floats(100, 1), floats(100, 2)), (floats(1, 0), floats(1, 0.5)))

    assert one["largest_difference"] == 1
    assert one["relative_difference"] == 0.5
    assert one["cosine"] == pytest.approx(1 / np.sqrt(1.25))


@pytest.mark.parametrize(
    "got",
    [
        floats(1, 2, 3),
        np.array([1, 2], np.float64),
        floats(1, np.nan),
        floats(1, np.inf),
        None,
        [1.0, 2.0],
    ],
)
def test_outputs_that_cannot_be_compared_are_the_worst(got: Any) -> None:
    """Another shape or type, or a value that is not finite in one of them only."""
    one = compared((floats(1, 2), got))

    assert (one["largest_difference"], one["relative_difference"]) == (WORST, WORST)
    assert one["cosine"] == -1
    assert compared((floats(0, 0), floats(0, 1)))["relative_difference"] == WORST


def test_labels_differ_by_their_share_of_all_samples() -> None:
    """One of eight labels is an eighth; a missing output is the worst."""
    labels = np.array([1, 2], np.int64)

    one = compared(*[(labels, labels)] * 3, (labels, np.array([1, 7], np.int64)))

    assert one["relative_difference"] == one["largest_difference"] == 1 / 8
    assert one["cosine"] == 7 / 8
    texts = np.array(["a", "b"], dtype=object)
    assert compared((texts, texts))["relative_difference"] == 0


def test_bfloat16_is_compared_by_value() -> None:
    """Its type is none of NumPy's own."""
    one = compared((floats(1, 2).astype(BF16), floats(1, 3).astype(BF16)))

    assert one["relative_difference"] == 0.5


def test_the_worst_output_is_named_with_figures() -> None:
    """The refutation says which output, by how much, and what was tolerated."""
    parity = Parity()
    parity.add({"a": floats(1), "b": floats(1, 1)}, {"a": floats(1), "b": floats(1, 1.5)})

    assert refutation(parity.outputs(), 0.5) == ""
    assert refutation(parity.outputs(), 0.01) == (
        "output b of the compiled model differs by 0.5 of its largest value, the tolerance is 0.01"
        " (largest difference 0.5, cosine similarity 0.980581)"
    )
    assert refutation([], 0.01) == ""
