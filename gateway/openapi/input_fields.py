"""The inputs of a Python function as fields, and examples of them, from its JSON Schema. Pure."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

FieldKind = Literal["text", "integer", "number", "boolean", "choice", "file", "json", "any"]
"""What the text of a field stands for: `json` is a JSON value, `any` one, or else the text."""
NOUNS: Final[dict[FieldKind, str]] = {
    "text": "a text",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "choice": "one of its values",
    "file": "a file",
    "json": "JSON",
    "any": "JSON or a text",
}
DEPTH_MAX: Final = 8
"""Levels of an example, and references that are followed for a field."""
VALUES_MAX: Final = 64
"""Numbers of an example's array."""
PARTS_MAX: Final = 500
"""Parts of an example."""
_PLAIN: Final = {"string": "text", "integer": 1, "number": 1.0, "boolean": True, "null": None}
_KINDS: Final[dict[Any, FieldKind]] = {
    "string": "text",
    "integer": "integer",
    "number": "number",
    "boolean": "boolean",
    "array": "json",
    "object": "json",
}
_FILES: Final = {"image/*": "@x.png", "audio/*": "@x.wav"}
_FILE: Final = "@x.bin"
_REF: Final = "#/$defs/"
_DTYPE: Final = "x-dtype"
"""Member of the schema of a NumPy array."""


class InputField(NamedTuple):
    """One input. `media` is the content type of a file, "" for any. `is_many`: it is a list, of
    which each part of a form is one item; of kind `file`, a list of files. `takes_file`: a file may
    stand for a value of another kind."""

    name: str
    kind: FieldKind
    is_required: bool
    choices: tuple[Any, ...] = ()
    media: str = ""
    is_many: bool = False
    takes_file: bool = False
    is_nullable: bool = False

    @property
    def noun(self) -> str:
        """What it takes, in words: "an integer", 'one of "a", "b"'."""
        if self.kind == "choice":
            return f"one of {', '.join(json.dumps(one) for one in self.choices)}"
        lists = {"json": "a JSON list", "file": "files"} if self.is_many else {}
        text = lists.get(self.kind, NOUNS[self.kind])
        text = text if self.media in ("", "*/*") else f"{text} of {self.media}"
        return f"{text}, or a file" if self.takes_file else text


class Inputs(NamedTuple):
    """All inputs. `takes_others`: further names are taken, with values of any kind."""

    fields: tuple[InputField, ...] = ()
    takes_others: bool = True

    def named(self, name: str) -> InputField | None:
        """Return the input of a name, one of kind `any` for a further one, None for an unknown."""
        found = next((one for one in self.fields if one.name == name), None)
        other = InputField(name, "any", is_required=False, takes_file=True)
        return found or (other if self.takes_others else None)


def inputs_of(description: Mapping[str, Any]) -> Inputs:
    """Return the inputs that a description of a function says: by its `schema`, or by its
    `signature` where the inputs are tensors."""
    tensors = _tensors(description)
    if tensors:
        return Inputs(tuple(_of_tensor(one) for one in tensors), takes_others=False)
    schema = _part(description, "schema")
    defs = _part(schema, "$defs")
    inputs = _resolved(_part(schema, "inputs"), defs)
    members, needed = _part(inputs, "properties"), inputs.get("required")
    required = needed if isinstance(needed, list) else []
    fields = tuple(_field(name, _part(members, name), defs, name in required) for name in members)
    others = inputs.get("additionalProperties", not members)
    return Inputs(fields, takes_others=others is not False)


def example_inputs(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return an example of each input that has no default; "@" and a name stand for a file."""
    if tensors := _tensors(description):
        return {str(one.get("name")): _zeros(one.get("shape")) for one in tensors}
    schema = _part(description, "schema")
    found = _Examples(_part(schema, "$defs")).of(_part(schema, "inputs"))
    return found if isinstance(found, dict) else {}


def call_line(url: str, inputs: Mapping[str, Any], *, is_stream: bool) -> str:
    """Return a curl command that calls a Python function at `url` with `inputs`: files go as a
    form, everything else as JSON."""
    words = ["curl", *(["-N"] if is_stream else []), url]
    if any(isinstance(value, str) and value.startswith("@") for value in inputs.values()):
        for name, value in inputs.items():
            words += ["-F", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
    else:
        body = json.dumps({"inputs": dict(inputs)})
        words += ["-H", "Content-Type: application/json", "-d", body]
    return shlex.join(words)


def _tensors(description: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the inputs of a signature of tensors, [] for any other."""
    found = _part(description, "signature").get("inputs")
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def _of_tensor(spec: Mapping[str, Any]) -> InputField:
    return InputField(str(spec.get("name")), "json", is_required=True, takes_file=True)


def _field(
    name: str, given: Mapping[str, Any], defs: Mapping[str, Any], is_required: bool
) -> InputField:
    schema = _resolved(given, defs)
    options = [_resolved(one, defs) for one in _list(schema, "anyOf")]
    kinds = schema.get("type") if isinstance(schema.get("type"), list) else []
    options += [{**schema, "type": kind} for kind in kinds or []]
    is_nullable = any(one.get("type") == "null" for one in options)
    others = [one for one in options if one.get("type") != "null"]
    if len(others) == 1:
        schema = {**others[0], **{key: schema[key] for key in ("default",) if key in schema}}
    elif others:
        is_any = any(one.get("type") == "string" for one in others)
        kind: FieldKind = "any" if is_any else "json"
        return InputField(name, kind, is_required, is_nullable=is_nullable, takes_file=True)
    one = InputField(name, "any", is_required, is_nullable=is_nullable, takes_file=True)
    if choices := _choices(schema):
        return one._replace(kind="choice", choices=choices, takes_file=False)
    if "contentEncoding" in schema:
        return _of_file(one, schema)
    items = _resolved(_part(schema, "items"), defs)
    if schema.get("type") == "array" and "contentEncoding" in items:
        return _of_file(one, items)._replace(is_many=True)
    kind = _KINDS.get(schema.get("type"), "any")
    is_many = schema.get("type") == "array" and bool({"items", "prefixItems"} & schema.keys())
    is_many = is_many and _DTYPE not in schema
    takes_file = kind in ("text", "json", "any")
    return one._replace(kind=kind, takes_file=takes_file, is_many=is_many)


def _of_file(one: InputField, schema: Mapping[str, Any]) -> InputField:
    media = str(schema.get("contentMediaType") or "")
    return one._replace(kind="file", media=media, takes_file=False)


def _choices(schema: Mapping[str, Any]) -> tuple[Any, ...]:
    if "const" in schema:
        return (schema["const"],)
    found = schema.get("enum")
    return tuple(found) if isinstance(found, list) else ()


def _resolved(schema: Any, defs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema, or the definition that it refers to, with its own members over it."""
    found: dict[str, Any] = dict(schema) if isinstance(schema, Mapping) else {}
    for _ in range(DEPTH_MAX):
        if "$ref" not in found:
            break
        name = str(found.pop("$ref")).removeprefix(_REF)
        found = {**_part(defs, name), **found}
    return found


def _zeros(shape: Any) -> Any:
    """Return zeros in the form of a shape, whose open dimensions are 1."""
    sizes = [max(1, int(one)) for one in shape] if isinstance(shape, list) else [1]
    return "@x.npy" if math.prod(sizes) > VALUES_MAX else filled(0, sizes)


def filled(value: Any, shape: Sequence[int]) -> Any:
    """Return nested lists of a shape with one value everywhere."""
    for size in reversed(shape):
        value = [value] * size
    return value


class _Examples:
    """Makes an example, of at most PARTS_MAX parts: a schema may refer to itself many times."""

    def __init__(self, defs: Mapping[str, Any]) -> None:
        self._defs = defs
        self._left = PARTS_MAX

    def of(self, schema: Mapping[str, Any], depth: int = DEPTH_MAX) -> Any:
        """Return a value that a schema allows, as far as that is easy; a file for what is one."""
        self._left -= 1
        if depth == 0 or self._left < 0:
            return None
        given = [schema[key] for key in ("default", "const") if key in schema]
        given += [one for key in ("enum", "examples") for one in (schema.get(key) or ())[:1]]
        if given:
            return given[0]
        name = str(schema.get("$ref", "")).removeprefix(_REF)
        inner = [_part(self._defs, name)] if name else []
        inner += [one for one in _list(schema, "anyOf") if one.get("type") != "null"]
        if inner:
            return self.of(inner[0], depth - 1)
        if "contentEncoding" in schema:
            return _FILES.get(str(schema.get("contentMediaType")), _FILE)
        if schema.get("type") == "object":
            return self._object(_part(schema, "properties"), schema.get("required"), depth - 1)
        if schema.get("type") == "array":
            return [self.of(_part(schema, "items"), depth - 1)]
        kind = schema.get("type")
        return _PLAIN.get(kind if isinstance(kind, str) else "", None if schema else 1)

    def _object(self, members: Mapping[str, Any], required: Any, depth: int) -> dict[str, Any]:
        found = {}
        for name in required if isinstance(required, list) else ():
            if self._left < 0:
                break
            found[name] = self.of(_part(members, name), depth)
        return found


def _list(of: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = of.get(name)
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def _part(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = of.get(name)
    return found if isinstance(found, Mapping) else {}
