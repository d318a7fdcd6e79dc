"""The one table that maps errors to gRPC status codes, and what a failed call ends with.

Source: gRPC, "Status codes and their use in gRPC". Triton's server has the same codes for the same
errors where it has them.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from grpc import StatusCode

from registry import errors
from registry.errors import FnError

CODE: Final[dict[type[FnError], StatusCode]] = {
    errors.FnError: StatusCode.INTERNAL,
    errors.Unknown: StatusCode.NOT_FOUND,
    errors.UnknownFunction: StatusCode.NOT_FOUND,
    errors.UnknownRevision: StatusCode.NOT_FOUND,
    errors.UnknownModel: StatusCode.NOT_FOUND,
    errors.BadRequest: StatusCode.INVALID_ARGUMENT,
    errors.BadInput: StatusCode.INVALID_ARGUMENT,
    errors.UnsupportedType: StatusCode.INVALID_ARGUMENT,
    errors.UnsupportedEncoding: StatusCode.INVALID_ARGUMENT,
    errors.ExpectationFailed: StatusCode.INVALID_ARGUMENT,
    errors.HeadTimeout: StatusCode.DEADLINE_EXCEEDED,
    errors.HeadTooLarge: StatusCode.RESOURCE_EXHAUSTED,
    errors.TooManyConnections: StatusCode.UNAVAILABLE,
    errors.NotAcceptable: StatusCode.INVALID_ARGUMENT,
    errors.MethodNotAllowed: StatusCode.UNIMPLEMENTED,
    errors.BodyTooLarge: StatusCode.RESOURCE_EXHAUSTED,
    errors.BodyTimeout: StatusCode.DEADLINE_EXCEEDED,
    errors.QueueFull: StatusCode.RESOURCE_EXHAUSTED,
    errors.BodyEvicted: StatusCode.RESOURCE_EXHAUSTED,
    errors.WaitBudgetOver: StatusCode.UNAVAILABLE,
    errors.FunctionFailing: StatusCode.UNAVAILABLE,
    errors.FunctionFailed: StatusCode.INTERNAL,
    errors.ExecutionTimeout: StatusCode.DEADLINE_EXCEEDED,
    errors.ReplicaDied: StatusCode.INTERNAL,
    errors.Poison: StatusCode.INTERNAL,
    errors.AnswerTooLarge: StatusCode.INTERNAL,
    errors.UpstreamFailed: StatusCode.INTERNAL,
    errors.UpstreamTimeout: StatusCode.DEADLINE_EXCEEDED,
    errors.NotServed: StatusCode.UNIMPLEMENTED,
    errors.Asleep: StatusCode.UNAVAILABLE,
    errors.PathDenied: StatusCode.PERMISSION_DENIED,
    errors.ShuttingDown: StatusCode.UNAVAILABLE,
    errors.NoKey: StatusCode.UNAUTHENTICATED,
    errors.WrongScope: StatusCode.PERMISSION_DENIED,
    errors.ForeignOrigin: StatusCode.PERMISSION_DENIED,
    errors.ForeignHost: StatusCode.PERMISSION_DENIED,
    errors.Refused: StatusCode.FAILED_PRECONDITION,
    errors.BadBundle: StatusCode.FAILED_PRECONDITION,
    errors.BadManifest: StatusCode.FAILED_PRECONDITION,
    errors.ModelRefused: StatusCode.FAILED_PRECONDITION,
    errors.ServerRefused: StatusCode.FAILED_PRECONDITION,
    errors.HostRefused: StatusCode.FAILED_PRECONDITION,
    errors.BadNeeds: StatusCode.FAILED_PRECONDITION,
    errors.EnvironmentRefused: StatusCode.FAILED_PRECONDITION,
    errors.IndexAway: StatusCode.UNAVAILABLE,
    errors.TrialKilled: StatusCode.UNAVAILABLE,
    errors.BuildFailed: StatusCode.FAILED_PRECONDITION,
    errors.BuildGivenUp: StatusCode.UNAVAILABLE,
    errors.Incompatible: StatusCode.FAILED_PRECONDITION,
    errors.Conflict: StatusCode.FAILED_PRECONDITION,
    errors.PreconditionFailed: StatusCode.FAILED_PRECONDITION,
    errors.PreconditionRequired: StatusCode.FAILED_PRECONDITION,
    errors.NoRoom: StatusCode.UNAVAILABLE,
    errors.AdviceUnavailable: StatusCode.UNAVAILABLE,
    errors.StoreUnavailable: StatusCode.UNAVAILABLE,
    errors.RevokedNotStored: StatusCode.UNAVAILABLE,
    errors.DriverError: StatusCode.UNAVAILABLE,
    errors.StartRefused: StatusCode.UNAVAILABLE,
    errors.EngineDown: StatusCode.UNAVAILABLE,
    errors.HostDown: StatusCode.UNAVAILABLE,
    errors.SupervisorAway: StatusCode.UNAVAILABLE,
}
"""One row per error class. No other module chooses a code for an error."""

TEXT_MAX: Final = 4000
"""Max characters of a status message. It travels in a header, and clients refuse headers of more
than 8 KiB together."""
PROBLEM: Final = "fn-problem"
RETRY_AFTER: Final = "retry-after"


class Failure(NamedTuple):
    """How a call fails. `metadata` is sent behind the status."""

    code: StatusCode
    text: str
    metadata: tuple[tuple[str, str], ...]


def failure(error: FnError, *, for_admin: bool = False) -> Failure:
    """Return the end of a call that failed with `error`.

    `for_admin` adds what only administrators may read to the text.
    """
    text = f"{error.title}: {error.message}"
    if for_admin and error.admin_detail:
        text += f"; {error.admin_detail}"
    metadata = [(PROBLEM, error.code)]
    if error.retry_after_s is not None:
        metadata.append((RETRY_AFTER, str(max(1, math.ceil(error.retry_after_s)))))
    return Failure(CODE[type(error)], _printable(text[:TEXT_MAX]), tuple(metadata))


def _printable(text: str) -> str:
    """Replace what cannot be encoded: a client's bytes that are not UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()
