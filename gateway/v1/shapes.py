"""Errors in the shapes that clients of OpenAI's and Anthropic's APIs read. Pure.

OpenAI API reference, "Error codes"; Anthropic API reference, "Errors".
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gateway import problems, statuses
from gateway.replies import Reply
from gateway.v1.endpoints import Protocol
from registry.errors import BadRequest, FnError, NoKey, Poison, UnknownModel

JSON: Final = "application/json"
NO_RETRY: Final = ("X-Should-Retry", "false")
"""The clients of both vendors repeat a request after a 502 by themselves, unless this says not to:
that would kill further replicas."""
_MISTAKE: Final = "invalid_request_error"
_FAILURE: Final = {Protocol.OPENAI: "server_error", Protocol.ANTHROPIC: "api_error"}
_TYPES: Final[dict[Protocol, dict[int, str]]] = {
    Protocol.OPENAI: {
        401: "authentication_error",
        403: "permission_error",
        429: "rate_limit_error",
    },
    Protocol.ANTHROPIC: {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        503: "overloaded_error",
        504: "timeout_error",
    },
}
"""Types of errors by status; of all others they depend on whose fault it is."""


def reply(protocol: Protocol, request_id: str, error: FnError) -> Reply:
    """Return an error as a complete reply, with the status and the fields of the problem."""
    plain = problems.reply(error)
    headers = [pair for pair in plain.headers if pair[0] != "Content-Type"]
    if isinstance(error, Poison):
        headers.append(NO_RETRY)
    document = _document(protocol, error, request_id)
    return Reply(plain.status, (("Content-Type", JSON), *headers), msgspec.json.encode(document))


def event(protocol: Protocol, document: bytes) -> bytes:
    """Return the body of an error's reply as an event of a stream that has begun. OpenAI's streams
    have no names of events."""
    name = b"event: error\n" if protocol is Protocol.ANTHROPIC else b""
    return b"%bdata: %b\n\n" % (name, document)


def _document(protocol: Protocol, error: FnError, request_id: str) -> dict[str, Any]:
    status = statuses.STATUS[type(error)]
    fallback = _FAILURE[protocol] if statuses.is_servers_fault(status) else _MISTAKE
    kind = _TYPES[protocol].get(status, fallback)
    if protocol is Protocol.ANTHROPIC:
        said = {"type": kind, "message": error.message}
        return {"type": "error", "error": said, "request_id": request_id}
    param, code = _param(error), _code(error)
    return {"error": {"message": error.message, "type": kind, "param": param, "code": code}}


def _param(error: FnError) -> str | None:
    """Return the member of the request that an error is about, None if there is no single one."""
    found = error.detail.get("param") if isinstance(error, BadRequest) else None
    return found if isinstance(found, str) else None


def _code(error: FnError) -> str:
    """Return the code that clients of OpenAI's API compare with, else the problem's."""
    if isinstance(error, NoKey):
        return "invalid_api_key"
    return "model_not_found" if isinstance(error, UnknownModel) else error.code
