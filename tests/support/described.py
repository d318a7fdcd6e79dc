"""Real answers against what the OpenAPI document says of their routes."""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Mapping
from typing import Any

import msgspec

from admin.documents.openapi import every_route
from gateway.openapi.oip_bodies import OipErrorAnswer
from gateway.openapi.routes import EVENTS, Content, Route, errors_of
from gateway.problem_document import Problem


def described_routes() -> dict[str, Route]:
    """Every described route by "METHOD /path/{name}"."""
    return {f"{one.method} {one.path}": one for one in every_route()}


def check_answer(route: Route, status: int, media: str, body: bytes) -> None:
    """Raise AssertionError unless an answer is as the document says, to the last member."""
    about = f"{route.method} {route.path}: {status} {media}"
    answer = next((one for one in route.answers if one.status == status), None)
    if answer is None:
        _check_error(route, status, body, about)
        return
    found = [one for one in answer.contents if one.media in (media, "*/*")]
    assert found or not body, f"{about}: the document has no such body"
    if found and found[0].type is not None and media == EVENTS:
        kinds = typing.get_type_hints(found[0].type)
        for name, data in re.findall(r"^event: (.*)\ndata: (.*)$", body.decode(), re.MULTILINE):
            check_event(kinds, name, data)
    elif found and found[0].type is not None:
        _check_json(found[0], body, about)


def _check_json(content: Content, body: bytes, about: str) -> None:
    kinds = content.type if isinstance(content.type, tuple) else (content.type,)
    said = [_difference(body, kind) for kind in kinds]
    assert None in said, f"{about}: {'; '.join(filter(None, said))}"


def check_event(kinds: Mapping[str, Any], name: str, data: str) -> None:
    """Raise AssertionError unless an event's data is of its type, to the last member."""
    assert (said := _difference(data.encode(), kinds[name])) is None, f"event {name}: {said}"


def _difference(body: bytes, kind: Any) -> str | None:
    """Return what a body has that its type has not, or the reverse; None for nothing."""
    try:
        value = msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        return str(error)
    there, said = json.loads(body), json.loads(msgspec.json.encode(value))
    return None if there == said else _path_of(there, said, "$")


def _path_of(there: Any, said: Any, path: str) -> str:
    if isinstance(there, dict) and isinstance(said, dict):
        if there.keys() != said.keys():
            return f"{path}: {sorted(there.keys() ^ said.keys())}"
        return next(
            _path_of(there[k], said[k], f"{path}.{k}") for k in there if there[k] != said[k]
        )
    if isinstance(there, list) and isinstance(said, list) and len(there) == len(said):
        pairs = enumerate(zip(there, said, strict=True))
        return next(_path_of(a, b, f"{path}[{n}]") for n, (a, b) in pairs if a != b)
    return f"{path}: {there!r} and {said!r}"


def _check_error(route: Route, status: int, body: bytes, about: str) -> None:
    known = [one.code for one in errors_of(route).get(status, ())]
    assert known, f"{about}: the document has no such status"
    if not body:
        return
    if route.shape == "problem":
        problem = msgspec.json.decode(body, type=Problem)
        assert problem.code in known, f"{about}: {problem.code} is not among {known}"
        assert problem.status == status, about
    elif route.shape == "oip":
        msgspec.json.decode(body, type=OipErrorAnswer)
