"""Tests of the protocol's form of an error."""

from __future__ import annotations

import json

import pytest

from gateway.oip import shapes
from registry.errors import FnError, FunctionFailing, NoKey, ShuttingDown


def test_an_error_keeps_what_its_problem_says_in_fields() -> None:
    """Status, code, Retry-After and WWW-Authenticate are those of the problem document."""
    status, headers, body, _ = shapes.reply(FunctionFailing("no file", retry_after_s=1.2))
    assert (status, json.loads(bytes(body))) == (
        503,
        {"error": "The function fails to load: no file"},
    )
    assert dict(headers) == {
        "Content-Type": "application/json",
        "Fn-Problem": "function_failing",
        "Retry-After": "2",
    }
    assert "WWW-Authenticate" in dict(shapes.reply(NoKey("none")).headers)
    assert shapes.reply(ShuttingDown("bye")).closes


def test_only_administrators_read_what_is_theirs() -> None:
    """The log of a replica is of nobody else's business."""
    error = FnError("failed", admin_detail={"log_tail": ["secret"]})

    assert b"secret" not in bytes(shapes.reply(error).body)
    assert b"secret" in bytes(shapes.reply(error, for_admin=True).body)


@pytest.mark.parametrize(
    ("line", "is_ours"),
    [
        (b"GET /v2 HTTP/1.1\r\n", True),
        (b"GET /v2/models/x HTTP/1.1\r\nHost: h", True),
        (b"POST /v2?x", True),
        (b"\r\nBREW /v2/", True),
        (b"GET http://host:80/v2/models HTTP/1.1", True),
        (b"GET /v2", True),
        (b"GET /v21 HTTP/1.1", False),
        (b"GET /fn/v2 HTTP/1.1", False),
        (b"GET http://host/fn/v2 HTTP/1.1", False),
        (b"GET /", False),
        (b"", False),
        (b"\x16\x03\x01 /v2", False),
    ],
)
def test_a_request_line_tells_the_form(line: bytes, is_ours: bool) -> None:
    """Also of a head that is no HTTP, or that has only begun."""
    assert shapes.is_protocols(line) is is_ours
