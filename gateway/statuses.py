"""HTTP statuses: the one table that maps errors to them, and those of other answers. Pure.

The makers of the OpenAPI document import this where msgspec is the only package.
"""

from __future__ import annotations

from registry import errors
from runtime_image.contract import problems

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
    errors.PlacementRefused: 503,
    errors.EngineDown: 503,
    errors.HostDown: 503,
    errors.ServerAway: 503,
}
"""One row per error class. The statuses of errors that servers of ours in replicas answer, too,
stand in the contract; no other module defines any."""

OK, CREATED, ACCEPTED = 200, 201, 202
FOUND, MOVED, NOT_MODIFIED = 302, 308, 304
MISTAKES, FAILURES = 400, 500
"""First status of client errors, and of server errors."""

CLOSED = (STATUS[errors.NoKey], STATUS[errors.WrongScope])
"""Statuses of requests whose caller may not do this."""

NOT_READY = 503
"""Status that makes a load balancer skip this server."""


def is_servers_fault(status: int) -> bool:
    """Return whether this status is a server error."""
    return status >= FAILURES


def outcome(status: int) -> str:
    """Return "ok", "refused" (4xx: client error, or rate or queue limit) or "failed" (5xx)."""
    if status < MISTAKES:
        return "ok"
    return "failed" if is_servers_fault(status) else "refused"
