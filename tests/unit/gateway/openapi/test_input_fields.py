"""Inputs as fields, and examples of them."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.openapi.input_fields import PARTS_MAX, Inputs, example_inputs, inputs_of
from tests.support.interfaces import FILE, PICTURE, named


def of(inputs: Any, **defs: Any) -> Inputs:
    """Return the inputs of a schema."""
    return inputs_of({"schema": {"inputs": inputs, "$defs": defs}})


@pytest.mark.parametrize(
    ("schema", "kind", "noun"),
    [
        ({"type": "string"}, "text", "a text, or a file"),
        ({"type": "integer"}, "integer", "an integer"),
        ({"type": "number"}, "number", "a number"),
        ({"type": "boolean"}, "boolean", "true or false"),
        ({"enum": ["a", 1]}, "choice", 'one of "a", 1'),
        ({"const": "a"}, "choice", 'one of "a"'),
        (FILE, "file", "a file"),
        (PICTURE, "file", "a file of image/*"),
        ({"type": "array", "items": PICTURE}, "file", "files of image/*"),
        ({"type": "array", "items": {}}, "json", "a JSON list, or a file"),
        ({"type": "array", "items": {}, "x-dtype": "FP32"}, "json", "JSON, or a file"),
        ({"type": "object"}, "json", "JSON, or a file"),
        ({}, "any", "JSON or a text, or a file"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "integer", "an integer"),
        ({"type": ["integer", "null"]}, "integer", "an integer"),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "any", "JSON or a text, or a file"),
        ({"anyOf": [{"type": "integer"}, {"type": "array"}]}, "json", "JSON, or a file"),
        ({"$ref": "#/$defs/A"}, "integer", "an integer"),
        ({"$ref": "#/$defs/Loop"}, "any", "JSON or a text, or a file"),
        ({"$ref": "#/$defs/None"}, "any", "JSON or a text, or a file"),
        (True, "any", "JSON or a text, or a file"),
    ],
)
def test_a_schema_is_a_field(schema: Any, kind: str, noun: str) -> None:
    """By its type, also behind references and beside null."""
    found = of(named("a", a=schema), A={"type": "integer"}, Loop={"$ref": "#/$defs/Loop"})

    (field,) = found.fields
    assert (field.kind, field.noun, field.is_required) == (kind, noun, True)


def test_names_are_those_of_the_schema() -> None:
    """Further ones only where it lets them in, or names none."""
    closed, free = of(named(a={"type": "string"})), of({"type": "object"})
    item = of({"$ref": "#/$defs/Item"}, Item={"properties": {"b": {"type": "integer"}}})

    assert closed.named("b") is None
    assert not closed.named("a").is_required  # type: ignore[union-attr]
    assert free.named("b").kind == "any"  # type: ignore[union-attr]
    assert (item.named("b").kind, item.named("c")) == ("integer", None)  # type: ignore[union-attr]
    assert of({**named(a={}), "additionalProperties": True}).named("b") is not None
    assert inputs_of({}).takes_others


def test_tensors_are_fields() -> None:
    """By the signature: a JSON value or a file."""
    spec = {"name": "x", "dtype": "FP32", "shape": [-1, 2]}
    found = inputs_of({"signature": {"inputs": [spec]}, "schema": {"inputs": {"type": "object"}}})

    assert [(one.name, one.kind, one.takes_file) for one in found.fields] == [("x", "json", True)]
    assert found.named("y") is None


def test_an_example_has_bounded_parts() -> None:
    """A schema may refer to itself many times, at each of its levels."""
    names = [f"n{at}" for at in range(100)]
    loop = named(*names, **{name: {"$ref": "#/$defs/A"} for name in names})
    found = example_inputs({"schema": {"inputs": {"$ref": "#/$defs/A"}, "$defs": {"A": loop}}})

    def parts(value: Any) -> int:
        return 1 + sum(map(parts, value.values())) if isinstance(value, dict) else 1

    assert parts(found) <= PARTS_MAX + 1
