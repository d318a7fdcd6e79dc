"""Outputs of a run into the answers of its requests."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from runtime_image.codecs.accept import SHORT, AnswerForm
from runtime_image.contract.errors import RequestError
from runtime_image.contract.model import ModelSpec
from runtime_image.contract.signature import Signature, TensorSpec
from runtime_image.link.meta import AnswerMeta, RequestMeta
from runtime_image.replica.intake import Job
from runtime_image.replica.stages import (
    SHORT_MAX,
    Answer,
    Answerer,
    Decoded,
    Done,
    Outcome,
    is_short,
)

SIGNATURE = Signature("tensors", (), (TensorSpec("y", "FP32", (-1,)),))
SPEC = ModelSpec("d@1", batch_max=8)


def member(id: int, rows: int = 1, arrived_s: float = 0.0, form: AnswerForm = SHORT) -> Decoded:
    job = Job(1, id, RequestMeta("", "", -1, ""), b"", 60.0, arrived_s)
    return Decoded(job, rows, (), None, {}, form, "", 1_000_000)


def answers(members: list[Decoded], outputs: dict[str, Any], **fields: Any) -> dict[int, Outcome]:
    """Of a run from second 5 to 7, by job id; encoding takes a second."""
    found: dict[int, Outcome] = {}
    clock = iter([10.0, 11.0])
    done = Done(members, outputs, 5.0, 7.0, fields.get("is_first", False))
    Answerer(SIGNATURE, SPEC, lambda: next(clock)).answer(
        done, lambda job, outcome: found.update({job.id: outcome})
    )
    return found


def test_everybody_has_the_times_of_his_own() -> None:
    """Waiting is what is left between arrival and run; the rest all members share."""
    found = answers([member(1, 2, 1.0), member(2, 1, 3.5), member(3, 1, 4.5)], {"y": np.arange(4)})

    metas = [one.meta for one in found.values() if isinstance(one, Answer)]
    kind = "application/json"
    assert metas == [
        AnswerMeta(kind, 1_000_000, 3_000_000, 2_000_000, 1_000_000, 4),
        AnswerMeta(kind, 1_000_000, 500_000, 2_000_000, 1_000_000, 4),
        AnswerMeta(kind, 1_000_000, 0, 2_000_000, 1_000_000, 4),
    ]


def test_every_form_has_its_rows() -> None:
    """One that asked for another form is answered in it, beside those of the commonest one."""
    found = answers(
        [member(1, 2), member(2, form=AnswerForm("npy"))], {"y": np.arange(3.0)}, is_first=True
    )

    short, npy = found[1], found[2]
    assert isinstance(short, Answer)
    assert isinstance(npy, Answer)
    assert json.loads(short.body)["outputs"] == {"y": [0.0, 1.0]}
    assert npy.meta.content_type == "application/x-npy"
    assert npy.body.endswith(np.array([2.0]).tobytes())
    assert short.is_first
    assert npy.is_first


def test_what_cannot_be_written_fails_alone() -> None:
    """An output without JSON is an error of those who get JSON."""
    found = answers([member(1)], {"y": object()})

    assert isinstance(found[1], RequestError)


class Odd:
    """No name that JSON has."""


@pytest.mark.parametrize("name", [np.str_("a"), "\ud800", Odd(), 1, None, (1, 2)])
def test_whatever_a_handler_calls_its_outputs_is_answered(name: Any) -> None:
    """By what the way for single requests makes of it: valid JSON or a reason, and never an error
    that would end whoever encodes."""
    found = answers([member(1), member(2)], {name: np.arange(2.0)})

    for one in found.values():
        assert isinstance(one, Answer | RequestError)
        if isinstance(one, Answer):
            assert json.loads(one.body)["outputs"] in ({str(name): [0.0]}, {str(name): [1.0]})
    assert sorted(found) == [1, 2]


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        ({"y": np.zeros(SHORT_MAX, np.uint8)}, True),
        ({"y": np.zeros(SHORT_MAX, np.uint8), "z": np.zeros(1)}, False),
        ({"y": "text"}, False),
        ({"y": np.array(["text"], object)}, False),
    ],
)
def test_only_few_numbers_are_short(outputs: dict[str, Any], expected: bool) -> None:
    """Of texts and what a handler gives nobody knows how long they take."""
    assert is_short(Done([], outputs, 0.0, 0.0, False)) is expected
