"""The line that calls a function, made from its schema."""

from __future__ import annotations

from typing import Any

import pytest

from admin.cli.dev.calling import curl, describe
from admin.cli.dev.running import choose_port

URL = "http://127.0.0.1:1/"
PICTURE = {"type": "string", "contentEncoding": "base64", "contentMediaType": "image/*"}
POST = f"curl {URL} -H 'Content-Type: application/json' -d "


def named(**properties: Any) -> dict[str, Any]:
    """Return the schema of required parameters."""
    inputs = {"type": "object", "properties": properties, "required": [*properties]}
    return {"schema": {"inputs": inputs}}


@pytest.mark.parametrize(
    ("description", "line"),
    [
        ({}, POST + "'{\"inputs\": {}}'"),
        (
            named(a={"type": "string"}, b={"type": "integer"}, c={"enum": ["x", "y"]}),
            POST + '\'{"inputs": {"a": "text", "b": 1, "c": "x"}}\'',
        ),
        (
            named(a={"anyOf": [{"type": "null"}, {"type": "array", "items": {"type": "number"}}]}),
            POST + '\'{"inputs": {"a": [1.0]}}\'',
        ),
        (named(image=PICTURE, k={"type": "integer"}), f"curl {URL} -F image=@x.png -F k=1"),
        (named(a={"type": "string", "contentEncoding": "base64"}), f"curl {URL} -F a=@x.bin"),
        (
            {"signature": {"form": "async generator"}, **named(a={"type": "boolean"})},
            POST.replace("curl", "curl -N") + '\'{"inputs": {"a": true}}\'',
        ),
        (
            {"signature": {"tensors": {"inputs": [{"name": "x", "shape": [-1, 2]}]}}},
            POST + '\'{"inputs": {"x": [[0, 0]]}}\'',
        ),
        (
            {"signature": {"tensors": {"inputs": [{"name": "x", "shape": [640, 480]}]}}},
            f"curl {URL} -F x=@x.npy",
        ),
        (
            {
                "schema": {
                    "inputs": {"$ref": "#/$defs/A"},
                    "$defs": {"A": {**named(b={"$ref": "#/$defs/A"})["schema"]["inputs"]}},
                }
            },
            '{"b": {"b": {"b": null}}}',
        ),
    ],
)
def test_the_schema_gives_the_line(description: dict[str, Any], line: str) -> None:
    """Files go as a form, everything else as JSON; a schema without an end is cut."""
    assert line in curl(URL, description, {})


def test_a_sample_is_preferred() -> None:
    """The one of the manifest."""
    assert curl(URL, named(a=PICTURE), {"a": "@two.png", "k": 2}).endswith("-F a=@two.png -F k=2")
    assert curl(URL, {}, {"a": "it's"}).endswith("""-d '{"inputs": {"a": "it'"'"'s"}}'""")


def test_who_does_not_answer_says_nothing() -> None:
    """The line is made all the same."""
    assert describe("127.0.0.1", choose_port(0)) == {}
