"""Tests of errors as answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway import problems
from registry import errors
from runtime_image.contract import errors as codes
from runtime_image.contract.errors import RequestError, bad_input


def body(response: Any) -> dict[str, Any]:
    """The response's problem document."""
    document: dict[str, Any] = json.loads(response.body)
    return document


def test_a_problem_says_what_rfc_9457_wants() -> None:
    """Type, title, status and detail are there, with the code and the error's own data."""
    error = errors.UnknownFunction("no function 'x'", detail={"nearest": ["y"]})

    assert problems.document(error) == {
        "type": "urn:fngate:problem:unknown_function",
        "title": "Unknown function",
        "status": 404,
        "detail": "no function 'x'",
        "code": "unknown_function",
        "nearest": ["y"],
    }


def test_the_answer_is_a_problem_document() -> None:
    """Status and content type are those of the problem."""
    response = problems.answer(errors.Conflict("busy"), {"X": "1"})

    assert (response.status, response.content_type) == (409, "application/problem+json")
    assert response.headers["X"] == "1"
    assert body(response)["status"] == 409


@pytest.mark.parametrize(
    ("seconds", "header", "field"), [(0.0, "1", 0), (0.2, "1", 1), (7, "7", 7)]
)
def test_retry_after_is_in_whole_seconds_from_one(seconds: float, header: str, field: int) -> None:
    """The header never says "at once"."""
    response = problems.answer(errors.QueueFull("full", retry_after_s=seconds))

    assert (response.headers["Retry-After"], body(response)["retry_after_s"]) == (header, field)


def test_without_an_estimate_there_is_no_retry_after() -> None:
    """An error that time does not heal promises nothing."""
    assert "Retry-After" not in problems.answer(errors.BadRequest("bad")).headers


def test_what_is_for_admins_is_shown_to_no_one_else() -> None:
    """Log lines are only in the answer of an administrator."""
    error = errors.FunctionFailing("broken", admin_detail={"log_tail": ["Traceback"]})

    assert "log_tail" not in body(problems.answer(error))
    assert body(problems.answer(error, for_admin=True))["log_tail"] == ["Traceback"]


def test_a_missing_key_is_asked_for() -> None:
    """401 carries WWW-Authenticate (RFC 9110, 11.6.1)."""
    headers = problems.answer(errors.NoKey("none")).headers

    assert headers["WWW-Authenticate"] == 'Bearer realm="fngate"'


def test_a_wrong_method_is_told_the_right_ones() -> None:
    """405 carries Allow (RFC 9110, 15.5.6)."""
    error = errors.MethodNotAllowed("no", detail={"allow": ["GET", "HEAD"]})

    assert problems.answer(error).headers["Allow"] == "GET, HEAD"


def test_a_server_that_goes_closes_its_connections() -> None:
    """Clients are not to send their next request on this connection."""
    assert problems.answer(errors.ShuttingDown("bye")).headers["Connection"] == "close"


def test_every_code_of_a_replica_has_its_place_in_the_tree() -> None:
    """No code that may come over a link is without an answer."""
    assert set(problems.FROM_REPLICA) == codes.REQUEST_CODES


def test_a_request_error_keeps_what_it_names() -> None:
    """Input, expected and got reach the client as data."""
    error = problems.from_request_error(bad_input("x", "FP32", "INT8"))

    assert isinstance(error, errors.BadInput)
    assert error.message == "input 'x': expected FP32, got INT8"
    assert error.detail == {"input": "x", "expected": "FP32", "got": "INT8"}


def test_a_request_error_without_an_input_adds_nothing() -> None:
    """A failed run has only its message."""
    error = problems.from_request_error(RequestError(codes.FUNCTION_FAILED, "boom"))

    assert (type(error), error.detail) == (errors.FunctionFailed, {})


def test_every_status_is_one_of_a_failure() -> None:
    """The table maps errors to 4xx and 5xx, each class under a code of its own."""
    assert all(400 <= status <= 599 for status in problems.STATUS.values())
    assert len({error.code for error in problems.STATUS}) == len(problems.STATUS)


def test_plain_data_is_answered_as_json() -> None:
    """A success carries status and headers as given."""
    response = problems.json_answer({"a": [1]}, problems.CREATED, {"Location": "/x"})

    assert (response.status, response.content_type) == (201, "application/json")
    assert (response.headers["Location"], body(response)) == ("/x", {"a": [1]})


def test_bytes_that_are_no_text_can_be_told() -> None:
    """A header in another encoding than UTF-8 comes as lone surrogates; naming it is no defect."""
    response = problems.answer(errors.UnsupportedType("got '\udcff\udcfe'"))

    assert response.status == 415
    assert isinstance(response.body, bytes)
    assert json.loads(response.body)["detail"] == "got '\udcff\udcfe'"


def test_whose_fault_an_answer_tells_of() -> None:
    """No answer at all is nobody's."""
    faults = [problems.is_servers_fault(status) for status in (0, 200, 404, 429, 500, 503)]
    assert faults == [False] * 4 + [True] * 2


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, "ok"),
        (202, "ok"),
        (400, "refused"),
        (429, "refused"),
        (500, "failed"),
        (504, "failed"),
    ],
)
def test_an_answer_is_right_refused_or_failed(status: int, outcome: str) -> None:
    """What is the client's own doing is no failure of the server."""
    assert problems.outcome(status) == outcome
