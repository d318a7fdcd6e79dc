"""What a server says of its calls is a stranger's text: bounded, and closed in itself."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from registry.interface import DEPTH_MAX, read_interface, referring
from registry.model.revisions import Interface
from runtime_image.contract.server import DESCRIPTION_MAX
from runtime_image.contract.signature import Signature, TensorSpec
from tests.support.interfaces import description, interface, named

A = {"type": "object", "properties": {"b": {"$ref": "#/$defs/A"}}}


def deep(levels: int) -> dict[str, Any]:
    """Return a schema of lists in lists."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def test_what_is_said_is_kept() -> None:
    """Signature, types, tensors, schema and imports."""
    tensors = {
        "kind": "tensors",
        "inputs": [{"name": "x", "dtype": "FP32", "shape": [-1]}],
        "outputs": [],
    }
    said = description(named("a", a=A), A, defs={"A": A}, form="generator", tensors=tensors)
    said["imports"] = [{"package": "numpy", "ms": 12.5}]

    found = read_interface(json.dumps(said))

    assert (found.predict, found.form, found.is_stream) == ("predict(...)", "generator", True)
    assert found.content_types == tuple(said["signature"]["content_types"])
    assert found.tensors == Signature("tensors", (TensorSpec("x", "FP32", (-1,)),), ())
    assert json.loads(found.schema) == said["schema"]
    assert (found.why_not, found.imports) == ("", (("numpy", 12.5),))


def test_a_schema_keeps_only_what_it_means() -> None:
    """Members that would change what references mean, and unknown ones, are left out; a parameter
    may have such a name."""
    odd = {"$id": "http://a", "$anchor": "b", "$schema": "c", "x-more": {"$ref": "http://d"}}
    inputs = {**named(**{"$ref": {"type": "string", **odd}}), **odd}

    found = interface(inputs, {"const": {"$ref": "http://e"}})

    assert json.loads(found.schema) == {
        "inputs": named(**{"$ref": {"type": "string"}}),
        "output": {"const": {"$ref": "http://e"}},
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "cannot be read"),
        ("[1]", "Expected `object`, got `array`"),
        ('{"a":' * 10_000, "cannot be read"),
        ("[" * 30_000, "lists and objects"),
        ("x" * (DESCRIPTION_MAX + 1), f"expected at most {DESCRIPTION_MAX} bytes"),
        (json.dumps({**description({}), "signature": {}}), "missing required field `predict`"),
        (json.dumps(description({}, predict="x" * 2001)), "Expected `str` of length <= 2000"),
        (json.dumps(description({}, form="x")), "Invalid enum value 'x'"),
        (json.dumps(description({}, tensors={"kind": "x"})), "signature kind"),
        (json.dumps(description({}, tensors={"kind": "tensors"})), "'inputs'"),
        (json.dumps({**description({}), "schema": []}), "Expected `object`, got `array`"),
        ('"\ud800"', "surrogates not allowed"),
    ],
)
def test_an_unfit_description_is_left_out(text: str, told: str) -> None:
    """The function works without it, and the reason says why; it is short."""
    found = read_interface(text)

    assert told in found.why_not
    assert found == Interface(why_not=found.why_not)
    assert len(found.why_not) <= 500


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"inputs": {"$ref": "http://evil.example/a"}}, "inputs.$ref: expected #/$defs/"),
        ({"inputs": {"$ref": "#/$defs/B"}, "$defs": {"A": {}}}, "got '#/$defs/B'"),
        ({"inputs": {"$ref": "#/components/schemas/Problem"}}, "expected #/$defs/"),
        ({"inputs": {"$ref": 7}}, "got '7'"),
        ({"inputs": {}, "$defs": {"a/b": {}}}, "$defs: expected names of A-Z"),
        ({"inputs": {}, "$defs": []}, "$defs: expected an object, got a list"),
        ({"inputs": None}, "inputs: expected a schema, got null"),
        ({"inputs": True}, "inputs: expected an object, got true"),
        ({"inputs": {"type": "text"}}, "inputs.type: expected array, boolean"),
        ({"inputs": {"properties": []}}, "expected schemas by name, got a list"),
        ({"inputs": {"required": [1]}}, "inputs.required: expected a list of names"),
        ({"inputs": {"anyOf": {}}}, "inputs.anyOf: expected a list of schemas, got an object"),
        ({"inputs": {"enum": []}}, "inputs.enum: expected a list of values"),
        ({"inputs": {"minimum": "1"}}, "inputs.minimum: expected a number, got a text"),
        ({"inputs": {"title": 1}}, "inputs.title: expected a text, got a number"),
        ({"inputs": {"deprecated": 1}}, "expected true or false, got a number"),
        (
            {"inputs": {"discriminator": {"propertyName": "a", "mapping": {"b": "http://a"}}}},
            "inputs.discriminator: expected #/$defs/",
        ),
        ({"inputs": {"discriminator": 1}}, "expected an object with propertyName"),
        ({"inputs": deep(DEPTH_MAX)}, f"expected at most {DEPTH_MAX} levels"),
        ({"inputs": {"default": json.loads("[" * 40 + "]" * 40)}}, "levels, got more"),
        ({"why_not": "too long"}, "too long"),
    ],
)
def test_an_unfit_schema_is_left_out(schema: dict[str, Any], told: str) -> None:
    """The signature stays."""
    found = read_interface(json.dumps({**description({}), "schema": schema}))

    assert told in found.why_not
    assert (found.schema, found.predict) == ("", "predict(...)")


def test_a_missing_description_has_its_reason() -> None:
    """It is cut."""
    assert read_interface("", "no answer" * 1000).why_not == ("no answer" * 1000)[:500]


def test_references_can_lead_elsewhere() -> None:
    """Only those that are references: a value that looks like one is a value."""
    value = {"$ref": "#/$defs/A"}
    union = {
        "anyOf": [value],
        "discriminator": {"propertyName": "k", "mapping": {"a": "#/$defs/A"}},
    }
    found = interface(named(a=value, b=union, c={"default": value}), value, defs={"A": A})

    there = referring(found.schema, "#/there/{}".format)

    moved = {"$ref": "#/there/A"}
    members = there["inputs"]["properties"]
    assert (members["a"], there["output"], members["c"]) == (moved, moved, {"default": value})
    assert members["b"]["anyOf"] == [moved]
    assert members["b"]["discriminator"]["mapping"] == {"a": "#/there/A"}
    assert there["$defs"]["A"]["properties"]["b"] == moved


def test_it_survives_the_store() -> None:
    """As a part of the revision's record."""
    found = interface(named("a", a={"type": "string"}))

    assert msgspec.json.decode(msgspec.json.encode(found), type=Interface) == found
