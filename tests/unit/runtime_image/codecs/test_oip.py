"""The Open Inference Protocol in JSON, and with raw tensors after the JSON part."""

import json
import struct
from typing import Any

import pytest

from runtime_image.codecs import oip
from runtime_image.contract.errors import RequestError
from runtime_image.contract.signature import Signature, TensorSpec

SIGNATURE = Signature(
    "tensors",
    (TensorSpec("x", "FP32", (-1, 2)), TensorSpec("s", "BYTES", (-1,))),
    (TensorSpec("y", "FP32", (-1,)), TensorSpec("z", "INT64", (-1,))),
)
S = {"name": "s", "shape": [1], "datatype": "BYTES", "data": ["a"]}
X = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}


def read(document: dict[str, Any], *raw: bytes, signature: Signature = SIGNATURE) -> oip.OipRequest:
    head = json.dumps(document).encode()
    return oip.read(memoryview(head + b"".join(raw)), len(head), signature, {})


@pytest.mark.parametrize(("data", "payload"), [([1, 2], [1.0, 2.0]), ([[1, 2]], [[1.0, 2.0]])])
def test_data_may_be_flat_or_nested(data: Any, payload: Any) -> None:
    """Flat and nested tensor data are read; unknown fields are ignored."""
    request = read({"inputs": [{**X, "data": data, "note": 1}, S], "more": True})
    assert request.inputs["x"].payload == payload
    assert request.inputs["x"].shape == (1, 2)
    assert (request.id, request.outputs, request.binary_all) == ("", (), False)


def test_raw_tensors_follow_in_the_order_of_inputs() -> None:
    """Binary inputs consume their bytes in order, also with JSON inputs between them."""
    signature = Signature("tensors", tuple(TensorSpec(name, "FP32", (1,)) for name in "abc"), ())

    def binary(name: str) -> dict[str, Any]:
        parameters = {"binary_data_size": 4}
        return {"name": name, "shape": [1], "datatype": "FP32", "parameters": parameters}

    middle = {"name": "b", "shape": [1], "datatype": "FP32", "data": [2]}
    raw = [struct.pack("<f", value) for value in (3.0, 1.0)]
    request = read({"inputs": [binary("c"), middle, binary("a")]}, *raw, signature=signature)
    assert bytes(request.inputs["c"].payload) == raw[0]
    assert bytes(request.inputs["a"].payload) == raw[1]
    assert request.inputs["b"].payload == [2.0]


def test_the_wire_form_of_a_known_client_is_read() -> None:
    """A body as sent by tritonclient is read: compact JSON, then the tensors, raw outputs
    wanted."""
    head = (
        b'{"id":"7","inputs":[{"name":"x","shape":[1,2],"datatype":"FP32",'
        b'"parameters":{"binary_data_size":8}},{"name":"s","shape":[1],"datatype":"BYTES",'
        b'"parameters":{"binary_data_size":6}}],"parameters":{"binary_data_output":true}}'
    )
    body = head + struct.pack("<ff", 1.0, 2.0) + b"\x02\x00\x00\x00hi"
    request = oip.read(memoryview(body), len(head), SIGNATURE, {})
    assert bytes(request.inputs["x"].payload) == struct.pack("<ff", 1.0, 2.0)
    assert request.inputs["s"].payload == ["hi"]
    assert request.id == "7"
    assert request.binary_all


def test_outputs_are_chosen_one_by_one() -> None:
    """Requested outputs keep their order; binary_data overrides binary_data_output."""
    outputs = [{"name": "z", "parameters": {"binary_data": False}}, {"name": "y"}]
    parameters = {"binary_data_output": True}
    request = read({"inputs": [X, S], "outputs": outputs, "parameters": parameters})
    assert request.outputs == ("z", "y")
    assert request.binary == ("y",)
    assert not request.binary_all


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"datatype": "FP64"}, "datatype FP64"),
        ({"shape": [1, 3], "data": [1, 2, 3]}, "shape [1, 3]"),
        ({"shape": [2, 2]}, "expected 4 elements"),
        ({"shape": [2, 2], "data": [[1, 2]]}, "expected data of shape [2, 2], got shape [1, 2]"),
        ({"data": [[1], [2]]}, "a list of 1 at index [0]"),
        ({"data": None}, "null instead of a list"),
        ({"name": "q"}, "an unknown name"),
        ({"name": "s"}, "given once"),
        ({"shape": [-1, 2]}, "got shape [-1, 2]"),
        ({"shape": ["1"]}, "Expected `int`"),
        ({"parameters": {"binary_data_size": 0}}, "either data or binary_data_size"),
        ({"parameters": {"shared_memory_region": "r"}}, "shared memory"),
    ],
)
def test_wrong_inputs_are_refused(change: dict[str, Any], words: str) -> None:
    """An input that does not fit is refused with the expected and the actual value."""
    with pytest.raises(RequestError) as caught:
        read({"inputs": [S, {**X, **change}]})
    assert words in caught.value.message


@pytest.mark.parametrize("size", [-1, 9, 2**70])
def test_sizes_beyond_the_body_are_refused(size: int) -> None:
    """A binary_data_size larger than the body is refused."""
    item = {"name": "x", "shape": [1, 2], "datatype": "FP32"}
    with pytest.raises(RequestError, match="binary_data_size"):
        read({"inputs": [{**item, "parameters": {"binary_data_size": size}}, S]}, bytes(8))


def test_bytes_left_over_are_refused() -> None:
    """Bytes after the last tensor are refused."""
    with pytest.raises(RequestError, match="expected 0 bytes of tensors"):
        read({"inputs": [X, S]}, b"x")


def test_an_input_without_data_is_refused() -> None:
    """An input needs data or a binary size."""
    with pytest.raises(RequestError, match="got neither"):
        read({"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32"}, S]})


@pytest.mark.parametrize("length", [0, -1, 10**9])
def test_a_header_length_outside_the_body_is_refused(length: int) -> None:
    """Inference-Header-Content-Length must lie within the body."""
    with pytest.raises(RequestError, match="Inference-Header-Content-Length"):
        oip.read(memoryview(b"{}"), length, SIGNATURE, {})


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"inputs": 1}', b'{"a":' + b"[" * 100_000])
def test_other_json_is_refused(body: bytes) -> None:
    """JSON of another structure, truncated or too deeply nested, is refused."""
    with pytest.raises(RequestError, match="expected an Open Inference Protocol object"):
        oip.read(memoryview(body), None, SIGNATURE, {})


def test_fp16_is_only_binary() -> None:
    """FP16 has no JSON form in the protocol and is read raw only."""
    signature = Signature("tensors", (TensorSpec("h", "FP16", (1,)),), ())
    item = {"name": "h", "shape": [1], "datatype": "FP16"}
    with pytest.raises(RequestError, match=r"FP16 as binary data: .*binary_data_size.*, got JSON"):
        read({"inputs": [{**item, "data": [1]}]}, signature=signature)
    item["parameters"] = {"binary_data_size": 2}
    assert read({"inputs": [item]}, b"\x00\x3c", signature=signature).inputs["h"].shape == (1,)


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        ([{"name": "w"}], "one of: y, z"),
        ([{"name": "y"}, {"name": "y"}], "requested once"),
        ([{"name": "y", "parameters": {"classification": 0}}], "classification from 1 to"),
        ([{"name": "y", "parameters": {"classification": -1}}], "classification from 1 to"),
        ([{"name": "y", "parameters": {"classification": "3"}}], "Expected `int | null`"),
        ([{"name": "y", "parameters": {"shared_memory_region": "r"}}], "shared memory"),
    ],
)
def test_wrong_outputs_are_refused(outputs: list[dict[str, Any]], words: str) -> None:
    """Unknown outputs and unsupported formats are refused."""
    with pytest.raises(RequestError) as caught:
        read({"inputs": [X, S], "outputs": outputs})
    assert words in caught.value.message


def test_without_known_outputs_any_name_may_be_asked_for() -> None:
    """For a function that declares no outputs any output name may be requested."""
    signature = Signature("tensors", (TensorSpec("s", "BYTES", (-1,)),), ())
    request = read({"inputs": [S], "outputs": [{"name": "w"}]}, signature=signature)
    assert request.outputs == ("w",)


def test_classifications_are_requested_by_output() -> None:
    """An output may be requested as its best classes, in either form."""
    outputs = [{"name": "z", "parameters": {"classification": 3, "binary_data": True}}]
    request = read({"inputs": [X, S], "outputs": [*outputs, {"name": "y"}]})
    assert request.classes == (("z", 3),)
    assert (request.outputs, request.binary) == (("z", "y"), ("z",))


@pytest.mark.parametrize("dtype", ["BOOL", "BYTES"])
def test_only_numbers_have_classes(dtype: str) -> None:
    """A classification of an output without numbers is refused."""
    signature = Signature(
        "tensors", (TensorSpec("s", "BYTES", (-1,)),), (TensorSpec("b", dtype, ()),)
    )
    outputs = [{"name": "b", "parameters": {"classification": 1}}]
    with pytest.raises(RequestError, match=f"numbers for a classification, got {dtype}"):
        read({"inputs": [S], "outputs": outputs}, signature=signature)


def test_null_stands_for_nothing() -> None:
    """Optional members may be null, as some clients write those that they do not use."""
    nothing = {"parameters": None, "outputs": None, "id": None}
    request = read({"inputs": [{**X, "parameters": None}, S], **nothing})
    assert (request.id, request.outputs, request.binary_all) == ("", (), False)
    outputs = [
        {"name": "y", "parameters": None},
        {"name": "z", "parameters": {"binary_data": None}},
    ]
    assert read({"inputs": [X, S], "outputs": outputs}).outputs == ("y", "z")


def test_sizes_of_thousands_of_digits_are_refused() -> None:
    """An axis has a size of 64 bits: products of longer ones could not even be printed."""
    huge = int("9" * 4000)
    signature = Signature("tensors", (TensorSpec("x", "FP32", (-1, -1)),), ())
    for size in (huge, 2**63, -2):
        item = {"name": "x", "shape": [size, size], "datatype": "FP32", "data": []}
        with pytest.raises(RequestError, match="inputs"):
            read({"inputs": [item]}, signature=signature)
    item = {"name": "x", "shape": [2**63 - 1] * 2, "datatype": "FP32"}
    item["parameters"] = {"binary_data_size": 0}
    with pytest.raises(RequestError, match="bytes for FP32"):
        read({"inputs": [item]}, signature=signature)
