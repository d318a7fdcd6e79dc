"""The class tree of all errors that can reach a client; `gateway/statuses.py` maps it to HTTP."""

from __future__ import annotations

from typing import Any, ClassVar

from runtime_image.contract import problems


class FnError(Exception):
    """Root of the tree.

    `retry_after_s` is a realistic estimate. `detail` is additional data for the answer,
    `admin_detail` is shown only to callers with the scope admin.
    """

    code: ClassVar[str] = "internal"
    title: ClassVar[str] = "Internal error in fngate"

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
    """The named object does not exist."""

    code = problems.UNKNOWN.code
    title = problems.UNKNOWN.title


class UnknownFunction(Unknown):
    """No function has that name; `detail["nearest"]` lists similar names."""

    code = "unknown_function"
    title = "Unknown function"


class UnknownRevision(Unknown):
    """The function has no such revision."""

    code = "unknown_revision"
    title = "Unknown revision"


class UnknownModel(Unknown):
    """No function that the caller may invoke is a model of that name; `detail["nearest"]` lists
    similar names."""

    code = "unknown_model"
    title = "Unknown model"


class BadRequest(FnError):
    """The request is not valid; the text names the expected and the actual value."""

    code = problems.BAD_REQUEST.code
    title = problems.BAD_REQUEST.title


class BadInput(BadRequest):
    """The body does not fit the function's signature."""

    code = problems.BAD_INPUT.code
    title = problems.BAD_INPUT.title


class UnsupportedType(FnError):
    """The function does not accept this content type."""

    code = problems.UNSUPPORTED_TYPE.code
    title = problems.UNSUPPORTED_TYPE.title


class UnsupportedEncoding(FnError):
    """The body's content coding is not supported; `detail["accepted"]` lists the supported ones."""

    code = problems.UNSUPPORTED_ENCODING.code
    title = problems.UNSUPPORTED_ENCODING.title


class ExpectationFailed(FnError):
    """The header Expect has a value other than 100-continue."""

    code = problems.EXPECTATION_FAILED.code
    title = problems.EXPECTATION_FAILED.title


class HeadTimeout(FnError):
    """The head of a request did not arrive in time."""

    code = "head_timeout"
    title = "The request head arrived too slowly"


class HeadTooLarge(FnError):
    """The head of a request exceeds the limit."""

    code = problems.HEAD_TOO_LARGE.code
    title = problems.HEAD_TOO_LARGE.title


class TooManyConnections(FnError):
    """All connections that this process may have are in use."""

    code = problems.TOO_MANY_CONNECTIONS.code
    title = problems.TOO_MANY_CONNECTIONS.title


class NotAcceptable(FnError):
    """The answer is not available in any form that the client accepts."""

    code = problems.NOT_ACCEPTABLE.code
    title = problems.NOT_ACCEPTABLE.title


class MethodNotAllowed(FnError):
    """The route exists, but not with this method; `detail["allow"]` lists its methods."""

    code = problems.METHOD_NOT_ALLOWED.code
    title = problems.METHOD_NOT_ALLOWED.title


class NotServed(FnError):
    """A part of a protocol that this server does not have."""

    code = "not_served"
    title = "Not served"


class BodyTooLarge(FnError):
    """The body exceeds the limit."""

    code = problems.BODY_TOO_LARGE.code
    title = problems.BODY_TOO_LARGE.title


class BodyTimeout(FnError):
    """The body did not arrive in time."""

    code = problems.BODY_TIMEOUT.code
    title = problems.BODY_TIMEOUT.title


class QueueFull(FnError):
    """A queue is full, by number of requests or by bytes, or the caller has its share of it."""

    code = "queue_full"
    title = "Too many requests are waiting"


class BodyEvicted(QueueFull):
    """The upload was cancelled: faster uploads needed the memory."""

    code = "body_evicted"
    title = "No memory for this body"


class WaitBudgetOver(FnError):
    """The request was not started within its wait budget."""

    code = "wait_budget_over"
    title = "Not started within the wait budget"


class FunctionFailing(FnError):
    """The function currently fails to load."""

    code = "function_failing"
    title = "The function fails to load"


class FunctionFailed(FnError):
    """The model or handler raised an error on this input."""

    code = problems.FUNCTION_FAILED.code
    title = problems.FUNCTION_FAILED.title


class ExecutionTimeout(FnError):
    """The run took longer than the function's `timeout_s`."""

    code = problems.EXECUTION_TIMEOUT.code
    title = problems.EXECUTION_TIMEOUT.title


class ReplicaDied(FnError):
    """The replica died while running this request, or gave it up, and it is not sent again."""

    code = "replica_died"
    title = "The replica died"


class ReplicaHung(ReplicaDied):
    """The replica was ended because it did not answer any more, and this request is not sent
    again."""

    code = "replica_hung"
    title = "The replica did not answer"


class Poison(FnError):
    """This request killed several replicas, one after the other."""

    code = "poison"
    title = "This request kills the model"


class AnswerTooLarge(FnError):
    """The answer exceeds the limit."""

    code = problems.ANSWER_TOO_LARGE.code
    title = problems.ANSWER_TOO_LARGE.title


class UpstreamFailed(FnError):
    """The function's server closed the connection, or sent no valid HTTP, before its answer."""

    code = "upstream_failed"
    title = "The function's server failed"


class UpstreamTimeout(FnError):
    """The function's server did not answer within `first_byte_s` or `max_s`."""

    code = "upstream_timeout"
    title = "The function's server did not answer in time"


class Asleep(FnError):
    """The function is cold, and this request is one that does not wake it."""

    code = "asleep"
    title = "The function is asleep"


class PathDenied(FnError):
    """The function's settings deny calls of this path."""

    code = "path_denied"
    title = "This path is denied"


class ShuttingDown(FnError):
    """The server is shutting down and accepts nothing new."""

    code = "shutting_down"
    title = "Shutting down"


class NoKey(FnError):
    """The request has no key, or an unknown one."""

    code = "no_key"
    title = "A key is needed"


class WrongScope(FnError):
    """The key's scopes do not allow this."""

    code = "wrong_scope"
    title = "The key does not allow this"


class ForeignOrigin(FnError):
    """A browser page of another origin may not call this server."""

    code = "foreign_origin"
    title = "Foreign origin"


class ForeignHost(FnError):
    """The Host header does not name this server."""

    code = "foreign_host"
    title = "Foreign host"


class Refused(FnError):
    """A deploy was refused; nothing was changed. The text gives the reason."""

    code = "refused"
    title = "The deploy was refused"


class HostRefused(FnError):
    """A host cannot run replicas, or cannot be logged in to; nothing was changed. The text gives
    the reason, `hint` the remedy."""

    code = "host_refused"
    title = "The host was refused"


class BadBundle(Refused):
    """The files of a bundle violate its rules."""

    code = "bad_bundle"
    title = "The bundle was refused"


class BadManifest(Refused):
    """function.toml is not valid; the text names key and value."""

    code = "bad_manifest"
    title = "function.toml was refused"


class BadNeeds(Refused):
    """The packages that a folder needs cannot be read; the text names file, line and what was
    expected."""

    code = "bad_needs"
    title = "The needed packages were refused"


class EnvironmentRefused(Refused):
    """The environment of a function cannot be made: no versions fit, no wheel, no such
    interpreter, too large, or a file is not the one that was locked."""

    code = "environment_refused"
    title = "The environment cannot be made"


class IndexAway(Refused):
    """The package index does not answer, and the cache does not have what is needed."""

    code = "index_away"
    title = "The package index does not answer"


class ModelRefused(Refused):
    """The trial replica could not load the model or run its sample."""

    code = "model_refused"
    title = "The model was refused"


class ServerRefused(ModelRefused):
    """The server of a function did not become ready, or did not answer a sample as expected."""

    code = "server_refused"
    title = "The server was refused"


class TrialKilled(Refused):
    """The trial replica was killed from outside; the model was not judged."""

    code = "trial_killed"
    title = "The trial was killed"


class BuildFailed(Refused):
    """The model could not be compiled, or its outputs differ from the ordinary session's."""

    code = "build_failed"
    title = "The model could not be compiled"


class BuildGivenUp(Refused):
    """A build was ended for a reason that says nothing about the model: the device was needed, its
    memory did not suffice, it was killed from outside."""

    code = "build_given_up"
    title = "The build was given up"


class Incompatible(Refused):
    """Clients of the current revision could not call the new one; `detail["breaks"]` lists why."""

    code = "incompatible"
    title = "Callers would break"


class Conflict(FnError):
    """The current state does not allow the operation."""

    code = "conflict"
    title = "Conflict"


class PreconditionFailed(FnError):
    """The object has changed since the client read it."""

    code = "precondition_failed"
    title = "Changed in the meantime"


class PreconditionRequired(FnError):
    """A change must name the version that it is based on (If-Match)."""

    code = "precondition_required"
    title = "If-Match is missing"


class NoRoom(FnError):
    """No device currently has room for a replica."""

    code = "no_room"
    title = "No device has room"


class AdviceUnavailable(FnError):
    """Advice cannot be computed at present."""

    code = "advice_unavailable"
    title = "No advice at present"


class StoreUnavailable(FnError):
    """The store cannot be read or written at present: disk full, database locked."""

    code = "store_unavailable"
    title = "The store is not available"


class RevokedNotStored(StoreUnavailable):
    """The key is refused from now on, but its removal could not be stored: a restarted server would
    accept it. The server repeats the removal until it is stored."""

    code = "revoked_not_stored"
    title = "The key is revoked, which is not stored yet"


class DriverError(FnError):
    """A replica could not be started, stopped or inspected."""

    code = "driver_error"
    title = "The driver failed"


class StartRefused(DriverError):
    """A replica cannot start until somebody changes what the text names: packages, an interpreter,
    an image or a secret is missing."""

    code = "start_refused"
    title = "The replica cannot start"


class PlacementRefused(DriverError):
    """The engine of a host has no place for a replica now: its scheduler, a quota or its admission
    has refused it. No function is at fault, and another place may do."""

    code = "placement_refused"
    title = "The engine has no place for the replica"

    def __init__(self, message: str, *, refused_s: float = 30.0, **options: Any) -> None:
        """`message` has the engine's own words. `refused_s` are the seconds for which the devices
        of the replica take nothing; `options` as for every error."""
        super().__init__(message, **options)
        self.refused_s = refused_s


class EngineDown(DriverError):
    """The container engine does not answer; running replicas may continue."""

    code = "engine_down"
    title = "The engine does not answer"


class HostDown(EngineDown):
    """The connection to another host is lost: whether its engine answers, or what runs there, is
    unknown."""

    code = "host_down"
    title = "The host cannot be reached"


class ServerAway(FnError):
    """The process that owns store and replicas does not answer; function calls may still work."""

    # Clients know this code since that process was called so.
    code = "supervisor_away"
    title = "The server's main process does not answer"
