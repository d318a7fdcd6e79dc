"""Section of the surface about the admin API: its routes and types, from the OpenAPI document."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from admin.documents.openapi import make_routes_document
from admin.documents.routes import PREFIX

REF: Final = "#/components/schemas/"
WHOLE: Final = re.compile(re.escape(f'"{REF}') + '([^"]+)"')
"""A reference in the text of a document; group 1 is the name of its type."""


def admin_api() -> Iterator[str]:
    """Yield parameters, bodies and answers of each route, then the types that these name. What all
    routes have is shown once."""
    document = json.loads(make_routes_document(""))
    types = document["components"]["schemas"]
    routes = {at: ways for at, ways in document["paths"].items() if at.startswith(PREFIX)}
    lines = {
        f"{method.upper()} {at}": set(_operation(operation))
        for at, ways in routes.items()
        for method, operation in ways.items()
    }
    common = set.intersection(*lines.values())
    yield from (f"every route {line}" for line in common)
    for route, of in lines.items():
        yield from (f"{route} {line}" for line in of - common)
    for name in reached(types, routes):
        yield from _named(name, types[name])


def reached(types: Mapping[str, Any], routes: object) -> list[str]:
    """Return the names of the types that routes name, or that these types name."""
    wanted, known = {"Problem", *WHOLE.findall(json.dumps(routes))}, set[str]()
    while wanted:
        known.add(name := wanted.pop())
        wanted |= set(WHOLE.findall(json.dumps(types[name]))) - known
    return sorted(known)


def _operation(operation: dict[str, Any]) -> Iterator[str]:
    for one in operation.get("parameters", ()):
        optional = "" if one["required"] else "~"
        yield f"{one['in']} {one['name']}{optional}: {words_of(one['schema'])}"
    if body := operation.get("requestBody"):
        yield from _contents(f"body{'' if body['required'] else '~'}", body)
    for status, answer in operation["responses"].items():
        if "$ref" in answer:
            yield f"{status}: {answer['$ref'].rpartition('/')[2]}"
        else:
            yield from _contents(status, answer)


def _contents(caption: str, body: dict[str, Any]) -> Iterator[str]:
    shown = body.get("content", {})
    if not shown:
        yield caption
    for media, one in shown.items():
        yield f"{caption} {media}: {words_of(one.get('schema', {}))}"


def _named(name: str, schema: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each member of an object; ~: it may be left out."""
    if "properties" not in schema:
        yield f"{name}: {words_of(schema)}"
    for key, inner in schema.get("properties", {}).items():
        left_out = "" if key in schema["required"] else "~"
        default = f" = {json.dumps(inner['default'])}" if "default" in inner else ""
        yield f"{name}.{key}{left_out}: {words_of(inner)}{default}"


def words_of(schema: dict[str, Any]) -> str:
    """Return a schema as one text."""
    if "$ref" in schema:
        return str(schema["$ref"]).removeprefix(REF)
    if "anyOf" in schema:
        return " | ".join(map(words_of, schema["anyOf"]))
    if "enum" in schema:
        return " | ".join(map(json.dumps, schema["enum"]))
    if "prefixItems" in schema:
        return f"[{', '.join(map(words_of, schema['prefixItems']))}]"
    if "items" in schema:
        return f"{words_of(schema['items'])}[]"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"{{*: {words_of(schema['additionalProperties'])}}}"
    return str(schema.get("type", "any"))
