"""The one tree of errors that reach a caller. No HTTP here; `gateway/problems.py` maps it."""

from __future__ import annotations

from typing import Any, ClassVar


class FnError(Exception):
    """Root of the tree. `retry_after_s` is an honest estimate, `detail` extra data for the answer.

    `admin_detail` is only shown to callers who may administrate.
    """

    code: ClassVar[str] = "internal"
    title: ClassVar[str] = "Something went wrong inside fngate"

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float | None = None,
        detail: dict[str, Any] | None = None,
        admin_detail: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s
        self.detail = detail or {}
        self.admin_detail = admin_detail or {}


class Unknown(FnError):
    """Nothing has that name."""

    code = "unknown"
    title = "Not found"


class UnknownFunction(Unknown):
    """No function has that name; `detail["nearest"]` lists names that look like it."""

    code = "unknown_function"
    title = "Unknown function"


class UnknownRevision(Unknown):
    """The function has no such revision."""

    code = "unknown_revision"
    title = "Unknown revision"


class BadRequest(FnError):
    """What came does not fit what was expected; the text names both."""

    code = "bad_request"
    title = "Bad request"


class BadInput(BadRequest):
    """The body does not fit the function's signature."""

    code = "bad_input"
    title = "The input does not fit the function"


class UnsupportedType(FnError):
    """The function takes no such content type."""

    code = "unsupported_type"
    title = "Unsupported content type"


class UnsupportedEncoding(FnError):
    """The body has a content coding that is not decoded; `detail["accepted"]` lists those that
    are."""

    code = "unsupported_encoding"
    title = "Unsupported content encoding"


class ExpectationFailed(FnError):
    """The header Expect asks for something other than 100-continue."""

    code = "expectation_failed"
    title = "The expectation cannot be met"


class HeadTimeout(FnError):
    """The head of a request did not arrive in time."""

    code = "head_timeout"
    title = "The request head came too slowly"


class HeadTooLarge(FnError):
    """The head of a request is over the limit."""

    code = "head_too_large"
    title = "The request head is too large"


class TooManyConnections(FnError):
    """Every connection that this process may have is in use."""

    code = "too_many_connections"
    title = "Too many connections"


class NotAcceptable(FnError):
    """The answer cannot be given in any form the client accepts."""

    code = "not_acceptable"
    title = "Not acceptable"


class MethodNotAllowed(FnError):
    """The route exists, but not with this method; `detail["allow"]` lists those it has."""

    code = "method_not_allowed"
    title = "Method not allowed"


class BodyTooLarge(FnError):
    """The body is over the limit."""

    code = "body_too_large"
    title = "The body is too large"


class BodyTimeout(FnError):
    """The body did not arrive in time."""

    code = "body_timeout"
    title = "The body came too slowly"


class QueueFull(FnError):
    """The waiters' queue is full, by count or by bytes."""

    code = "queue_full"
    title = "Too many requests are waiting"


class BodyEvicted(QueueFull):
    """The body was given up while it arrived: others needed the memory and came faster."""

    code = "body_evicted"
    title = "No memory for this body"


class WaitBudgetOver(FnError):
    """The request was not started within the time its client agreed to wait."""

    code = "wait_budget_over"
    title = "Not started within the wait budget"


class FunctionFailing(FnError):
    """The function cannot be loaded at present."""

    code = "function_failing"
    title = "The function fails to load"


class FunctionFailed(FnError):
    """The model or handler raised an error on this input."""

    code = "function_failed"
    title = "The function raised an error"


class ExecutionTimeout(FnError):
    """The run took longer than the function's `timeout_s`."""

    code = "execution_timeout"
    title = "Execution timeout"


class ReplicaDied(FnError):
    """The replica died under this request and its retries are used up."""

    code = "replica_died"
    title = "The replica died"


class Poison(FnError):
    """This very request killed a replica while running alone."""

    code = "poison"
    title = "This request kills the model"


class AnswerTooLarge(FnError):
    """The answer is over the limit."""

    code = "answer_too_large"
    title = "The answer is too large"


class ShuttingDown(FnError):
    """The server is going away and takes nothing new."""

    code = "shutting_down"
    title = "Shutting down"


class NoKey(FnError):
    """A key is needed and none, or an unknown one, was given."""

    code = "no_key"
    title = "A key is needed"


class WrongScope(FnError):
    """The key does not allow this."""

    code = "wrong_scope"
    title = "The key does not allow this"


class ForeignOrigin(FnError):
    """A page of another origin may not call."""

    code = "foreign_origin"
    title = "Foreign origin"


class ForeignHost(FnError):
    """The Host header names nothing served here."""

    code = "foreign_host"
    title = "Foreign host"


class Refused(FnError):
    """A deploy was refused; nothing was changed. The text is the reason."""

    code = "refused"
    title = "The deploy was refused"


class BadBundle(Refused):
    """The files of a bundle break its rules."""

    code = "bad_bundle"
    title = "The bundle was refused"


class BadManifest(Refused):
    """function.toml is wrong; the text names key and value."""

    code = "bad_manifest"
    title = "function.toml was refused"


class ModelRefused(Refused):
    """The throw-away replica could not load the model or run its sample."""

    code = "model_refused"
    title = "The model was refused"


class TrialKilled(Refused):
    """The throw-away replica was killed by somebody else; nothing is known of the model."""

    code = "trial_killed"
    title = "The trial was killed"


class Incompatible(Refused):
    """Callers of the present revision could not call the new one; `detail["breaks"]` lists why."""

    code = "incompatible"
    title = "Callers would break"


class Conflict(FnError):
    """The present state does not allow it."""

    code = "conflict"
    title = "Conflict"


class PreconditionFailed(FnError):
    """What is to be changed has changed since it was read."""

    code = "precondition_failed"
    title = "Changed in the meantime"


class PreconditionRequired(FnError):
    """A change must say what it is a change of."""

    code = "precondition_required"
    title = "If-Match is missing"


class NoRoom(FnError):
    """No device has room for a replica at present."""

    code = "no_room"
    title = "There is no room"


class AdviceUnavailable(FnError):
    """No advice can be worked out at present."""

    code = "advice_unavailable"
    title = "No advice at present"


class StoreUnavailable(FnError):
    """The store cannot be written or read now: disk full, database locked."""

    code = "store_unavailable"
    title = "The store is not available"


class DriverError(FnError):
    """A replica could not be started, stopped or inspected."""

    code = "driver_error"
    title = "The driver failed"


class EngineDown(DriverError):
    """What the driver drives does not answer at all; what runs may run on."""

    code = "engine_down"
    title = "The engine does not answer"


class SupervisorAway(FnError):
    """The process that owns store and replicas does not answer; calls of functions may."""

    code = "supervisor_away"
    title = "The server's supervisor does not answer"
