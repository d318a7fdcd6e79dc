"""Errors that both the gateway and a function's own server answer: their codes, titles and HTTP
statuses (RFC 9457)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from runtime_image.contract import errors

CONTENT_TYPE: Final = "application/problem+json"


class Problem(NamedTuple):
    """One kind of error, with its HTTP status."""

    code: str
    title: str
    status: int


UNKNOWN: Final = Problem("unknown", "Not found", 404)
BAD_REQUEST: Final = Problem("bad_request", "Bad request", 400)
BAD_INPUT: Final = Problem(errors.BAD_INPUT, "The input does not fit the function", 400)
UNSUPPORTED_TYPE: Final = Problem(errors.UNSUPPORTED_TYPE, "Unsupported content type", 415)
UNSUPPORTED_ENCODING: Final = Problem(
    "unsupported_encoding", "Unsupported content encoding", UNSUPPORTED_TYPE.status
)
EXPECTATION_FAILED: Final = Problem("expectation_failed", "The expectation cannot be met", 417)
HEAD_TOO_LARGE: Final = Problem("head_too_large", "The request head is too large", 431)
TOO_MANY_CONNECTIONS: Final = Problem("too_many_connections", "Too many connections", 503)
NOT_ACCEPTABLE: Final = Problem(errors.NOT_ACCEPTABLE, "Not acceptable", 406)
METHOD_NOT_ALLOWED: Final = Problem("method_not_allowed", "Method not allowed", 405)
BODY_TOO_LARGE: Final = Problem("body_too_large", "The body is too large", 413)
BODY_TIMEOUT: Final = Problem("body_timeout", "The body arrived too slowly", 408)
FUNCTION_FAILED: Final = Problem(errors.FUNCTION_FAILED, "The function raised an error", 500)
EXECUTION_TIMEOUT: Final = Problem(errors.EXECUTION_TIMEOUT, "Execution timeout", 504)
ANSWER_TOO_LARGE: Final = Problem(errors.ANSWER_TOO_LARGE, "The answer is too large", 502)

OF_REQUEST: Final[dict[str, Problem]] = {
    problem.code: problem
    for problem in (
        BAD_INPUT,
        UNSUPPORTED_TYPE,
        NOT_ACCEPTABLE,
        FUNCTION_FAILED,
        EXECUTION_TIMEOUT,
        ANSWER_TOO_LARGE,
    )
}
"""The problem of each code that a `RequestError` may have."""


def document(problem: Problem, detail: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the problem document as JSON data; `fields` are its further members."""
    return {
        "type": f"urn:fngate:problem:{problem.code}",
        "title": problem.title,
        "status": problem.status,
        "detail": detail,
        "code": problem.code,
        **fields,
    }
