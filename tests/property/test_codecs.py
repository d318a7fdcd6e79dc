"""Property tests of the codecs: values round-trip, and no body raises anything but RequestError."""

import io
import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from runtime_image.codecs import request
from runtime_image.codecs.accept import AnswerForm
from runtime_image.codecs.answer import encode, served_model
from runtime_image.codecs.arrays import DTYPES, to_arrays
from runtime_image.codecs.bfloat16 import BF16
from runtime_image.codecs.request import RequestHead, parse
from runtime_image.contract import dtypes
from runtime_image.contract.errors import RequestError
from runtime_image.contract.model import AudioForm, BytesForm, ImageForm, InputRule, OutputRule
from runtime_image.contract.signature import Signature, TensorSpec

NUMERIC = sorted(set(DTYPES) - {dtypes.BYTES})
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
CODECS = settings(max_examples=60, deadline=None)


@st.composite
def tensors(draw: st.DrawFn, names: list[str] = NUMERIC) -> tuple[str, np.ndarray]:
    """A dtype's name and an array of it, with finite values because JSON has no others."""
    name = draw(st.sampled_from(names))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, max_side=3))
    if name == dtypes.BYTES:
        return name, draw(hnp.arrays(object, shape, elements=TEXT))
    elements = {"allow_nan": False, "allow_infinity": False} if name in dtypes.FLOATS else None
    return name, draw(hnp.arrays(DTYPES[name], shape, elements=elements))


def signature(dtype: str, array: np.ndarray) -> Signature:
    spec = TensorSpec("x", dtype, (-1, *array.shape[1:]) if array.ndim else ())
    return Signature("tensors", (spec,), (spec,))


def arrays(head: RequestHead, body: bytes, wanted: Signature) -> np.ndarray:
    found: np.ndarray = to_arrays(parse(head, body, wanted, {}), wanted, {})["x"]
    return found


def same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())


def packed(array: np.ndarray) -> bytes:
    if array.dtype != object:
        return array.tobytes()
    texts = [item.encode() for item in array.flat]
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


@given(tensors([*NUMERIC, dtypes.BYTES]))
@CODECS
def test_short_json_round_trips(tensor: tuple[str, np.ndarray]) -> None:
    """Every dtype survives short JSON unchanged, into the model and back."""
    dtype, array = tensor
    wanted = signature(dtype, array)
    body = json.dumps({"inputs": {"x": array.tolist()}}).encode()
    found = arrays(RequestHead("application/json"), body, wanted)
    assert same(found, array)
    answer = encode(
        {"x": found}, AnswerForm("short"), wanted, OutputRule(), served_model("f@1"), ""
    )
    assert json.loads(answer.body)["outputs"]["x"] == array.tolist()


@given(tensors([*NUMERIC, dtypes.BYTES]), st.booleans())
@CODECS
def test_protocol_json_round_trips(tensor: tuple[str, np.ndarray], nested: bool) -> None:
    """Every dtype but FP16 survives the protocol's JSON, flat or nested."""
    dtype, array = tensor
    data = array.tolist() if nested and array.ndim else array.ravel().tolist()
    item = {"name": "x", "shape": list(array.shape), "datatype": dtype, "data": data}
    body = json.dumps({"inputs": [item]}).encode()
    wanted = signature(dtype, array)
    if dtype == "FP16":
        with pytest.raises(RequestError):
            arrays(RequestHead("application/json"), body, wanted)
        return
    found = arrays(RequestHead("application/json"), body, wanted)
    assert same(found, array)
    answer = encode({"x": found}, AnswerForm("oip"), wanted, OutputRule(), served_model("f@1"), "")
    assert json.loads(answer.body)["outputs"] == [{**item, "data": array.ravel().tolist()}]


@given(tensors([*NUMERIC, dtypes.BYTES]))
@CODECS
def test_protocol_binary_round_trips(tensor: tuple[str, np.ndarray]) -> None:
    """Every dtype survives the binary form, and the answer has the request's form."""
    dtype, array = tensor
    raw = packed(array)
    item = {"name": "x", "shape": list(array.shape), "datatype": dtype}
    item["parameters"] = {"binary_data_size": len(raw)}
    body = json.dumps({"inputs": [item]}).encode()
    wanted = signature(dtype, array)
    head = RequestHead("application/octet-stream", "", len(body))
    found = arrays(head, body + raw, wanted)
    assert same(found, array)
    form = AnswerForm("oip-binary", binary_all=True)
    answer = encode({"x": found}, form, wanted, OutputRule(), served_model("f@1"), "")
    assert json.loads(answer.body[: answer.json_length])["outputs"] == [item]
    assert answer.body[answer.json_length :] == raw


@given(tensors())
@CODECS
def test_npy_round_trips(tensor: tuple[str, np.ndarray]) -> None:
    """Every numeric dtype survives npy, into the model and back."""
    dtype, array = tensor
    buffer = io.BytesIO()
    np.save(buffer, array)
    wanted = signature(dtype, array)
    found = arrays(RequestHead("application/x-npy"), buffer.getvalue(), wanted)
    assert same(found, array)
    answer = encode({"x": found}, AnswerForm("npy"), wanted, OutputRule(), served_model("f@1"), "")
    assert same(np.load(io.BytesIO(answer.body)), array)


@given(hnp.arrays(st.sampled_from(["<f2", "<f4", "<f8"]), st.integers(1, 5)))
@CODECS
def test_both_halves_find_the_same_bad_number(array: np.ndarray) -> None:
    """The check without numpy and the one with it refuse the same bodies with the same message."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    wanted = signature({2: "FP16", 4: "FP32", 8: "FP64"}[array.itemsize], array)
    rules = {"x": InputRule(finite=True)}
    parsed = parse(RequestHead("application/x-npy"), buffer.getvalue(), wanted, rules)
    cheap = complaint(lambda: request.check_finite(parsed, rules))
    assert cheap == complaint(lambda: to_arrays(parsed, wanted, rules))
    assert (cheap == "") == bool(np.isfinite(array).all())


def complaint(check: Any) -> str:
    try:
        check()
    except RequestError as error:
        return error.message
    return ""


LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.just(1), TEXT
)
VALUES = st.recursive(LEAVES, lambda items: st.lists(items, max_size=3), max_leaves=6)
SPECS = st.builds(
    TensorSpec,
    st.just("x"),
    st.sampled_from([*DTYPES, "BF16"]),
    st.lists(st.sampled_from([-1, 1, 2]), max_size=3).map(tuple),
)


@given(SPECS, VALUES, st.lists(st.integers(-1, 3), max_size=3), st.booleans())
@CODECS
def test_accepted_json_can_be_decoded(
    spec: TensorSpec, value: Any, shape: list[int], is_short: bool
) -> None:
    """JSON that passes the check always becomes an array of the signature."""
    item = {"name": "x", "shape": shape, "datatype": spec.dtype, "data": value}
    body = json.dumps({"inputs": {"x": value} if is_short else [item]}).encode()
    decode(RequestHead("application/json"), body, Signature("tensors", (spec,), ()), {})


@given(SPECS, st.lists(st.integers(-1, 3), max_size=3), st.binary(max_size=40))
@CODECS
def test_accepted_raw_elements_can_be_decoded(
    spec: TensorSpec, shape: list[int], data: bytes
) -> None:
    """A raw tensor that passes the check always becomes an array of the signature."""
    item = {"name": "x", "shape": shape, "datatype": spec.dtype}
    item["parameters"] = {"binary_data_size": len(data)}
    head = json.dumps({"inputs": [item]}).encode()
    wanted = Signature("tensors", (spec,), ())
    decode(RequestHead("application/octet-stream", "", len(head)), head + data, wanted, {})


def decode(head: RequestHead, body: bytes, wanted: Signature, rules: dict[str, InputRule]) -> None:
    """Decode a body that the check accepts; only images and audio may still be refused."""
    try:
        parsed = parse(head, body, wanted, rules)
    except RequestError:
        return
    try:
        found = to_arrays(parsed, wanted, rules)
    except RequestError:
        assert {raw.encoding for raw in parsed.inputs.values()} & {"image", "audio"}
        return
    for spec in wanted.inputs:
        assert spec.accepts(found[spec.name].shape)
        assert found[spec.name].dtype == DTYPES.get(spec.dtype, BF16)


PREFIXES = [
    b"",
    b"{",
    b'{"inputs":',
    b'{"inputs":{"x":[',
    b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":',
    b"\x93NUMPY\x01\x00",
    b"\x93NUMPY\x01\x00\x3d\x00{'descr': '<f4', 'fortran_order': False, 'shape': (",
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01",
    b"\xff\xd8\xff\xe0",
    b"GIF89a",
    b"BM",
    b"RIFF\x40\0\0\0WEBPVP8 ",
    b"RIFF\x40\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0",
]
RULES = {
    "bytes": InputRule("bytes", bytes=BytesForm(length=4)),
    "image": InputRule("image", image=ImageForm((2, 2))),
    "audio": InputRule("audio", audio=AudioForm(samples=4)),
    "tensor": InputRule(finite=True),
}
TYPES = [
    "",
    "application/json",
    "application/octet-stream",
    "application/x-npy; input=x",
    "image/png",
    "audio/wav",
    "text/plain",
]


@given(
    st.sampled_from(TYPES) | st.text(max_size=20),
    st.sampled_from(["", "*/*", "application/x-npy;output=x"]) | st.text(max_size=20),
    st.none() | st.integers(-1, 80),
    st.sampled_from(PREFIXES),
    st.binary(max_size=200),
    SPECS,
    st.sampled_from(sorted(RULES)),
)
@CODECS
def test_any_bytes_only_raise_request_errors(
    content_type: str,
    accept: str,
    json_length: int | None,
    prefix: bytes,
    rest: bytes,
    spec: TensorSpec,
    kind: str,
) -> None:
    """Random bodies with any headers are decoded or refused with RequestError."""
    head = RequestHead(content_type, accept, json_length)
    decode(head, prefix + rest, Signature("tensors", (spec,), (spec,)), {"x": RULES[kind]})
    for other in (Signature("json", (), ()), Signature("bytes", (), ())):
        decode(head, prefix + rest, other, {})
