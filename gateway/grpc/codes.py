"""The gRPC status codes of errors, by their HTTP status, and the end of a failed call.

Source: gRPC, "Status codes and their use in gRPC". Triton's server has the same codes for the same
errors where it has them.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple, NoReturn

from grpc import StatusCode

from gateway.problems import line
from gateway.statuses import STATUS
from registry import errors
from registry.errors import FnError

_EXAMPLES: Final[dict[StatusCode, tuple[type[FnError], ...]]] = {
    StatusCode.INVALID_ARGUMENT: (
        errors.BadRequest,
        errors.UnsupportedType,
        errors.NotAcceptable,
        errors.ExpectationFailed,
    ),
    StatusCode.UNAUTHENTICATED: (errors.NoKey,),
    StatusCode.PERMISSION_DENIED: (errors.WrongScope, errors.ForeignHost),
    StatusCode.NOT_FOUND: (errors.Unknown,),
    StatusCode.UNIMPLEMENTED: (errors.MethodNotAllowed, errors.NotServed),
    StatusCode.DEADLINE_EXCEEDED: (errors.BodyTimeout, errors.ExecutionTimeout),
    StatusCode.FAILED_PRECONDITION: (
        errors.Refused,
        errors.Conflict,
        errors.PreconditionFailed,
        errors.PreconditionRequired,
    ),
    StatusCode.RESOURCE_EXHAUSTED: (errors.BodyTooLarge, errors.HeadTooLarge, errors.QueueFull),
    StatusCode.INTERNAL: (errors.FnError, errors.ReplicaDied),
    StatusCode.UNAVAILABLE: (errors.ShuttingDown,),
}
_OF_STATUS: Final = {STATUS[one]: code for code, ones in _EXAMPLES.items() for one in ones}
CODE: Final = {kind: _OF_STATUS[status] for kind, status in STATUS.items()}
"""The code of each error class: errors with the same HTTP status have the same code. No other
module chooses a code for an error."""

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
    text = line(error, for_admin=for_admin)
    metadata = [(PROBLEM, error.code)]
    if error.retry_after_s is not None:
        metadata.append((RETRY_AFTER, str(max(1, math.ceil(error.retry_after_s)))))
    return Failure(CODE[type(error)], _printable(text[:TEXT_MAX]), tuple(metadata))


async def abort(context: Any, failed: Failure) -> NoReturn:
    """End a call with its failure. Raises, always."""
    await context.abort(failed.code, failed.text, failed.metadata)
    raise AssertionError("abort raises")


def _printable(text: str) -> str:
    """Replace what cannot be encoded: a client's bytes that are not UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()
