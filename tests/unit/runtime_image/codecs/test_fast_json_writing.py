"""Outputs of a batch into short JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from runtime_image.codecs.accept import SHORT
from runtime_image.codecs.answer import encode
from runtime_image.codecs.fast_json import PlainWriter
from runtime_image.contract.model import OutputRule
from runtime_image.contract.signature import Signature

NO_RULE = OutputRule()
SCORES = np.array([[0.25, 0.5, 0.25], [1, 0, np.nan], [0, 0, 1]], np.float32)


def single(outputs: dict[str, Any], rule: OutputRule, start: int, stop: int) -> bytes:
    """What the codec for single requests writes of these rows."""
    part = {name: value[start:stop] for name, value in outputs.items()}
    return encode(part, SHORT, Signature("tensors", (), ()), rule, "d@1", "").body


@pytest.mark.parametrize("ranges", [[(0, 1), (1, 2), (2, 3)], [(0, 2), (2, 3)], [(0, 3)]])
@pytest.mark.parametrize(
    "rule", [NO_RULE, OutputRule("s", ("no", 'a "%d"'), 2), OutputRule("", (), 5), OutputRule("z")]
)
def test_answers_are_those_of_single_requests(
    ranges: list[tuple[int, int]], rule: OutputRule
) -> None:
    """Every request has its rows, byte for byte as if it had been alone."""
    outputs = {"s": SCORES, "50%": np.array([[True], [False], [True]]), "n": np.arange(3)}

    answers = PlainWriter(rule, "d@1").write(outputs, ranges)

    assert answers == [single(outputs, rule, *place) for place in ranges]


@pytest.mark.parametrize(
    ("outputs", "rule"),
    [
        ({}, NO_RULE),
        ({"y": "text"}, NO_RULE),
        ({"y": np.array(["a", "b"], object)}, NO_RULE),
        ({"y": np.float32(1)}, NO_RULE),
        ({"y": np.array(1.0)}, NO_RULE),
        ({"y": np.zeros(3)}, NO_RULE),
        ({"y": np.zeros(2, np.complex64)}, NO_RULE),
        ({"y": np.zeros(2)}, OutputRule(top_k=1)),
        ({"y": np.zeros((2, 0))}, OutputRule(top_k=1)),
    ],
    ids=["none", "text", "texts", "scalar", "rank 0", "rows", "complex", "one row", "no scores"],
)
def test_everything_else_is_left_to_others(outputs: dict[str, Any], rule: OutputRule) -> None:
    """What is not a number for each row of the batch is for the other codec, or its error."""
    assert PlainWriter(rule, "d@1").write(outputs, [(0, 1), (1, 2)]) is None


def test_outputs_may_change_their_names() -> None:
    """A handler may answer with other outputs every time."""
    writer = PlainWriter(NO_RULE, "d@1")

    answers = [writer.write({name: np.zeros(1)}, [(0, 1)]) for name in ("a", "b", "a")]

    found = [json.loads(answer[0])["outputs"] for answer in answers if answer is not None]
    assert found == [{"a": [0.0]}, {"b": [0.0]}, {"a": [0.0]}]
