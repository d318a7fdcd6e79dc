"""Tests of the OpenAPI document of all routes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from openapi_spec_validator import validate

from gateway.openapi import routes
from gateway.openapi.document import make_document, operation_id
from gateway.openapi.routes import Answer, Content, Parameter, Route, errors_of
from gateway.statuses import STATUS
from gateway.v1.endpoints import ENDPOINTS
from registry import errors
from tests.support.described import described_routes

INFO = {"title": "t", "version": "1"}


class Body(msgspec.Struct):
    """Some body,
    in two lines."""

    x: int


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """The document of every route."""
    made = make_document(INFO, list(described_routes().values()))
    decoded: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(made))
    return decoded


def one(**changes: Any) -> Route:
    """Return a route with few facts."""
    given = {"method": "GET", "path": "/a", "need": "read", "answers": (Answer(200, "OK"),)}
    return Route(**{**given, "group": "g", "summary": "Do it.", **changes})


def operation(route: Route) -> dict[str, Any]:
    """Return what the document says of a route."""
    found: dict[str, Any] = make_document(INFO, [route])["paths"][route.path]
    return found[route.method.lower()]  # type: ignore[no-any-return]


def test_the_document_is_valid(document: dict[str, Any]) -> None:
    """A validator of OpenAPI 3.1 accepts the document."""
    validate(document)


def test_every_operation_has_a_name_of_its_own() -> None:
    """Names of operations are distinct: generated clients have a function for each."""
    names = [operation_id(route) for route in described_routes().values()]

    assert len(set(names)) == len(names)


def test_every_endpoint_of_models_is_described(document: dict[str, Any]) -> None:
    """The document has every path below /v1 that the gateway knows."""
    assert {f"/v1{path.decode()}" for path in ENDPOINTS} < document["paths"].keys()


def test_a_summary_is_one_line(document: dict[str, Any]) -> None:
    """Each summary is one line without a full stop, each description has no line breaks within."""
    for path in document["paths"].values():
        for found in path.values():
            assert found["summary"]
            assert not found["summary"].endswith(".")
            assert len(found["summary"]) <= 90
    for schema in document["components"]["schemas"].values():
        assert "\n  " not in schema.get("description", "")


def test_errors_are_grouped_by_status() -> None:
    """An operation lists each status once, with the codes of all its errors, also those of every
    route with a key and a body."""
    route = one(request=(Content("text/plain"),), errors=(errors.Conflict, errors.Unknown))

    found = errors_of(route)

    assert found[409] == [errors.Conflict]
    assert found[403] == [errors.ForeignOrigin, errors.WrongScope]
    assert found[408] == [errors.HeadTimeout, errors.BodyTimeout]
    for status, kinds in found.items():
        assert {STATUS[kind] for kind in kinds} == {status}


def test_a_public_route_has_no_errors_of_keys() -> None:
    """Where nobody needs a key, no answer is 401, and nothing is said about keys."""
    public = one(need=None)

    assert 401 not in errors_of(public)
    assert "security" not in operation(public)
    assert operation(one())["security"] == [{"key": ["read"]}]
    assert operation(one(is_open=True))["security"] == [{}, {"key": ["read"]}]


def test_a_problem_names_its_codes() -> None:
    """The schema of a status allows the codes that the route has there, and no others."""
    found = make_document(INFO, [one()])
    ref = found["paths"]["/a"]["get"]["responses"]["403"]["$ref"].rpartition("/")[2]

    problem = found["components"]["responses"][ref]["content"]["application/problem+json"]

    assert problem["schema"]["properties"]["code"] == {"enum": ["foreign_origin", "wrong_scope"]}


@pytest.mark.parametrize("shape", ["openai", "anthropic", "either", "oip"])
def test_a_protocol_has_its_own_shape(shape: Any) -> None:
    """Errors of a protocol are JSON, not problem documents."""
    found = make_document(INFO, [one(shape=shape)])

    kinds = [kind for one in found["components"]["responses"].values() for kind in one["content"]]

    assert set(kinds) == {"application/json"}


def test_types_become_schemas() -> None:
    """Parameters, bodies and answers have the schemas of their types; one of several types is any
    of them; docstrings lose their line breaks."""
    sent = Answer(200, "OK", (Content("application/json", (Body, list[int])),))
    route = one(
        answers=(sent,),
        request=(Content("application/json", Body, {"x": 1}),),
        parameters=(Parameter("n", "Number.", int),),
    )

    made = make_document(INFO, [route])
    found = made["paths"]["/a"]["get"]

    assert found["parameters"][0]["schema"] == {"type": "integer"}
    assert found["requestBody"]["content"]["application/json"]["example"] == {"x": 1}
    answer = found["responses"]["200"]["content"]["application/json"]["schema"]
    assert [("$ref" in kind) for kind in answer["anyOf"]] == [True, False]
    assert made["components"]["schemas"]["Body"]["description"] == "Some body, in two lines."


def test_a_route_is_described_once() -> None:
    """Two descriptions of one method and path are a mistake."""
    with pytest.raises(ValueError, match="GET /a is described twice"):
        make_document(INFO, [one(), one()])


def test_words_for_every_status_of_success() -> None:
    """`answered` has words for each status that routes use."""
    for status in routes.WORDS:
        assert routes.answered(None, status=status).text
