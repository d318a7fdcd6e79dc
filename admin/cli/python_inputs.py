"""Request bodies of `fnctl invoke` for Python functions, from -i options and the schema."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import typer

from admin.cli.inputs import SHOWN_MAX, is_json, read_file, split_input, wrong, wrong_value
from admin.client.client import Payload
from admin.text import command
from gateway.openapi.input_fields import FieldKind, InputField, Inputs, inputs_of
from runtime_image.contract.model import CONTENT_TYPES, JSON, OCTETS
from runtime_image.contract.proposals import did_you_mean, nearest

_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_WORDS: Final[dict[FieldKind, str]] = {
    "text": "TEXT",
    "integer": "INTEGER",
    "number": "NUMBER",
    "boolean": "true|false",
    "file": "@FILE",
    "json": "JSON",
    "any": "VALUE",
}


def usage(name: str, inputs: Inputs) -> str:
    """Return the command that calls a function, with its optional inputs in brackets."""
    words = [command("fnctl", "invoke", name)]
    for one in inputs.fields:
        value = _WORDS.get(one.kind) or "|".join(map(_choice, one.choices))
        option = f"-i {one.name}={value}"
        words.append(option if one.is_required else f"[{option}]")
    return " ".join([*words, *(["[-i NAME=VALUE ...]"] if inputs.takes_others else [])])


def without_inputs(name: str, description: Mapping[str, Any]) -> Payload:
    """Return the body of a call without inputs. Raises typer.BadParameter if some are needed; it
    says what the function takes."""
    inputs = inputs_of(description)
    if any(one.is_required for one in inputs.fields):
        wrong("-i", f"expected inputs, got none: {usage(name, inputs)}")
    return Payload(b'{"inputs": {}}', JSON)


def python_payload(name: str, description: Mapping[str, Any], items: Sequence[str]) -> Payload:
    """Return the body for the -i options `items`: a form if one of them is a file, else JSON.

    Raises typer.BadParameter for what the function does not take, with what was expected.
    """
    inputs = inputs_of(description)
    given: list[tuple[InputField, str]] = []
    for item in items:
        key, value = split_input(item)
        field = inputs.named(key)
        if field is None:
            known = [one.name for one in inputs.fields]
            hint = did_you_mean(nearest(key, known, 1))
            got = f"got {key[:SHOWN_MAX]!r}{hint}"
            wrong("-i", f"expected an input of the function: {', '.join(known) or 'none'}; {got}")
        is_list = field.is_many and field.kind == "file"
        if not is_list and any(one.name == key for one, _ in given):
            wrong("-i", f"expected {key} once")
        given.append((field, _read_json(field, value)))
    missing = {one.name for one in inputs.fields if one.is_required} - {
        one.name for one, _ in given
    }
    if missing:
        text = f"expected {', '.join(sorted(missing))}, got nothing: {usage(name, inputs)}"
        wrong("-i", text)
    if any(value.startswith("@") for _, value in given):
        return _form(given)
    pairs = (f"{json.dumps(one.name)}: {_json(one, value)}" for one, value in given)
    return Payload(f'{{"inputs": {{{", ".join(pairs)}}}}}'.encode(), JSON)


def _read_json(field: InputField, value: str) -> str:
    """Return a value, or the text of the .json file that it names, where JSON is expected."""
    path = Path(value[1:]).expanduser()
    if not value.startswith("@") or field.kind not in ("json", "any"):
        return value
    if path.suffix.lower() != ".json":
        return value
    try:
        return read_file(f"-i {field.name}", path).decode()
    except UnicodeDecodeError as error:
        wrong(f"-i {field.name}", f"{path}: expected UTF-8, got other bytes at {error.start}")


def _json(field: InputField, value: str) -> str:
    """Return the JSON text of a value, whose digits are unchanged."""
    kind = field.kind
    if field.is_nullable and kind != "text" and value == "null":
        return value
    if kind == "text" or (kind == "any" and not is_json(value)):
        return json.dumps(value)
    if kind == "choice":
        return _chosen(field, value)
    number = value.strip()
    if kind == "integer" and _INTEGER.fullmatch(number):
        return _digits(number)
    if kind == "boolean" and value.lower() in ("true", "false"):
        return value.lower()
    if kind == "number" and is_json(number) and _is_number(number):
        return number
    if kind in ("json", "any") and is_json(value):
        return value
    raise _unfit(field, value)


def _digits(number: str) -> str:
    """Return an integer as JSON has it: without a plus and zeros before it."""
    sign = "-" if number.startswith("-") else ""
    return sign + (number.lstrip("+-").lstrip("0") or "0")


def _is_number(text: str) -> bool:
    return isinstance(json.loads(text, parse_int=float), float)


def _chosen(field: InputField, value: str) -> str:
    for one in field.choices:
        if value == _choice(one):
            return json.dumps(one)
    raise _unfit(field, value)


def _choice(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _unfit(field: InputField, value: str) -> typer.BadParameter:
    hint = ""
    if field.kind == "file" or (field.takes_file and Path(value[:SHOWN_MAX]).is_file()):
        hint = f": -i {field.name}=@FILE"
    got = repr(value[:SHOWN_MAX])
    text = f"expected {field.noun}, got {got}{hint}"
    return wrong_value(f"-i {field.name}", text)


def _form(given: Sequence[tuple[InputField, str]]) -> Payload:
    """Return a form: files as they are, texts as texts, all else as JSON (RFC 7578)."""
    boundary = secrets.token_hex(16)
    body = bytearray()
    for field, value in given:
        head = f"--{boundary}\r\nContent-Disposition: form-data; name={_quoted(field.name)}"
        if value.startswith("@"):
            content, file = _file(field, value)
            media = CONTENT_TYPES.get(file.suffix.lower(), OCTETS)
            head += f"; filename={_quoted(file.name)}\r\nContent-Type: {media}"
            contents = [content]
        else:
            contents = [one.encode() for one in _texts(field, value)]
        for content in contents:
            body += b"%b\r\n\r\n%b\r\n" % (head.encode(), content)
    body += f"--{boundary}--\r\n".encode()
    return Payload(bytes(body), f"multipart/form-data; boundary={boundary}")


def _texts(field: InputField, value: str) -> list[str]:
    """Return the parts of a form that stand for a value: of a list, one for each item."""
    if field.kind in ("text", "any"):
        return [value]
    made = _json(field, value)
    if field.kind == "choice":
        return [value]
    if not field.is_many or made == "null":
        return [made]
    items = msgspec.json.decode(made)
    if not isinstance(items, list):
        raise _unfit(field, value)
    return [one if isinstance(one, str) else msgspec.json.encode(one).decode() for one in items]


def _file(field: InputField, value: str) -> tuple[bytes, Path]:
    if field.kind != "file" and not field.takes_file:
        raise _unfit(field, value)
    path = Path(value[1:]).expanduser()
    return read_file(f"-i {field.name}", path), path


def _quoted(text: str) -> str:
    """Return a value of Content-Disposition as browsers write it (HTML, 4.10.21.8)."""
    text = text.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
    return f'"{text}"'
