"""Fast path for short numeric JSON, read and written in one pass."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from runtime_image.codecs.accept import SHORT
from runtime_image.codecs.answer import encode, served_model
from runtime_image.codecs.arrays import DTYPES
from runtime_image.codecs.fast_json import PlainReader, PlainWriter, is_plain, plain_reader
from runtime_image.contract.model import OutputRule
from runtime_image.contract.signature import Signature, TensorSpec

ROWS = Signature("tensors", (TensorSpec("x", "FP32", (-1, 2)),), ())
PAIR = Signature("tensors", (TensorSpec("a", "INT64", (-1,)), TensorSpec("b", "FP64", (-1, 1))), ())


def reader(signature: Signature = ROWS) -> PlainReader:
    made = plain_reader(signature)
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("content_type", "accept", "json_length", "expected"),
    [
        ("application/json", "", -1, True),
        ("application/json; charset=utf-8", "*/*", -1, True),
        ("application/json", "application/json", -1, True),
        ("application/json", "application/x-npy", -1, False),
        ("application/json", "", 10, False),
        ("", "", -1, False),
        ("application/x-npy", "", -1, False),
    ],
)
def test_headers_decide_about_the_fast_path(
    content_type: str, accept: str, json_length: int, expected: bool
) -> None:
    """Only JSON requests that want a JSON answer qualify."""
    assert is_plain(content_type, accept, json_length) is expected


@pytest.mark.parametrize(
    "specs",
    [
        [],
        [("x", "BYTES", (-1,))],
        [("x", "BF16", (-1,))],
        [("x", "UINT64", (-1,))],
        [("x", "FP32", ())],
        [("x", "FP32", (1, 2))],
        [("x", "FP32", (-1, -1))],
        [("x", "FP32", (-1, 0))],
        [('"', "FP32", (-1,))],
        [("x", "FP32", (-1,)), ("y", "BYTES", (-1,))],
    ],
)
def test_some_signatures_are_not_read(specs: list[tuple[str, str, tuple[int, ...]]]) -> None:
    """There is no fast reader if an input is not a numeric tensor with rows."""
    assert plain_reader(Signature("tensors", tuple(TensorSpec(*s) for s in specs), ())) is None


def test_other_kinds_are_not_read() -> None:
    """JSON values and raw bodies have no fast reader."""
    assert plain_reader(Signature("json", (), ())) is None


def test_rows_of_many_requests_become_one_array() -> None:
    """Each input array holds the rows of all requests in order, in its own dtype."""
    bodies = [
        b'{"inputs": {"b": [[0.5]], "a": [1]}}',
        b'{"inputs": {"a": [2, 3], "b": [[4], [5]]}}',
    ]
    read = [reader(PAIR).read(body) for body in bodies]

    arrays = reader(PAIR).arrays([values for values in read if values is not None])

    assert {name: array.tolist() for name, array in arrays.items()} == {
        "a": [1, 2, 3],
        "b": [[0.5], [4.0], [5.0]],
    }
    assert [array.dtype for array in arrays.values()] == [np.int64, np.float64]
    assert all(array.flags.writeable for array in arrays.values())


@pytest.mark.parametrize("dtype", sorted(set(DTYPES) - {"BYTES", "UINT64"}))
def test_every_element_type_has_its_format(dtype: str) -> None:
    """Elements are written as NumPy holds them, whatever their type."""
    signature = Signature("tensors", (TensorSpec("x", dtype, (-1,)),), ())
    values = np.array([0, 1, 1, 0], DTYPES[dtype])
    body = json.dumps({"inputs": {"x": values.tolist()}}).encode()

    read = reader(signature).read(body)
    assert read is not None
    found = reader(signature).arrays([read])["x"]

    assert found.dtype == DTYPES[dtype]
    assert found.tolist() == values.tolist()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"inputs": {"x": []}}',
        b'{"inputs": {"x": [[1]]}}',
        b'{"inputs": {"x": [[1, "2"]]}}',
        b'{"inputs": {"x": [[1, 1e39]]}}',
        b'{"inputs": {"x": [[1, 2]], "x": [[3, 4]]}}',
        b'{"inputs": {"x": [[1, 2]]}, "inputs": {"x": [[3, 4]]}}',
        b'{"inputs": {"x": [[1, 2]], "y": 1}}',
        b'{"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}',
        b'{"inputs": {"x": ' + b"[" * 100_000,
    ],
)
def test_everything_else_is_left_to_others(body: bytes) -> None:
    """Other formats and invalid bodies fall back to the general reader."""
    assert reader().read(body) is None


def test_unequal_rows_are_left_to_others() -> None:
    """A request whose inputs differ in row count falls back to the general reader."""
    assert reader(PAIR).read(b'{"inputs": {"a": [1, 2], "b": [[1]]}}') is None


NO_RULE = OutputRule()
SCORES = np.array([[0.25, 0.5, 0.25], [1, 0, np.nan], [0, 0, 1]], np.float32)


def single(outputs: dict[str, Any], rule: OutputRule, start: int, stop: int) -> bytes:
    """Return the single-request codec's answer for these rows."""
    part = {name: value[start:stop] for name, value in outputs.items()}
    return encode(part, SHORT, Signature("tensors", (), ()), rule, served_model("d@1"), "").body


@pytest.mark.parametrize("ranges", [[(0, 1), (1, 2), (2, 3)], [(0, 2), (2, 3)], [(0, 3)]])
@pytest.mark.parametrize(
    "rule", [NO_RULE, OutputRule("s", ("no", 'a "%d"'), 2), OutputRule("", (), 5), OutputRule("z")]
)
def test_answers_are_those_of_single_requests(
    ranges: list[tuple[int, int]], rule: OutputRule
) -> None:
    """Each request gets its own rows, byte for byte as if it had run alone."""
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
def test_everything_else_is_left_to_others_writing(
    outputs: dict[str, Any], rule: OutputRule
) -> None:
    """Outputs that are not numeric, one row per batch row, fall back to the general writer."""
    assert PlainWriter(rule, "d@1").write(outputs, [(0, 1), (1, 2)]) is None


def test_outputs_may_change_their_names() -> None:
    """A handler may return different outputs on each run."""
    writer = PlainWriter(NO_RULE, "d@1")

    answers = [writer.write({name: np.zeros(1)}, [(0, 1)]) for name in ("a", "b", "a")]

    found = [json.loads(answer[0])["outputs"] for answer in answers if answer is not None]
    assert found == [{"a": [0.0]}, {"b": [0.0]}, {"a": [0.0]}]
