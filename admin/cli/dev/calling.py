"""The line that calls a function on this machine, from what its runner says of it."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any, Final

from admin.text import command
from registry.bounded_text import read_json
from registry.errors import BadRequest

DESCRIPTION: Final = "/.fngate/description"
DESCRIPTION_MAX: Final = 64 * 1024
DEPTH_MAX: Final = 8
"""Levels of an example."""
VALUES_MAX: Final = 64
"""Numbers of an example's array."""
ASK_S: Final = 5.0
_OK: Final = 200
_PLAIN: Final = {
    "string": "text",
    "integer": 1,
    "number": 1.0,
    "boolean": True,
    "null": None,
}
_FILES: Final = {"image/*": "@x.png", "audio/*": "@x.wav"}
_FILE: Final = "@x.bin"
_REF: Final = "#/$defs/"


def describe(host: str, port: int) -> Mapping[str, Any]:
    """Return what a runner says of its handler; {} if it does not."""
    connection = http.client.HTTPConnection(host, port, timeout=ASK_S)
    try:
        connection.request("GET", DESCRIPTION)
        answer = connection.getresponse()
        data = answer.read(DESCRIPTION_MAX + 1)
        found = read_json(data, dict[str, Any], "description") if answer.status == _OK else {}
    except (OSError, http.client.HTTPException, BadRequest):
        return {}
    finally:
        connection.close()
    return found


def curl(url: str, description: Mapping[str, Any], sample: Mapping[str, Any]) -> str:
    """Return a command that calls the function; `sample` are inputs of its `[sample]`."""
    signature, schema = _part(description, "signature"), _part(description, "schema")
    words = ["curl", *(["-N"] if str(signature.get("form")).endswith("generator") else []), url]
    values = dict(sample) or _values(signature, schema)
    if any(isinstance(value, str) and value.startswith("@") for value in values.values()):
        for name, value in values.items():
            words += ["-F", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
    else:
        words += ["-H", "Content-Type: application/json", "-d", json.dumps({"inputs": values})]
    return command(*words)


def _values(signature: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return an example of each input that has no default."""
    tensors = _part(signature, "tensors").get("inputs")
    if isinstance(tensors, list):
        return {str(one["name"]): _zeros(one.get("shape")) for one in tensors}
    defs = _part(schema, "$defs")
    inputs = _part(schema, "inputs")
    found = _example(inputs, defs, DEPTH_MAX)
    return found if isinstance(found, dict) else {}


def _zeros(shape: Any) -> Any:
    """Return zeros in the form of a shape, whose open dimensions are 1."""
    sizes = [max(1, int(one)) for one in shape] if isinstance(shape, list) else [1]
    count = 1
    for size in sizes:
        count *= size
    if count > VALUES_MAX:
        return "@x.npy"
    value: Any = 0
    for size in reversed(sizes):
        value = [value] * size
    return value


def _example(schema: Mapping[str, Any], defs: Mapping[str, Any], depth: int) -> Any:
    """Return a value that a schema allows, as far as that is easy; a file for what is a file."""
    if depth == 0:
        return None
    given = [schema[key] for key in ("default", "const") if key in schema]
    given += [schema[key][0] for key in ("enum", "examples") if schema.get(key)]
    if given:
        return given[0]
    inner = [_part(defs, str(schema["$ref"]).removeprefix(_REF))] if "$ref" in schema else []
    inner += [one for one in schema.get("anyOf") or () if one.get("type") != "null"]
    if inner:
        return _example(inner[0], defs, depth - 1)
    if "contentEncoding" in schema:
        return _FILES.get(str(schema.get("contentMediaType")), _FILE)
    if schema.get("type") == "object":
        members, required = _part(schema, "properties"), schema.get("required") or ()
        return {name: _example(_part(members, name), defs, depth - 1) for name in required}
    if schema.get("type") == "array":
        return [_example(_part(schema, "items"), defs, depth - 1)]
    return _PLAIN.get(str(schema.get("type")), None if schema else 1)


def _part(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = of.get(name)
    return found if isinstance(found, Mapping) else {}
