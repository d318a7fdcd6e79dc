"""JSON schemas of values as words: type, limits, default."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.reference.markdown import code, either
from tests.surface.configuration import resolved

PLAIN = {"boolean": "true or false", "integer": "integer", "number": "number", "string": "string"}


def type_of(one: dict[str, Any], whole: dict[str, Any]) -> str:
    """The type of a value with its limits."""
    if "$ref" in one:
        return type_of(resolved(one, whole), whole)
    options = [inner for inner in one.get("anyOf", ()) if inner.get("type") != "null"]
    if options:
        return either([type_of(inner, whole) for inner in options])
    if "enum" in one:
        return either([code(value) for value in one["enum"]])
    if one.get("format") == "path":
        return "path"
    kind = one.get("type", "")
    if kind == "array":
        return f"list{_count(one)}; each item: {type_of(one['items'], whole)}"
    if kind == "object":
        values = one.get("additionalProperties")
        inner = f"; each value: {type_of(values, whole)}" if values is not True and values else ""
        return f"table{_count(one)}{inner}"
    return PLAIN.get(kind, "any JSON value") + _limits(one)


def _limits(one: dict[str, Any]) -> str:
    least, most = one.get("minimum"), one.get("maximum")
    if least is not None and most is not None:
        found = [f" from {_number(least)} to {_number(most)}"]
    else:
        found = [f", at least {_number(least)}"] if least is not None else []
        found += [f", at most {_number(most)}"] if most is not None else []
    if one.get("minLength"):
        found.append(", not empty")
    if "maxLength" in one:
        found.append(f", at most {_number(one['maxLength'])} characters")
    if "pattern" in one:
        found.append(f", matches {code(one['pattern'])}")
    return "".join(found)


def _count(one: dict[str, Any]) -> str:
    least = one.get("minItems")
    most = one.get("maxItems", one.get("maxProperties"))
    if least is not None and least == most:
        return f" of {least} items"
    bounds = [f"{least}"] if least else []
    bounds += [f"{_number(most)}"] if most is not None else []
    return f" of {'' if least else 'at most '}{' to '.join(bounds)} items" if bounds else ""


def _number(value: float) -> str:
    whole = int(value) if value == int(value) else value
    return f"{whole:,}" if abs(whole) >= 10_000 else str(whole)


def default_of(value: object, write: Callable[[object], str] = json.dumps) -> str:
    """A default as `write` writes it: as in TOML, unless another function is given."""
    if isinstance(value, float) and value == int(value):
        value = int(value)
    return code(write(value)) if value not in ("", None) else "empty"
