"""What is read ahead."""

from __future__ import annotations

import pytest

from pool_manager.core.policy.reading import Portion, plan
from runtime_image.contract.model import ModelSpec, Preparation, SessionPlan

FILES = [Portion("handler.py", 10), Portion("model.onnx", 50), Portion("weights.data", 300)]
PLAIN = ModelSpec("digits@1", model="model.onnx")


def prepared(file: str) -> ModelSpec:
    return ModelSpec("digits@1", preparation=Preparation("cpu/x", SessionPlan(file)))


def test_the_largest_file_is_read_first() -> None:
    """It is what the replica will wait for."""
    assert plan(FILES, PLAIN, 1000) == FILES[::-1]


@pytest.mark.parametrize(
    ("bytes_max", "expected"),
    [
        (0, []),
        (200, [Portion("weights.data", 200)]),
        (320, [Portion("weights.data", 300), Portion("model.onnx", 20)]),
    ],
)
def test_no_more_is_read_than_allowed(bytes_max: int, expected: list[Portion]) -> None:
    """The last file that fits in part is read in part."""
    assert plan(FILES, PLAIN, bytes_max) == expected


def test_of_a_prepared_model_only_that_is_read() -> None:
    """The files it was made of are not touched at a start."""
    files = [*FILES, Portion(".prepared/ab/quick.onnx", 5), Portion(".prepared/cd/fast.onnx", 9)]

    assert plan(files, prepared(".prepared/ab/quick.onnx"), 1000) == [files[3]]
    assert plan(FILES, prepared("model.onnx"), 1000) == FILES[::-1]


def test_empty_files_are_not_read() -> None:
    """There is nothing in them."""
    assert plan([Portion("a", 0)], PLAIN, 1000) == []
