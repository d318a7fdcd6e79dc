"""The OpenAPI document of a Python function."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from gateway.openapi.function_document import function_document
from registry.model.revisions import Interface
from runtime_image.contract.model import ImageForm, InputRule, OutputRule
from tests.support.interfaces import FILE, PICTURE, TYPES, interface, named, python_deployed

JSON, FORM, URLENCODED = TYPES
TEXT = {"type": "string"}
OCTETS = "application/octet-stream"
ITEM = {
    "type": "object",
    "properties": {"next": {"anyOf": [{"$ref": "#/$defs/Item"}, {"type": "null"}]}},
}


def document(said: Interface | None, **changes: Any) -> dict[str, Any]:
    """Return the document of a Python function, which is valid."""
    found = function_document(python_deployed(said, **changes))
    whole: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(found))
    validate(whole)
    return whole


def bodies(said: Interface | None, **changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the document says of bodies and of answers, by media type."""
    operation = document(said, **changes)["paths"]["/fn/web"]["post"]
    return operation["requestBody"]["content"], operation["responses"]["200"]["content"]


def test_definitions_are_components() -> None:
    """Also those that refer to themselves, and those with a name of ours."""
    defs = {"Item": ITEM, "Problem": {"type": "integer"}}
    inputs = named("item", item={"$ref": "#/$defs/Item"}, code={"$ref": "#/$defs/Problem"})
    whole = document(interface(inputs, {"$ref": "#/$defs/Item"}, defs=defs))

    schemas = whole["components"]["schemas"]
    assert schemas["Problem_"] == {"type": "integer"}
    assert "detail" in schemas["Problem"]["properties"]
    schema = whole["paths"]["/fn/web"]["post"]["requestBody"]["content"][JSON]["schema"]
    judge = Draft202012Validator({**schema, "components": whole["components"]})
    assert judge.is_valid({"inputs": {"item": {"next": {"next": None}}, "code": 1}})
    assert not judge.is_valid({"inputs": {"item": {"next": {"next": 1}}}})
    assert not judge.is_valid({"inputs": {"item": {}, "code": "x"}})
    assert not judge.is_valid({"inputs": {}})


def test_files_are_bytes_in_a_form_and_base64_in_json() -> None:
    """A form without files is offered where none is needed."""
    optional = named(
        "k", k={"type": "integer"}, image=PICTURE, more={"type": "array", "items": FILE}
    )
    taken, _ = bodies(interface(optional))
    needed, _ = bodies(interface(named("image", image=PICTURE)))

    form = taken[FORM]["schema"]
    binary = {"type": "string", "format": "binary", "contentMediaType": "image/*"}
    assert form["properties"]["image"] == binary
    assert form["properties"]["more"]["items"]["format"] == "binary"
    assert (form["properties"]["k"], form["required"]) == ({"type": "integer"}, ["k"])
    assert [*taken[URLENCODED]["schema"]["properties"]] == ["k"]
    assert taken[JSON]["schema"]["properties"]["inputs"]["properties"]["image"] == PICTURE
    assert [*needed] == [JSON, FORM]


@pytest.mark.parametrize(
    ("output", "kind", "media"),
    [
        (None, "", [JSON, "*/*"]),
        (TEXT, "", ["text/plain", JSON]),
        (FILE, "", [OCTETS]),
        (PICTURE, "", ["image/png"]),
        ({"type": "object"}, "", [JSON]),
        ({"type": "array", "items": {}, "x-dtype": "FP32"}, "image", ["image/png"]),
        ({"type": "array"}, "npy", ["application/x-npy"]),
        (TEXT, "json", [JSON]),
    ],
)
def test_answers_have_the_type_of_the_result(
    output: dict[str, Any] | None, kind: str, media: list[str]
) -> None:
    """By the hint, or as the manifest says."""
    assert [*bodies(interface(named(), output), kind=kind)[1]] == media


def test_a_result_is_an_output() -> None:
    """An object's members are outputs by name; anything else is one output."""
    number, item = {"type": "number"}, {"$ref": "#/$defs/Item"}
    one = bodies(interface(named(), number))[1][JSON]["schema"]["properties"]["outputs"]
    several = bodies(interface(named(), item, defs={"Item": ITEM}))[1][JSON]["schema"]

    assert one["properties"] == {"output": number}
    assert several["properties"]["outputs"] == {"$ref": "#/components/schemas/Item"}


@pytest.mark.parametrize(
    ("output", "media"),
    [
        (TEXT, ["text/event-stream", "application/x-ndjson", "text/plain"]),
        ({"type": "object"}, ["text/event-stream", "application/x-ndjson"]),
        (FILE, [OCTETS]),
        (None, ["text/event-stream", "application/x-ndjson", "text/plain", OCTETS]),
    ],
)
def test_streams_have_their_forms(output: dict[str, Any] | None, media: list[str]) -> None:
    """Each says the schema of one value."""
    answers = bodies(interface(named(), output, form="async generator"))[1]

    assert [*answers] == media
    if output == {"type": "object"}:
        assert answers["text/event-stream"]["x-item-schema"] == output


def test_tensors_have_the_forms_of_models() -> None:
    """With their pictures and labels."""
    tensors = {
        "kind": "tensors",
        "inputs": [{"name": "x", "dtype": "FP32", "shape": [-1, 2]}],
        "outputs": [],
    }
    rules = {"x": InputRule(kind="image", image=ImageForm((2, 2)))}
    said = interface({"type": "object"}, tensors=tensors)
    taken, answers = bodies(said, inputs=rules, output=OutputRule(labels=("a",)))

    assert {JSON, "image/*", "application/x-npy", FORM} <= taken.keys()
    assert taken[FORM]["schema"]["properties"] == {"x": {"type": "string", "format": "binary"}}
    assert "top" in str(answers[JSON])


@pytest.mark.parametrize("said", [None, Interface(why_not="odd")])
def test_a_function_without_a_schema_has_a_document(said: Interface | None) -> None:
    """It takes inputs by name."""
    taken, answers = bodies(said)

    assert taken[JSON]["schema"]["properties"]["inputs"] == {"type": "object"}
    assert JSON in answers
