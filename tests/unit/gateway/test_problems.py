"""Tests of errors as HTTP answers (problem documents)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway import problems, statuses
from registry import errors
from runtime_image.contract import errors as codes
from runtime_image.contract.errors import RequestError, bad_input
from tests.support.answers import as_sent


def body(response: Any) -> dict[str, Any]:
    """Return the response's problem document."""
    document: dict[str, Any] = json.loads(response.body)
    return document


def test_a_problem_has_the_members_of_rfc_9457() -> None:
    """A problem has type, title, status and detail, plus the code and the error's own data."""
    error = errors.UnknownFunction("no function 'x'", detail={"nearest": ["y"]})

    assert as_sent(problems.document(error)) == {
        "type": "urn:fngate:problem:unknown_function",
        "title": "Unknown function",
        "status": 404,
        "detail": "no function 'x'",
        "code": "unknown_function",
        "nearest": ["y"],
    }


def test_the_answer_is_a_problem_document() -> None:
    """The answer has the problem's status and the content type of RFC 9457."""
    response = problems.response_of(problems.reply(errors.Conflict("busy")))

    assert (response.status, response.content_type) == (409, "application/problem+json")
    assert body(response)["status"] == 409


@pytest.mark.parametrize(
    ("seconds", "header", "field"), [(0.0, "1", 0), (0.2, "1", 1), (7, "7", 7)]
)
def test_retry_after_is_in_whole_seconds_from_one(seconds: float, header: str, field: int) -> None:
    """The header is at least one second, rounded up."""
    response = problems.response_of(problems.reply(errors.QueueFull("full", retry_after_s=seconds)))

    assert (response.headers["Retry-After"], body(response)["retry_after_s"]) == (header, field)


def test_without_an_estimate_there_is_no_retry_after() -> None:
    """An error that a later retry cannot cure has no Retry-After."""
    assert (
        "Retry-After" not in problems.response_of(problems.reply(errors.BadRequest("bad"))).headers
    )


def test_admin_detail_is_shown_to_administrators_only() -> None:
    """Log lines appear only in the answer to an administrator."""
    error = errors.FunctionFailing("broken", admin_detail={"log_tail": ["Traceback"]})

    assert "log_tail" not in body(problems.reply(error))
    assert body(problems.reply(error, for_admin=True))["log_tail"] == ["Traceback"]


def test_a_missing_key_is_challenged() -> None:
    """A 401 carries WWW-Authenticate (RFC 9110, 11.6.1)."""
    headers = problems.response_of(problems.reply(errors.NoKey("none"))).headers

    assert headers["WWW-Authenticate"] == 'Bearer realm="fngate"'


def test_a_wrong_method_lists_the_allowed_ones() -> None:
    """A 405 carries Allow (RFC 9110, 15.5.6)."""
    error = errors.MethodNotAllowed("no", detail={"allow": ["GET", "HEAD"]})

    assert problems.response_of(problems.reply(error)).headers["Allow"] == "GET, HEAD"


def test_a_stopping_server_closes_its_connections() -> None:
    """`Connection: close` keeps clients from sending another request on the connection."""
    assert (
        problems.response_of(problems.reply(errors.ShuttingDown("bye"))).headers["Connection"]
        == "close"
    )


def test_every_replica_error_code_has_an_error_class() -> None:
    """Every error code that a replica may send maps to an error class."""
    assert set(problems.FROM_REPLICA) == codes.REQUEST_CODES


def test_a_request_error_keeps_its_fields() -> None:
    """Input, expected and got reach the client as fields."""
    error = problems.from_request_error(bad_input("x", "FP32", "INT8"))

    assert isinstance(error, errors.BadInput)
    assert error.message == "input 'x': expected FP32, got INT8"
    assert error.detail == {"input": "x", "expected": "FP32", "got": "INT8"}


def test_a_request_error_without_an_input_adds_nothing() -> None:
    """A failed run has a message and no extra fields."""
    error = problems.from_request_error(RequestError(codes.FUNCTION_FAILED, "boom"))

    assert (type(error), error.detail) == (errors.FunctionFailed, {})


def test_every_error_has_a_failure_status() -> None:
    """The table maps each error class to 4xx or 5xx; each class has its own code."""
    assert all(400 <= status <= 599 for status in statuses.STATUS.values())
    assert len({error.code for error in statuses.STATUS}) == len(statuses.STATUS)


def test_plain_data_is_answered_as_json() -> None:
    """A JSON answer has the given status and headers."""
    response = problems.json_answer({"a": [1]}, statuses.CREATED, {"Location": "/x"})

    assert (response.status, response.content_type) == (201, "application/json")
    assert (response.headers["Location"], body(response)) == ("/x", {"a": [1]})


def test_a_detail_that_is_no_utf_8_can_be_sent() -> None:
    """A header that is not UTF-8 arrives as lone surrogates; quoting it in a problem does not
    fail."""
    response = problems.response_of(problems.reply(errors.UnsupportedType("got '\udcff\udcfe'")))

    assert response.status == 415
    assert isinstance(response.body, bytes)
    assert json.loads(response.body)["detail"] == "got '\udcff\udcfe'"


def test_only_5xx_is_the_servers_fault() -> None:
    """A status below 500, or no answer at all (0), is not the server's fault."""
    faults = [statuses.is_servers_fault(status) for status in (0, 200, 404, 429, 500, 503)]
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
def test_a_status_is_ok_refused_or_failed(status: int, outcome: str) -> None:
    """4xx counts as refused, 5xx as failed."""
    assert statuses.outcome(status) == outcome
