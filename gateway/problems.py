"""The one table that maps errors to HTTP answers (RFC 9457, application/problem+json)."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any, Protocol

import msgspec
from aiohttp import web

from gateway.replies import CLOSE, GUARD, Reply
from registry import errors
from runtime_image.contract import errors as codes
from runtime_image.contract import problems
from runtime_image.contract.errors import RequestError

STATUS: dict[type[errors.FnError], int] = {
    errors.FnError: 500,
    errors.Unknown: problems.UNKNOWN.status,
    errors.UnknownFunction: 404,
    errors.UnknownRevision: 404,
    errors.UnknownModel: 404,
    errors.BadRequest: problems.BAD_REQUEST.status,
    errors.BadInput: problems.BAD_INPUT.status,
    errors.UnsupportedType: problems.UNSUPPORTED_TYPE.status,
    errors.UnsupportedEncoding: problems.UNSUPPORTED_ENCODING.status,
    errors.ExpectationFailed: problems.EXPECTATION_FAILED.status,
    errors.HeadTimeout: 408,
    errors.HeadTooLarge: problems.HEAD_TOO_LARGE.status,
    errors.TooManyConnections: problems.TOO_MANY_CONNECTIONS.status,
    errors.NotAcceptable: problems.NOT_ACCEPTABLE.status,
    errors.MethodNotAllowed: problems.METHOD_NOT_ALLOWED.status,
    errors.NotServed: 501,
    errors.BodyTooLarge: problems.BODY_TOO_LARGE.status,
    errors.BodyTimeout: problems.BODY_TIMEOUT.status,
    errors.QueueFull: 429,
    errors.BodyEvicted: 429,
    errors.WaitBudgetOver: 503,
    errors.FunctionFailing: 503,
    errors.FunctionFailed: problems.FUNCTION_FAILED.status,
    errors.ExecutionTimeout: problems.EXECUTION_TIMEOUT.status,
    errors.ReplicaDied: 502,
    errors.ReplicaHung: 502,
    errors.Poison: 502,
    errors.AnswerTooLarge: problems.ANSWER_TOO_LARGE.status,
    errors.UpstreamFailed: 502,
    errors.UpstreamTimeout: 504,
    errors.Asleep: 503,
    errors.PathDenied: 403,
    errors.ShuttingDown: 503,
    errors.NoKey: 401,
    errors.WrongScope: 403,
    errors.ForeignOrigin: 403,
    errors.ForeignHost: 421,
    errors.Refused: 422,
    errors.HostRefused: 422,
    errors.BadBundle: 422,
    errors.BadManifest: 422,
    errors.BadNeeds: 422,
    errors.EnvironmentRefused: 422,
    errors.IndexAway: 503,
    errors.ModelRefused: 422,
    errors.ServerRefused: 422,
    errors.TrialKilled: 503,
    errors.BuildFailed: 422,
    errors.BuildGivenUp: 503,
    errors.Incompatible: 422,
    errors.Conflict: 409,
    errors.PreconditionFailed: 412,
    errors.PreconditionRequired: 428,
    errors.NoRoom: 503,
    errors.AdviceUnavailable: 503,
    errors.StoreUnavailable: 503,
    errors.RevokedNotStored: 503,
    errors.DriverError: 503,
    errors.StartRefused: 503,
    errors.EngineDown: 503,
    errors.HostDown: 503,
    errors.SupervisorAway: 503,
}
"""One row per error class. The statuses of errors that servers of ours in replicas answer, too,
stand in the contract; no other module defines any."""

FROM_REPLICA: dict[str, type[errors.FnError]] = {
    codes.BAD_INPUT: errors.BadInput,
    codes.UNSUPPORTED_TYPE: errors.UnsupportedType,
    codes.NOT_ACCEPTABLE: errors.NotAcceptable,
    codes.FUNCTION_FAILED: errors.FunctionFailed,
    codes.EXECUTION_TIMEOUT: errors.ExecutionTimeout,
    codes.ANSWER_TOO_LARGE: errors.AnswerTooLarge,
}
"""Error class of each request error code that a replica or a codec raises."""

OK, CREATED, ACCEPTED = 200, 201, 202
FOUND, MOVED, NOT_MODIFIED = 302, 308, 304
MISTAKES, FAILURES = 400, 500
"""First status of client errors, and of server errors."""

CLOSED = (STATUS[errors.NoKey], STATUS[errors.WrongScope])
"""Statuses of requests whose caller may not do this."""

NOT_READY = 503
"""Status that makes a load balancer skip this server."""

CONTENT_TYPE = problems.CONTENT_TYPE

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


def is_servers_fault(status: int) -> bool:
    """Return whether this status is a server error."""
    return status >= FAILURES


def outcome(status: int) -> str:
    """Return "ok", "refused" (4xx: client error, or rate or queue limit) or "failed" (5xx)."""
    if status < MISTAKES:
        return "ok"
    return "failed" if is_servers_fault(status) else "refused"


def line(error: errors.FnError, *, for_admin: bool = False) -> str:
    """Return an error as one text. `for_admin` adds what only administrators may read."""
    text = f"{error.title}: {error.message}"
    if for_admin and error.admin_detail:
        text += f"; {error.admin_detail}"
    return text


def document(error: errors.FnError, *, for_admin: bool = False) -> dict[str, Any]:
    """Return the problem document as JSON data. `for_admin` adds the admin-only fields."""
    kind = problems.Problem(error.code, error.title, STATUS[type(error)])
    problem = problems.document(kind, error.message, error.detail)
    if error.retry_after_s is not None:
        problem["retry_after_s"] = math.ceil(error.retry_after_s)
    if for_admin:
        problem.update(error.admin_detail)
    return problem


def reply(error: errors.FnError, *, for_admin: bool = False) -> Reply:
    """Return the problem document as a complete reply."""
    headers = [("Content-Type", CONTENT_TYPE)]
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
        return json.dumps(data).encode()
