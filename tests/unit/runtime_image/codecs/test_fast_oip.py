"""Fast path of the Open Inference Protocol: what it reads and writes is what the ordinary path
does."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from runtime_image.codecs.accept import OIP, SHORT, AnswerForm
from runtime_image.codecs.answer import Answer, encode, served_model
from runtime_image.codecs.arrays import DTYPES, to_arrays
from runtime_image.codecs.fast_oip import (
    HEAD_MAX,
    HEADS_MAX,
    PLAIN,
    Found,
    Missed,
    OipReader,
    OipWriter,
    oip_reader,
)
from runtime_image.codecs.request import RequestHead, parse
from runtime_image.contract.model import InputRule, OutputRule
from runtime_image.contract.signature import Signature, TensorSpec

ROWS = Signature("tensors", (TensorSpec("x", "FP32", (-1, 2)),), ())
PAIR = Signature("tensors", (TensorSpec("a", "INT64", (-1,)), TensorSpec("b", "FP64", (-1, 1))), ())
MODEL = served_model("digits@3", "my %s model", "7")
RULE = OutputRule()


def reader(signature: Signature = ROWS) -> OipReader:
    made = oip_reader(signature, {})
    assert made is not None
    return made


def plain(**members: Any) -> bytes:
    """Return a request in JSON with one row for ROWS."""
    tensor = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1.5, 2]}
    return json.dumps({"inputs": [{**tensor, **members.pop("tensor", {})}], **members}).encode()


def binary(values: Any, **members: Any) -> tuple[bytes, int]:
    """Return a binary request for ROWS, and the length of its JSON part."""
    raw = np.array(values, np.float32).tobytes()
    tensor = {"name": "x", "shape": [len(values), 2], "datatype": "FP32"}
    sized = {**tensor, "parameters": {"binary_data_size": len(raw)}}
    head = json.dumps({"inputs": [sized], **members}).encode()
    return head + raw, len(head)


def read(at: OipReader, body: bytes, length: int = -1, signature: Signature = ROWS) -> Found:
    """Read by the ordinary path, remember, and read by the fast one."""
    missed = at.read(body, length)
    if isinstance(missed, Missed):
        head = RequestHead(OIP, "", None if length < 0 else length)
        at.remember(missed, len(body), length, parse(head, body, signature, {}))
    found = at.read(body, length)
    assert isinstance(found, Found)
    return found


@pytest.mark.parametrize(
    "signature",
    [
        Signature("json", (), ()),
        Signature("tensors", (), ()),
        *(
            Signature("tensors", (TensorSpec("x", dtype, (-1,)),), ())
            for dtype in ("BYTES", "BOOL", "FP16", "BF16", "UINT64")
        ),
    ],
)
def test_inputs_whose_content_must_be_checked_take_the_ordinary_path(signature: Signature) -> None:
    """There is no fast reader for datatypes whose elements may be wrong, nor with a rule."""
    assert oip_reader(signature, {}) is None
    assert oip_reader(ROWS, {"x": InputRule(finite=True)}) is None


def test_flat_json_is_read_at_once() -> None:
    """Numbers, id and shape of the most common request are read, and answered as JSON."""
    found = reader().read(plain(id="7"), -1)

    assert isinstance(found, Found)
    assert found.arrays["x"].tolist() == [[1.5, 2.0]]
    assert (found.arrays["x"].dtype, found.answer, found.id) == (
        DTYPES["FP32"],
        AnswerForm("oip"),
        "7",
    )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"inputs":[]}',
        plain(tensor={"name": "y"}),
        plain(tensor={"datatype": "FP64"}),
        plain(tensor={"shape": [2, 1]}),
        plain(tensor={"shape": [2, 2]}),
        plain(tensor={"shape": [-1, 2]}),
        plain(tensor={"shape": [1]}),
        plain(tensor={"data": [1.0]}),
        plain(tensor={"data": [[1.0, 2.0]]}),
        plain(tensor={"data": [1.0, "2"]}),
        plain(tensor={"data": [1.0, 1e39]}),
        plain(tensor={"parameters": {}}),
        plain(id=1),
        plain()[:-2] + b"," + plain()[11:],
    ],
)
def test_anything_else_is_left_to_the_ordinary_path(body: bytes) -> None:
    """Errors and unusual forms are not read."""
    assert reader().read(body, -1) == Missed(b"")


def test_rows_may_differ() -> None:
    """Inputs with different numbers of rows are read: whether they fit, the model knows. Empty ones
    take the ordinary path."""
    same = Signature(
        "tensors", (TensorSpec("a", "FP32", (-1,)), TensorSpec("b", "FP32", (-1,))), ()
    )

    def read(*sizes: int) -> Any:
        tensors = [
            {"name": name, "shape": [size], "datatype": "FP32", "data": [1] * size}
            for name, size in zip("ba", sizes, strict=True)
        ]
        return reader(same).read(json.dumps({"inputs": tensors}).encode(), -1)

    assert {name: len(array) for name, array in read(1, 2).arrays.items()} == {"a": 2, "b": 1}
    assert read(1, 0) == Missed(b"")


def test_members_are_looked_up() -> None:
    """What `outputs` and `parameters` ask for is remembered, for other values as well."""
    at = reader()
    asked = {"parameters": {"binary_data_output": True}}

    assert read(at, plain(**asked)).answer == AnswerForm("oip-binary", binary_all=True)
    again = at.read(plain(**asked, id="2", tensor={"data": [3, 4]}), -1)

    assert isinstance(again, Found)
    assert (again.id, again.arrays["x"].tolist()) == ("2", [[3, 4]])
    assert again.answer == AnswerForm("oip-binary", binary_all=True)


@pytest.mark.parametrize("spaces", range(4))
def test_a_repeated_head_is_looked_up(spaces: int) -> None:
    """Elements behind a known head are read at any alignment; another length is not."""
    at = reader()
    body, length = binary([[1, 2], [3, 4]], id="a" * spaces)
    read(at, body, length)
    other = body[:length] + np.array([[5, 6], [7, 8]], np.float32).tobytes()

    found = at.read(other, length)

    assert isinstance(found, Found)
    assert found.arrays["x"].tolist() == [[5, 6], [7, 8]]
    assert found.arrays["x"].flags.aligned
    assert found.id == "a" * spaces
    assert isinstance(at.read(other + b"\0", length), Missed)
    assert isinstance(at.read(other[:-1], length), Missed)
    assert isinstance(at.read(other, length - 1), Missed)


def test_inputs_in_another_order_are_read() -> None:
    """Raw elements belong to the inputs in the order of the body, not to that of the signature."""
    raw = {"b": np.array([[0.5]]), "a": np.array([7])}
    tensors = [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": {"a": "INT64", "b": "FP64"}[name],
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in raw.items()
    ]
    head = json.dumps({"inputs": tensors}).encode()
    body = head + b"".join(array.tobytes() for array in raw.values())

    found = read(reader(PAIR), body, len(head), PAIR)

    assert {name: array.tolist() for name, array in found.arrays.items()} == {
        "a": [7],
        "b": [[0.5]],
    }
    assert list(found.arrays) == ["a", "b"]


def test_a_head_with_elements_in_json_is_not_remembered() -> None:
    """A request of both forms is read by the ordinary path every time."""
    at, body = reader(), plain()

    at.remember(
        Missed(body), len(body), len(body), parse(RequestHead(OIP, "", len(body)), body, ROWS, {})
    )

    assert at.read(body, len(body)) == Missed(body)


def test_memory_is_limited() -> None:
    """Clients with ever new heads make the reader forget, and long heads are never kept."""
    at = reader()
    for number in range(3 * HEADS_MAX):
        read(at, *binary([[1, 2]], id=str(number)))
        read(at, plain(parameters={"n": number}))
    body, length = binary([[1, 2]], id="a" * HEAD_MAX)

    assert len(at._heads) <= HEADS_MAX
    assert len(at._forms) <= HEADS_MAX
    assert at.read(body, length) == Missed(b"")
    assert at.read(plain(parameters={"n": "a" * HEAD_MAX}), -1) == Missed(b"")


SHAPES = st.lists(st.integers(1, 3), max_size=2).map(tuple)
FORMS = st.sampled_from(
    [
        AnswerForm("oip"),
        AnswerForm("oip", outputs=("b",)),
        AnswerForm("oip-binary", binary_all=True),
        AnswerForm("oip-binary", outputs=("b", "a"), binary=("a",)),
        AnswerForm("oip-binary", outputs=("a",), binary=("a",)),
    ]
)


@given(data=st.data())
def test_answers_are_those_of_the_ordinary_path(data: st.DataObject) -> None:
    """Every answer of a batch is byte for byte what the ordinary path writes for its rows."""
    counts = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    names = ("BOOL", "UINT8", "INT64", "UINT64", "FP32", "FP64")
    outputs = {
        name: data.draw(
            arrays.arrays(
                DTYPES[data.draw(st.sampled_from(names))], (sum(counts), *data.draw(SHAPES))
            )
        )
        for name in ("a", "b")
    }
    wanted = [(data.draw(FORMS), data.draw(st.sampled_from(("", 'an "id"', "%b")))) for _ in counts]
    ends = np.cumsum(counts).tolist()
    ranges = [(end - count, end) for end, count in zip(ends, counts, strict=True)]
    writer = OipWriter(MODEL)

    for _ in range(2):
        found = writer.write(outputs, ranges, wanted)

        assert found is not None
        for one, (start, stop), (form, id) in zip(found, ranges, wanted, strict=True):
            rows = {name: array[start:stop] for name, array in outputs.items()}
            expected = encode(rows, form, ROWS, RULE, MODEL, id)
            if isinstance(one, bytes):
                one = Answer("application/json", 0, one)
            assert one == expected


@pytest.mark.parametrize(
    "output",
    [
        np.zeros((1, 2), np.float16),
        np.array(["a"], object),
        np.zeros((2, 1), np.float32),
        np.zeros((1, 0), np.float32),
        np.float32(1),
        [1.0],
    ],
)
def test_other_outputs_are_left_to_the_ordinary_path(output: Any) -> None:
    """An output that is not plain numbers with the rows of the batch is not written."""
    assert OipWriter(MODEL).write({"a": output}, [(0, 1)], [(AnswerForm("oip"), "")]) is None


def test_forms_of_others_are_left_to_the_ordinary_path() -> None:
    """In one batch, answers of other protocols and unknown outputs are left out."""
    classes = AnswerForm("oip", outputs=("a",), classes=(("a", 1),))
    forms = [SHORT, AnswerForm("npy"), AnswerForm("oip", outputs=("z",)), classes, PLAIN]
    outputs = {"a": np.arange(5)}

    found = OipWriter(MODEL).write(
        outputs, [(n, n + 1) for n in range(5)], [(f, "") for f in forms]
    )

    assert found is not None
    assert found[:4] == [None] * 4
    assert json.loads(found[4] or b"")["outputs"][0]["data"] == [4]


@given(values=st.lists(st.tuples(st.floats(width=32), st.floats(width=32)), min_size=1, max_size=3))
def test_requests_are_those_of_the_ordinary_path(values: list[tuple[float, float]]) -> None:
    """Arrays of the fast path have the bytes of the ordinary one's, NaN and infinities included."""
    body, length = binary(values)
    parsed = parse(RequestHead(OIP, "", length), body, ROWS, {})

    found = read(reader(), body, length)

    assert found.arrays["x"].tobytes() == to_arrays(parsed, ROWS, {})["x"].tobytes()
    assert found.answer == parsed.answer
