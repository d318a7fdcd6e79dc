"""The OpenAPI 3.1 document of routes. Pure.

OpenAPI Specification 3.1.1; JSON Schema draft 2020-12; RFC 9457 (problem documents).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from gateway.openapi.answers import AnthropicErrorAnswer, OpenAiErrorAnswer
from gateway.openapi.oip_bodies import OipErrorAnswer
from gateway.openapi.routes import JSON, Answer, Content, Parameter, Route, Shape, errors_of
from gateway.problem_document import Problem
from registry.errors import FnError
from runtime_image.contract.problems import CONTENT_TYPE

VERSION: Final = "3.1.1"
KEY: Final = "key"
"""Name of the security scheme."""
_REF: Final = "#/components/schemas/{name}"
_SHAPES: Final[dict[Shape, Content]] = {
    "problem": Content(CONTENT_TYPE, Problem),
    "openai": Content(JSON, OpenAiErrorAnswer),
    "anthropic": Content(JSON, AnthropicErrorAnswer),
    "either": Content(JSON, (OpenAiErrorAnswer, AnthropicErrorAnswer)),
    "oip": Content(JSON, OipErrorAnswer),
}
"""Bodies of a route's errors."""
_HEADERS: Final = {
    "Fn-Revision": "The revision that answered, such as `digits@3`.",
    "Fn-Problem": "Code of the error.",
    "X-Request-Id": "Id of the request: the client's, or a new one.",
    "Server-Timing": "Phases of the call in milliseconds (W3C Server Timing).",
    "Preference-Applied": "The wait budget that the client asked for with `Prefer: wait`.",
    "Inference-Header-Content-Length": "Bytes of the JSON part of a body with binary tensors.",
    "Location": "Path of the operation.",
    "ETag": "Version of what is shown.",
    "Retry-After": "Seconds after which a further attempt makes sense.",
}
_SCHEMES: Final = {
    KEY: {
        "type": "http",
        "scheme": "bearer",
        "description": "An access key, or the admin token of the data folder. A role is the scope"
        " that the route needs: `admin` includes every scope, `deploy` includes `read`,"
        " `invoke:NAME` is `invoke` for one function.",
    }
}


def make_document(info: dict[str, Any], routes: Sequence[Route]) -> dict[str, Any]:
    """Return the document. `info`: title, version and description. Raises ValueError if two routes
    have the same method and path."""
    schemas, components = _schemas(routes)
    paths: dict[str, dict[str, Any]] = {}
    problems: dict[str, Any] = {}
    for route in routes:
        there = paths.setdefault(route.path, {})
        if route.method.lower() in there:
            raise ValueError(f"{route.method} {route.path} is described twice")
        there[route.method.lower()] = _operation(route, schemas, problems)
    return {
        "openapi": VERSION,
        "info": info,
        "servers": [{"url": "/"}],
        "tags": [{"name": name} for name in dict.fromkeys(one.group for one in routes)],
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": problems,
            "headers": {
                name: {"description": text, "schema": {"type": "string"}}
                for name, text in _HEADERS.items()
            },
            "securitySchemes": _SCHEMES,
        },
    }


def schemas_of(types: Iterable[Any]) -> tuple[dict[Any, dict[str, Any]], dict[str, Any]]:
    """Return the schema of each type, and the schemas that these refer to, by name."""
    found = list(dict.fromkeys(types))
    schemas, components = msgspec.json.schema_components(found, ref_template=_REF)
    for one in components.values():
        if "description" in one:
            one["description"] = _words(one["description"])
    return dict(zip(found, schemas, strict=True)), components


def _words(docstring: str) -> str:
    """Return a docstring as Markdown without its indentation and line breaks."""
    paragraphs = inspect.cleandoc(docstring).split("\n\n")
    return "\n\n".join(" ".join(one.split()) for one in paragraphs)


def _schemas(routes: Sequence[Route]) -> tuple[dict[Any, dict[str, Any]], dict[str, Any]]:
    types = [kind for one in _SHAPES.values() for kind in _types(one)]
    for route in routes:
        contents = [*route.request, *(one for answer in route.answers for one in answer.contents)]
        types += [kind for one in contents for kind in _types(one)]
        types += [one.type for one in route.parameters]
    return schemas_of(types)


def _types(content: Content) -> tuple[Any, ...]:
    if content.type is None:
        return ()
    return content.type if isinstance(content.type, tuple) else (content.type,)


def _operation(
    route: Route, schemas: dict[Any, dict[str, Any]], problems: dict[str, Any]
) -> dict[str, Any]:
    """Return an operation; its errors are added to `problems`, by name."""
    found: dict[str, Any] = {
        "operationId": operation_id(route),
        "summary": route.summary.rstrip("."),
        "tags": [route.group],
    }
    if route.text:
        found["description"] = route.text
    if route.parameters:
        found["parameters"] = [_parameter(one, schemas) for one in route.parameters]
    if route.request:
        content = _contents(route.request, schemas)
        found["requestBody"] = {"required": route.is_body_required, "content": content}
    found["responses"] = responses = {
        str(one.status) if one.status else "default": _answer(one, schemas) for one in route.answers
    }
    for status, kinds in errors_of(route).items():
        name = "_".join([route.shape, *(one.code for one in kinds)])
        problems[name] = _problem(route.shape, kinds, schemas)
        responses[str(status)] = {"$ref": f"#/components/responses/{name}"}
    if route.need is not None:
        keys: list[dict[str, list[str]]] = [{KEY: [route.need]}]
        found["security"] = [{}, *keys] if route.is_open else keys
    return found


def operation_id(route: Route) -> str:
    """Return the name of a route for programs: method and words of the path."""
    words = re.findall(r"[a-z0-9_]+", route.path.lower())
    return "_".join([route.method.lower(), *words])


def _parameter(one: Parameter, schemas: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    return {
        "name": one.name,
        "in": one.place,
        "required": one.is_required,
        "description": one.text,
        "schema": schemas[one.type],
    }


def _contents(
    contents: Iterable[Content], schemas: dict[Any, dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for one in contents:
        shown: dict[str, Any] = {}
        if kinds := [schemas[kind] for kind in _types(one)]:
            shown["schema"] = {"anyOf": kinds} if len(kinds) > 1 else kinds[0]
        if one.example is not None:
            shown["example"] = one.example
        found[one.media] = shown
    return found


def _answer(answer: Answer, schemas: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {"description": answer.text}
    if answer.headers:
        found["headers"] = {name: _header_ref(name) for name in answer.headers}
    if answer.contents:
        found["content"] = _contents(answer.contents, schemas)
    return found


def _problem(
    shape: Shape, kinds: list[type[FnError]], schemas: dict[Any, dict[str, Any]]
) -> dict[str, Any]:
    content = _contents([_SHAPES[shape]], schemas)
    if shape == "problem":
        schema = content[CONTENT_TYPE]["schema"]
        codes = {"properties": {"code": {"enum": [one.code for one in kinds]}}}
        content[CONTENT_TYPE]["schema"] = {**schema, **codes}
    words = "; ".join(f"`{one.code}`: {one.title}" for one in kinds)
    return {
        "description": f"{words}.",
        "headers": {"Retry-After": _header_ref("Retry-After")},
        "content": content,
    }


def _header_ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/headers/{name}"}
