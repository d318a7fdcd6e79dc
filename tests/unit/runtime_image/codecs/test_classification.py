"""Outputs as their best classes."""

from typing import Any

import numpy as np
import pytest

from runtime_image.codecs import classification
from runtime_image.codecs.classification import classify
from runtime_image.contract.errors import BAD_INPUT, RequestError


def classes(array: Any, count: int, *labels: str, is_batched: bool = True) -> Any:
    found = classify("y", array, "FP32", count, labels, is_batched=is_batched)
    assert found.dtype == object
    return found.tolist()


SCORES = np.array([[1, 5, 10, 4], [0.25, -1, 0, 0.5]], np.float32)


def test_rows_of_a_batch_have_their_own_classes() -> None:
    """The best values of each row come first, with their index, and six digits after the point."""
    assert classes(SCORES, 2) == [["10.000000:2", "5.000000:1"], ["0.500000:3", "0.250000:0"]]


def test_without_a_batch_the_output_is_one_row() -> None:
    """For a model without batching all elements are classes of one row, without a first axis."""
    assert classes(SCORES, 3, is_batched=False) == ["10.000000:2", "5.000000:1", "4.000000:3"]
    assert classes(np.float32(2).reshape(()), 1, is_batched=False) == ["2.000000:0"]


def test_all_axes_but_the_first_are_classes() -> None:
    """The elements of a row with several axes are numbered in row-major order."""
    assert classes(SCORES.reshape(2, 2, 2), 1) == [["10.000000:2"], ["0.500000:3"]]
    assert classes(SCORES[:, 0], 5) == [["1.000000:0"], ["0.250000:0"]]


def test_labels_follow_the_index() -> None:
    """A class with a label has it; others have none."""
    assert classes(SCORES[:1], 3, "a", "b", "c:d") == [
        ["10.000000:2:c:d", "5.000000:1:b", "4.000000:3"]
    ]


def test_more_classes_than_there_are_become_all() -> None:
    """A count beyond the classes returns them all."""
    assert [len(row) for row in classes(SCORES, 9)] == [4, 4]


def test_integers_have_no_point() -> None:
    """Integers are written as such and compared exactly, at the ends of their ranges, too."""
    low, high = -(2**63), 2**63 - 1
    assert classes(np.array([[low, 0, high, high - 1]]), 4) == [
        [f"{high}:2", f"{high - 1}:3", "0:1", f"{low}:0"]
    ]
    assert classes(np.array([[0, 2**64 - 1, 3]], np.uint64), 2) == [[f"{2**64 - 1}:1", "3:2"]]


def test_equal_values_keep_their_order_and_nan_is_last() -> None:
    """Equal values are ordered by index; NaN is no class's best value."""
    array = np.array([[np.nan, 1, np.inf, 1, -np.inf]], np.float16)
    assert classes(array, 5) == [["inf:2", "1.000000:1", "1.000000:3", "-inf:4", "nan:0"]]


@pytest.mark.parametrize("datatype", ["BOOL", "BYTES"])
def test_only_numbers_have_classes(datatype: str) -> None:
    """An output of other elements is the client's mistake."""
    with pytest.raises(
        RequestError, match=f"numbers for a classification, got {datatype}"
    ) as caught:
        classify("y", np.zeros((1, 2), bool), datatype, 1, (), is_batched=True)
    assert caught.value.code == BAD_INPUT


def test_the_number_of_texts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a row nor the whole answer may have more elements than the limits."""
    monkeypatch.setattr(classification, "ENTRIES_MAX", 7)
    assert len(classes(SCORES, 3)) == 2
    with pytest.raises(RequestError, match="got 4 classes and 8 elements"):
        classes(SCORES, 4)
    monkeypatch.setattr(classification, "CLASSES_MAX", 3)
    with pytest.raises(RequestError, match="at most 3 classes"):
        classes(SCORES, 1)
