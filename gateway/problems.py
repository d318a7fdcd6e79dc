"""HTTP answers of errors: problem documents (RFC 9457, application/problem+json)."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any, Final, Protocol

import msgspec
from aiohttp import web

from gateway.problem_document import Problem
from gateway.replies import CLOSE, GUARD, Reply
from gateway.statuses import NOT_MODIFIED, OK, STATUS
from registry import errors
from runtime_image.contract import errors as codes
from runtime_image.contract import problems
from runtime_image.contract.errors import RequestError

FROM_REPLICA: dict[str, type[errors.FnError]] = {
    codes.BAD_INPUT: errors.BadInput,
    codes.UNSUPPORTED_TYPE: errors.UnsupportedType,
    codes.NOT_ACCEPTABLE: errors.NotAcceptable,
    codes.FUNCTION_FAILED: errors.FunctionFailed,
    codes.EXECUTION_TIMEOUT: errors.ExecutionTimeout,
    codes.ANSWER_TOO_LARGE: errors.AnswerTooLarge,
}
"""Error class of each request error code that a replica or a codec raises."""

ENDS_CONNECTION = (
    errors.ShuttingDown,
    errors.BodyTimeout,
    errors.BodyEvicted,
    errors.HeadTimeout,
    errors.HeadTooLarge,
    errors.TooManyConnections,
)
"""Errors after which the connection is closed: the rest of the client's bytes are not parsed as
requests."""


class ErrorShape(Protocol):
    """Makes the reply of an error in the form of one protocol."""

    def __call__(self, error: errors.FnError, *, for_admin: bool = False) -> Reply:
        """Return the reply. `for_admin` adds what only administrators may read."""


def is_worth_keeping(error: errors.FnError) -> bool:
    """Return whether operators see this error: any server error, and a full queue."""
    status = STATUS[type(error)]
    return status >= STATUS[errors.FnError] or status == STATUS[errors.QueueFull]


def from_request_error(error: RequestError) -> errors.FnError:
    """Convert an error of a codec or a replica to the gateway's error class."""
    data = error.to_json()
    fields: dict[str, Any] = {key: data[key] for key in ("input", "expected", "got") if key in data}
    return FROM_REPLICA[error.code](error.message, detail=fields)


def line(error: errors.FnError, *, for_admin: bool = False) -> str:
    """Return an error as one text. `for_admin` adds what only administrators may read."""
    text = f"{error.title}: {error.message}"
    if for_admin and error.admin_detail:
        text += f"; {error.admin_detail}"
    return text


_MEMBERS: Final = frozenset(Problem.__struct_fields__)


def document(error: errors.FnError, *, for_admin: bool = False) -> Problem:
    """Return the problem document. `for_admin` adds the admin-only fields."""
    kind = problems.Problem(error.code, error.title, STATUS[type(error)])
    further = {**error.detail, **error.admin_detail} if for_admin else error.detail
    # A member that the type does not have must not turn an answer into a defect; a test finds it.
    said = problems.document(kind, error.message, further)
    problem = Problem(**{name: said[name] for name in said if name in _MEMBERS})
    if error.retry_after_s is not None:
        problem.retry_after_s = math.ceil(error.retry_after_s)
    return problem


def reply(error: errors.FnError, *, for_admin: bool = False) -> Reply:
    """Return the problem document as a complete reply."""
    headers = [("Content-Type", problems.CONTENT_TYPE)]
    if error.retry_after_s is not None:
        headers.append(("Retry-After", str(max(1, math.ceil(error.retry_after_s)))))
    if isinstance(error, errors.NoKey):
        headers.append(("WWW-Authenticate", 'Bearer realm="fngate"'))
    if isinstance(error, errors.ForeignHost):
        # The name may be that of a function in a moment; 421 may be cached otherwise.
        headers.append(("Cache-Control", "no-store"))
    if isinstance(error, errors.MethodNotAllowed):
        headers.append(("Allow", ", ".join(error.detail["allow"])))
    if isinstance(error, errors.UnsupportedEncoding):
        headers.append(("Accept-Encoding", ", ".join(error.detail["accepted"])))
    if isinstance(error, ENDS_CONNECTION):
        headers.append(CLOSE)
    body = encoded(document(error, for_admin=for_admin))
    return Reply(STATUS[type(error)], tuple(headers), body)


def response_of(reply: Reply) -> web.Response:
    """Return a reply as an aiohttp response, with the fields that `Writer` adds."""
    fields = {**dict(reply.fields), "Server": "fngate", **dict(GUARD)}
    return web.Response(status=reply.status, body=bytes(reply.body), headers=fields)


async def guard(_request: web.Request, response: web.StreamResponse) -> None:
    """Add the fields of GUARD that a response lacks (aiohttp signal)."""
    for name, value in GUARD:
        response.headers.setdefault(name, value)


def json_answer(
    data: object, status: int = OK, headers: dict[str, str] | None = None
) -> web.Response:
    """Return JSON data as an aiohttp response."""
    return web.Response(
        status=status,
        body=encoded(data),
        content_type="application/json",
        headers=headers,
    )


def json_document(request: web.BaseRequest, document: bytes) -> web.Response:
    """Return a JSON document with an ETag, or that the client has it already."""
    etag = hashlib.sha256(document).hexdigest()[:32]
    headers = {"ETag": f'"{etag}"', "Cache-Control": "no-cache"}
    if any(tag.value in (etag, "*") for tag in request.if_none_match or ()):
        return web.Response(status=NOT_MODIFIED, headers=headers)
    return web.Response(body=document, content_type="application/json", headers=headers)


def encoded(data: object) -> bytes:
    """Encode as JSON.

    A client's bytes that are not UTF-8 appear here as lone surrogates; only the standard library
    encodes those, as escapes.
    """
    try:
        return msgspec.json.encode(data)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(data, str_keys=True)).encode()
