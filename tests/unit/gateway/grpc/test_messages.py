"""The compiled messages, compared with their source."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import gateway.grpc
from gateway.grpc.messages import METHODS, POOL, message, parse
from gateway.grpc.service import Service
from registry.errors import BadRequest

SOURCE = Path(gateway.grpc.__file__).with_name("inference.proto")
_TYPES = {
    1: "double",
    2: "float",
    3: "int64",
    4: "uint64",
    5: "int32",
    8: "bool",
    9: "string",
    12: "bytes",
    13: "uint32",
}
_FIELD = re.compile(r"(repeated )?(map<string, )?([A-Za-z0-9_]+)>? ([a-z0-9_]+) = (\d+);")


def written() -> set[tuple[str, ...]]:
    """Return the fields, values and methods in the source, each with the path of its message."""
    found: set[tuple[str, ...]] = set()
    path: list[str] = []
    for line in SOURCE.read_text().splitlines():
        text = line.partition("//")[0].strip()
        if opened := re.fullmatch(r"(message|enum|service|oneof) (\w+) \{(\})?", text):
            if opened[3]:
                found.add((".".join([*path, opened[2]]),))
            else:
                path.append("" if opened[1] == "oneof" else opened[2])
        elif text == "}":
            path.pop()
        elif field := _FIELD.fullmatch(text):
            many = "map" if field[2] else (field[1] or "").strip()
            found.add((_join(path), many, field[3], field[4], field[5]))
        elif value := re.fullmatch(r"(\w+) = (\d+);", text):
            found.add((_join(path), value[1], value[2]))
        elif method := re.fullmatch(r"rpc (\w+)\((stream )?(\w+)\) returns \((.*)\) \{\}", text):
            found.add((method[1], str(bool(method[2])), method[3], method[4]))
    return found


def _join(path: list[str]) -> str:
    return ".".join(one for one in path if one)


def compiled() -> set[tuple[str, ...]]:
    """Return the same of the compiled file."""
    found: set[tuple[str, ...]] = set()
    file = POOL.FindFileByName(SOURCE.name)
    for one in file.message_types_by_name.values():
        _add(one, one.name, found)
    for one in file.enum_types_by_name.values():
        found |= {(one.name, value.name, str(value.number)) for value in one.values}
    for one in METHODS.values():
        returned = ("stream " if one.server_streaming else "") + one.output_type.name
        found.add((one.name, str(one.client_streaming), one.input_type.name, returned))
    return found


def _add(one: Any, path: str, found: set[tuple[str, ...]]) -> None:
    for field in one.fields:
        kind, many = field, "repeated" if field.is_repeated else ""
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            kind, many = field.message_type.fields_by_name["value"], "map"
        named = kind.message_type or kind.enum_type
        type_name = named.name if named is not None else _TYPES[kind.type]
        found.add((path, many, type_name, field.name, str(field.number)))
    for enum in one.enum_types:
        found |= {(f"{path}.{enum.name}", value.name, str(value.number)) for value in enum.values}
    if not one.fields and not one.nested_types:
        found.add((path,))
    for nested in one.nested_types:
        if not nested.GetOptions().map_entry:
            _add(nested, f"{path}.{nested.name}", found)


def test_the_compiled_messages_are_those_of_the_source() -> None:
    """`make proto` was run after each change of inference.proto."""
    assert compiled() == written()


def test_numbers_are_those_of_tritons_client() -> None:
    """Every field has the number, type and form that it has in Triton's own messages."""
    triton = pytest.importorskip("tritonclient.grpc.service_pb2").DESCRIPTOR.pool
    for one in POOL.FindFileByName(SOURCE.name).message_types_by_name.values():
        _compare(one, triton)


def _compare(one: Any, triton: Any) -> None:
    known = triton.FindMessageTypeByName(one.full_name).fields_by_name
    for field in one.fields:
        other = known[field.name]
        expected = (other.number, other.type, other.is_repeated, bool(other.containing_oneof))
        own = (field.number, field.type, field.is_repeated, bool(field.containing_oneof))
        assert own == expected, field.full_name
    for nested in one.nested_types:
        _compare(nested, triton)


def test_every_method_is_served() -> None:
    """Each method of the service has a handler."""
    methods = Service(invoker=None, admission=None, version="").methods  # type: ignore[arg-type]
    assert {*methods, "ModelInfer", "ModelStreamInfer"} == set(METHODS)


def test_bytes_that_are_no_message_are_refused() -> None:
    """The error names the message and the length, and quotes nothing."""
    with pytest.raises(BadRequest, match="expected a message ModelReadyRequest, got 2 bytes"):
        parse(message("ModelReadyRequest"), b"\x0a\x09")
