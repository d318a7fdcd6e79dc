"""Tests of the OpenAPI document of one function: its schemas say what its codecs take."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from gateway.openapi.descriptions import example
from gateway.openapi.function_document import function_document
from registry.catalog import Deployed
from registry.model.profiles import Profile
from runtime_image.codecs.request import RequestHead, parse
from runtime_image.contract.errors import RequestError
from runtime_image.contract.model import AudioForm, BytesForm, ImageForm, InputRule, OutputRule
from runtime_image.contract.signature import Signature, TensorSpec
from tests.support import nouns

JSON = "application/json"
X, Y = TensorSpec("x", "FP32", (-1, 2)), TensorSpec("y", "FP32", (-1,))
TEXT, FLAG = TensorSpec("t", "BYTES", (-1,)), TensorSpec("b", "BOOL", ())
HALF, BYTE = TensorSpec("h", "FP16", (2,)), TensorSpec("u", "UINT8", (1, 1))
ANY, WORDS = TensorSpec("x", "FP32", None), TensorSpec("w", "BYTES", None)
SIGNATURES = {
    "one": Signature("tensors", (X,), (Y,)),
    "several": Signature("tensors", (TEXT, FLAG, HALF, BYTE), (Y, TEXT)),
    "unknown": Signature("tensors", (ANY, WORDS), (ANY,)),
    "json": Signature("json", (), ()),
    "bytes": Signature("bytes", (), ()),
}
RULES = {
    "image": InputRule(kind="image", image=ImageForm((2, 2))),
    "audio": InputRule(kind="audio", audio=AudioForm()),
    "bytes": InputRule(kind="bytes", bytes=BytesForm()),
}
BODIES: list[Any] = [
    {"inputs": {"x": [[1, 2]]}},
    {"inputs": {"x": [[1.5, -2], [0, 0]]}},
    {"inputs": {"x": []}},
    {"inputs": {"x": [[1, 2, 3]]}},
    {"inputs": {"x": [["a", "b"]]}},
    {"inputs": {"x": [1, 2]}},
    {"inputs": {"x": [[1e39, 0]]}},
    {"inputs": {"x": [[1, 2]], "z": 1}},
    {"inputs": {"x": [[1, 2]]}, "more": 1},
    {"inputs": {}},
    {"inputs": 1},
    {},
    [],
    {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]},
    {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [[1, 2]]}], "id": "a"},
    {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]},
    {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP64", "data": [1, 2]}]},
    {"inputs": [{"name": "z", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]},
    {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": ["a", 2]}]},
    {"inputs": [{"name": "x", "shape": [], "datatype": "FP32", "data": []}]},
    {"inputs": [{"shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]},
    {
        "inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}],
        "outputs": [{"name": "y"}],
    },
    {
        "inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}],
        "outputs": [{"name": "nothing"}],
    },
    {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, None]}]},
    {"inputs": {"x": [[1, None]]}},
    {"inputs": {"x": [None]}},
    {"inputs": {"x": [[1, 3.4028235e38]]}},
    {"inputs": []},
]


def deployed(signature: Signature, **changes: Any) -> Deployed:
    """Return a function with a signature."""
    return Deployed(nouns.function(), nouns.revision(signature=signature, **changes))


def operation(one: Deployed) -> dict[str, Any]:
    """Return what the document of a function says of a call, as clients read it."""
    document = msgspec.json.decode(msgspec.json.encode(function_document(one)))
    validate(document)
    found: dict[str, Any] = document["paths"]["/fn/digits"]["post"]
    return found


def is_taken(body: Any, signature: Signature) -> bool:
    """Return whether the codec takes a JSON body."""
    try:
        parse(RequestHead(JSON), msgspec.json.encode(body), signature, {})
    except RequestError:
        return False
    return True


@pytest.mark.parametrize("kind", SIGNATURES)
def test_the_document_is_valid(kind: str) -> None:
    """A validator of OpenAPI 3.1 accepts the document of every kind of signature."""
    assert operation(deployed(SIGNATURES[kind]))["operationId"] == "post_fn_digits"


@pytest.mark.parametrize("body", BODIES)
def test_the_schema_allows_what_the_codec_takes(body: Any) -> None:
    """A body fits the schema of the request if and only if the codec takes it."""
    signature = SIGNATURES["one"]
    schema = operation(deployed(signature))["requestBody"]["content"][JSON]["schema"]

    assert Draft202012Validator(schema).is_valid(body) is is_taken(body, signature)


def test_the_example_fits() -> None:
    """The example of a call is a body that the codec takes and the schema allows."""
    for kind in ("one", "several", "unknown"):
        content = operation(deployed(SIGNATURES[kind]))["requestBody"]["content"][JSON]

        assert is_taken(content["example"], SIGNATURES[kind])
        Draft202012Validator(content["schema"]).validate(content["example"])


@pytest.mark.parametrize("value", [1, None, [], [1, 2], [[1], [2]], [[[None]]]])
def test_an_unknown_rank_allows_lists_in_lists(value: Any) -> None:
    """What the codec takes fits the schema, in both protocols."""
    signature = Signature("tensors", (ANY,), (ANY,))
    schema = operation(deployed(signature))["requestBody"]["content"][JSON]["schema"]
    body = {"inputs": {"x": value}}
    shape = list(np.shape(value))
    data = value if isinstance(value, list) else [value]
    oip = {"inputs": [{"name": "x", "shape": shape, "datatype": "FP32", "data": data}]}

    for one in (body, oip):
        assert is_taken(one, signature)
        Draft202012Validator(schema).validate(one)
    assert not Draft202012Validator(schema).is_valid({"inputs": {"x": "a"}})


@pytest.mark.parametrize(
    ("spec", "sample", "profiled", "shown"),
    [
        (TensorSpec("x", "FP32", (2,)), {}, True, [0.0, 0.0]),
        (TensorSpec("x", "FP32", (1000,)), {}, True, None),
        (TensorSpec("x", "BF16", (2,)), {}, True, None),
        (TensorSpec("x", "INT64", (-1,)), {}, False, None),
        (TensorSpec("x", "INT64", (-1,)), {"x": [7, 3]}, False, [7, 3]),
        (TensorSpec("x", "BYTES", (1,)), {"x": ["it's"]}, True, ["it's"]),
        (TensorSpec("x", "FP32", (1000,)), {"x": [0.5] * 1000}, True, None),
        (TensorSpec("x", "FP32", (2,)), {"x": "@x.json"}, True, None),
    ],
)
def test_an_example_is_a_call_that_a_trial_ran(
    spec: TensorSpec, sample: dict[str, Any], profiled: bool, shown: Any
) -> None:
    """It has the sample, or zeros where a run of them did not fail; an input whose values are not
    known, are a file or do not fit on a line is shown as its type, in the command alone."""
    one = deployed(Signature("tensors", (spec,), ()))
    profile = Profile("b", "onnx", "cpu", 1.0, 1.0, {}, batchable=False, profiled=profiled)
    one = replace(one, revision=replace(one.revision, sample=sample), profile=profile)

    words = shlex.split(example(one, "http://h"))
    content = operation(one)["requestBody"]["content"][JSON]

    assert words[:2] == ["curl", "http://h/fn/digits"]
    value = json.loads(words[-1])["inputs"]["x"]
    assert value == (shown if shown is not None else f"<{spec.dtype} {list(spec.smallest_shape)}>")
    assert content.get("example") == (None if shown is None else {"inputs": {"x": shown}})


def test_media_types_follow_the_signature() -> None:
    """Pictures, sounds, npy and bytes are offered where the codec takes them."""

    def media(kind: str, **rules: InputRule) -> set[str]:
        return set(operation(deployed(SIGNATURES[kind], inputs=rules))["requestBody"]["content"])

    binary = {JSON, "application/octet-stream"}
    assert media("several") == binary
    assert media("one") == binary | {"application/x-npy"}
    assert media("one", x=RULES["image"]) == binary | {"application/x-npy", "image/*"}
    assert media("one", x=RULES["audio"]) >= {"audio/wav", "audio/x-wav"}
    assert media("json") == {JSON}
    assert media("bytes") == {"application/octet-stream", "*/*"}


def test_answers_fit_their_schema() -> None:
    """Answers in short JSON and in the protocol's JSON fit; a NaN is null; other shapes do not."""
    one = deployed(SIGNATURES["one"], output=OutputRule(labels=("a", "b"), top_k=1))
    answer = operation(one)["responses"]["200"]["content"][JSON]["schema"]
    fits = Draft202012Validator(answer).is_valid

    assert fits({"outputs": {"y": [1.0, None]}, "revision": "digits@1"})
    top = [[{"label": "a", "score": 1.0}]]
    assert fits({"outputs": {"y": [1.0]}, "revision": "digits@1", "top": top})
    tensor = {"name": "y", "shape": [1], "datatype": "FP32", "data": [1.0]}
    assert fits({"model_name": "digits", "model_version": "1", "outputs": [tensor]})
    assert not fits({"outputs": {"y": ["a"]}, "revision": "digits@1"})
    assert not fits({"outputs": {"y": 1}, "revision": "digits@1"})


def test_a_half_has_no_json_in_the_protocol() -> None:
    """The protocol's JSON of an input of FP16 has no data: it is sent as bytes."""
    schema = operation(deployed(SIGNATURES["several"]))["requestBody"]["content"][JSON]["schema"]
    oip = schema["anyOf"][1]["properties"]["inputs"]["items"]["anyOf"]

    named = {one["properties"]["name"]["const"]: one["properties"] for one in oip}

    assert "data" not in named["h"]
    assert named["t"]["data"] == {"type": "array", "items": {"type": "string"}}
