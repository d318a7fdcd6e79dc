"""Errors in the shapes of the protocols."""

from __future__ import annotations

import json

import pytest

from gateway import problems
from gateway.v1 import shapes
from gateway.v1.endpoints import Protocol
from registry import errors
from registry.errors import FnError

OPENAI, ANTHROPIC = Protocol.OPENAI, Protocol.ANTHROPIC


@pytest.mark.parametrize(
    ("error", "status", "openai", "anthropic"),
    [
        (errors.BadRequest("x"), 400, "invalid_request_error", "invalid_request_error"),
        (errors.NoKey("x"), 401, "authentication_error", "authentication_error"),
        (errors.WrongScope("x"), 403, "permission_error", "permission_error"),
        (errors.Unknown("x"), 404, "invalid_request_error", "not_found_error"),
        (errors.BodyTooLarge("x"), 413, "invalid_request_error", "request_too_large"),
        (errors.QueueFull("x"), 429, "rate_limit_error", "rate_limit_error"),
        (errors.UpstreamFailed("x"), 502, "server_error", "api_error"),
        (errors.WaitBudgetOver("x"), 503, "server_error", "overloaded_error"),
        (errors.UpstreamTimeout("x"), 504, "server_error", "timeout_error"),
    ],
)
def test_errors_have_the_types_of_the_protocol(
    error: FnError, status: int, openai: str, anthropic: str
) -> None:
    """Status and fields stay those of the problem; the type is the protocol's."""
    first, second = (shapes.reply(one, "r1", error) for one in (OPENAI, ANTHROPIC))
    assert first.status == second.status == status
    assert json.loads(bytes(first.body))["error"]["type"] == openai
    found = json.loads(bytes(second.body))
    assert (found["type"], found["error"]["type"]) == ("error", anthropic)
    assert found["request_id"] == "r1"


def test_an_answer_keeps_the_fields_of_the_problem() -> None:
    """Retry-After and the end of the connection hold in every protocol."""
    error = errors.BodyEvicted("x", retry_after_s=2.2)
    headers = shapes.reply(OPENAI, "", error).headers
    plain = problems.reply(error).headers
    assert dict(headers) == {**dict(plain), "Content-Type": "application/json"}
    assert {"Retry-After": "3", "Connection": "close"}.items() <= dict(headers).items()


@pytest.mark.parametrize(
    ("error", "code", "param"),
    [
        (errors.NoKey("x"), "invalid_api_key", None),
        (errors.UnknownModel("x"), "model_not_found", None),
        (errors.BadRequest("x", detail={"param": "model"}), "bad_request", "model"),
        (errors.BadRequest("x", detail={"param": 3}), "bad_request", None),
        (errors.Asleep("x"), "asleep", None),
    ],
)
def test_clients_can_compare_the_code(error: FnError, code: str, param: str | None) -> None:
    """The codes that clients of OpenAI's API know are used where there is one."""
    found = json.loads(bytes(shapes.reply(OPENAI, "", error).body))["error"]
    assert (found["message"], found["code"], found["param"]) == ("x", code, param)


def test_an_error_is_an_event_in_a_stream() -> None:
    """Only Anthropic's streams name their events."""
    error = errors.UpstreamFailed('broken "off"\n')
    first, second = (
        shapes.event(one, bytes(shapes.reply(one, "r1", error).body)) for one in (OPENAI, ANTHROPIC)
    )
    assert first.startswith(b"data: {")
    assert second.startswith(b"event: error\ndata: {")
    for one in (first, second):
        assert one.endswith(b"}\n\n")
        assert b"\n" not in one.partition(b"data: ")[2][:-2]
        assert json.loads(one.partition(b"data: ")[2])["error"]["message"] == error.message
