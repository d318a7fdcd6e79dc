"""Requests as bodies of the binary form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gateway.grpc.request import NO_FINAL, REQUEST, Packed, read
from registry.errors import BadInput, BadRequest, FnError, NotServed
from runtime_image.codecs.accept import OIP
from runtime_image.codecs.arrays import to_arrays
from runtime_image.codecs.request import RequestHead, parse
from runtime_image.contract.signature import Signature, TensorSpec

TYPED = {
    "BOOL": ("bool_contents", [True, False, True]),
    "INT8": ("int_contents", [-128, 0, 127]),
    "INT16": ("int_contents", [-(2**15), 0, 2**15 - 1]),
    "INT32": ("int_contents", [-(2**31), 0, 2**31 - 1]),
    "INT64": ("int64_contents", [-(2**63), 0, 2**63 - 1]),
    "UINT8": ("uint_contents", [0, 1, 255]),
    "UINT16": ("uint_contents", [0, 1, 2**16 - 1]),
    "UINT32": ("uint_contents", [0, 1, 2**32 - 1]),
    "UINT64": ("uint64_contents", [0, 1, 2**64 - 1]),
    "FP32": ("fp32_contents", [-1.5, 0.0, float("inf")]),
    "FP64": ("fp64_contents", [-1.5, 0.1, 1e300]),
    "BYTES": ("bytes_contents", [b"", b"\x00a", b"x" * 300]),
}


def request(datatype: str, shape: list[int], **contents: Any) -> Any:
    """Return a request for model m with one input x."""
    made = REQUEST(model_name="m", model_version="2", id="i")
    one = made.inputs.add(name="x", datatype=datatype, shape=shape)
    for name, values in contents.items():
        getattr(one.contents, name).extend(values)
    return made


def refused(made: Any) -> FnError:
    """Return the error of a request."""
    packed = read(made.SerializeToString()).packed
    assert isinstance(packed, FnError)
    return packed


def tensor(made: Any, datatype: str) -> np.ndarray[Any, Any]:
    """Return the input of a request as its model would get it."""
    found = read(made.SerializeToString())
    assert isinstance(found.packed, Packed), found.packed
    assert (found.model, found.version, found.id) == ("m", "2", b"i")
    body = b"".join((found.packed.json, *found.packed.tensors))
    signature = Signature("tensors", (TensorSpec("x", datatype, (-1,)),), ())
    head = RequestHead(OIP, "", len(found.packed.json))
    parsed = parse(head, memoryview(body), signature, {})
    return to_arrays(parsed, signature, {})["x"]


@pytest.mark.parametrize("datatype", TYPED)
def test_typed_contents_arrive_as_they_were_written(datatype: str) -> None:
    """Each datatype keeps its values, the smallest and largest ones among them."""
    name, values = TYPED[datatype]
    found = tensor(request(datatype, [3], **{name: values}), datatype)
    assert found.tolist() == values or [one.encode() for one in found.tolist()] == values


def test_typed_contents_of_many_elements_are_converted_in_pieces() -> None:
    """No element is lost between two pieces."""
    values = list(range(10_001))
    assert tensor(request("INT64", [10_001], int64_contents=values), "INT64").tolist() == values


def test_raw_contents_are_taken_as_they_are() -> None:
    """FP16 has no typed contents; its bytes reach the model unchanged."""
    made = request("FP16", [2])
    made.raw_input_contents.append(np.array([1.5, -2], np.float16).tobytes())
    assert tensor(made, "FP16").tolist() == [1.5, -2]


def test_a_message_that_only_a_parser_reads_is_the_same_request() -> None:
    """An unknown field changes nothing."""
    made = request("UINT8", [1])
    made.raw_input_contents.append(b"a")
    plain = read(made.SerializeToString())
    other = read(made.SerializeToString() + b"\xa2\x06\x01z")
    assert isinstance(plain.packed, Packed)
    assert isinstance(other.packed, Packed)
    assert (other[:3], other.packed.json) == (plain[:3], plain.packed.json)
    assert list(map(bytes, other.packed.tensors)) == [b"a"]


def test_no_elements_need_no_contents() -> None:
    """A tensor of no rows has none; whether the model takes it, its codec decides."""
    packed = read(request("INT32", [0]).SerializeToString()).packed
    assert isinstance(packed, Packed)
    assert list(packed.tensors) == [b""]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (request("INT32", [2], int_contents=[1]), r"2 elements in int_contents .* got 1"),
        (request("INT32", [2]), "got 0"),
        (request("INT32", [], int_contents=[1, 2]), r"1 elements .* shape '?\[\]'?, got 2"),
        (request("INT32", [1], int64_contents=[1]), "in int_contents, got int64_contents"),
        (
            request("INT32", [1], int_contents=[1], bool_contents=[True]),
            "got bool_contents, int_contents",
        ),
        (request("INT8", [1], int_contents=[128]), "INT8 from -128 to 127"),
        (request("FP16", [1], fp32_contents=[1]), "FP16 in raw_input_contents"),
        (request("FLOAT", [1], fp32_contents=[1]), "a datatype of BF16, BOOL"),
        (request("INT32", [-1], int_contents=[1]), "a shape from 0 on"),
    ],
)
def test_contents_that_do_not_fit_are_refused(made: Any, said: str) -> None:
    """The error names the input, what was expected and what came."""
    error = refused(made)
    assert isinstance(error, BadInput)
    assert "input 'x'" in error.message
    with pytest.raises(BadInput, match=said):
        raise error


def test_both_forms_at_once_are_refused() -> None:
    """It would not be clear which one counts."""
    made = request("UINT8", [1], uint_contents=[1])
    made.raw_input_contents.append(b"a")
    assert "expected either contents or raw_input_contents, got both" in refused(made).message


def test_each_input_has_one_raw_item() -> None:
    """The error names both numbers."""
    made = request("UINT8", [1])
    made.raw_input_contents.extend([b"a", b"b"])
    assert "expected 1 items, one for each input, got 2" in refused(made).message


def test_parameters_become_json() -> None:
    """All kinds are passed on; the outputs are always binary, and a stream's wish is met anyway."""
    made = request("UINT8", [1], uint_contents=[1])
    made.parameters["priority"].int64_param = 1
    made.parameters["timeout"].uint64_param = 2**63
    made.parameters["label"].string_param = "a"
    made.parameters["share"].double_param = 0.5
    made.parameters["binary_data_output"].bool_param = False
    made.parameters[NO_FINAL].bool_param = True
    packed = read(made.SerializeToString()).packed
    assert isinstance(packed, Packed)
    assert b'"binary_data_output":true' in packed.json
    for said in (b'"priority":1', b'"timeout":9223372036854775808', b'"label":"a"', b'"share":0.5'):
        assert said in packed.json
    assert NO_FINAL.encode() not in packed.json


def test_outputs_and_classifications_are_requested() -> None:
    """Names and the number of classes are the client's."""
    made = request("UINT8", [1], uint_contents=[1])
    made.outputs.add(name="a")
    made.outputs.add(name="b").parameters["classification"].int64_param = 3
    packed = read(made.SerializeToString()).packed
    assert isinstance(packed, Packed)
    assert b'"outputs":[{"name":"a"},{"name":"b","parameters":{"classification":3}}]' in packed.json


@pytest.mark.parametrize("kind", ["inputs", "outputs"])
def test_tensors_in_shared_memory_are_not_served(kind: str) -> None:
    """No region can be registered, so none can be used."""
    made = request("UINT8", [0 if kind == "outputs" else 1])
    one = made.inputs[0] if kind == "inputs" else made.outputs.add(name="y")
    one.parameters["shared_memory_region"].string_param = "r"
    assert isinstance(refused(made), NotServed)


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x02\xff\xff", b"\x1a\x01\xff", b"\x2a\x01\x08"])
def test_bytes_that_are_no_request_are_refused(data: bytes) -> None:
    """Nothing of them is believed."""
    found = read(data)
    assert (found.model, type(found.packed)) == ("", BadRequest)
