"""Descriptions of the routes /fn, /healthz, /readyz, /metrics and of the documents. Pure."""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta

from gateway.openapi.answers import (
    FunctionDescription,
    Health,
    Inputs,
    Outputs,
    PythonDescription,
    Readiness,
    ServerDescription,
)
from gateway.openapi.oip_bodies import InferAnswer, InferRequest
from gateway.openapi.routes import (
    JSON,
    OCTETS,
    OF_WORKERS,
    TEXT,
    WORDS,
    Answer,
    Content,
    Errors,
    Parameter,
    Route,
    answered,
    json_of,
)
from gateway.statuses import MOVED, NOT_MODIFIED, NOT_READY, OK
from registry import errors
from registry.names import NAME_MAX

NPY: Final = "application/x-npy"
METRICS: Final = "application/openmetrics-text"
CALLS: Final = "Calls of functions"
STATE: Final = "State of the server"
EXAMPLE: Final = {"inputs": {"x": [[1.0, 2.0]]}}
_REF_MAX: Final = NAME_MAX + 10
FUNCTION: Final = Parameter(
    "name",
    "Name of the function, or NAME@REVISION.",
    Annotated[str, Meta(max_length=_REF_MAX)],
    "path",
    is_required=True,
)
_PATH: Final = Parameter("path", "Path at the server.", place="path", is_required=True)
LENGTH: Final = Parameter(
    "Inference-Header-Content-Length",
    "Bytes of the JSON part of a body with binary tensors.",
    Annotated[int, Meta(ge=0)],
    "header",
)
CALLING: Final = (
    Parameter(
        "Prefer",
        "`wait=SECONDS`: how long the call may wait for a replica; 0 for not at all.",
        place="header",
    ),
    Parameter("Priority", "`u=0` (urgent) to `u=7`; `u=3` is usual (RFC 9218).", place="header"),
    Parameter("X-Request-Id", "Id of the request, for logs and traces.", place="header"),
)
SENT: Final = ("Fn-Revision", "Server-Timing", "X-Request-Id", "Preference-Applied")
UNKNOWN: Final[Errors] = (errors.UnknownFunction, errors.UnknownRevision)
NOT_STARTED: Final[Errors] = (
    errors.QueueFull,
    errors.WaitBudgetOver,
    errors.FunctionFailing,
    errors.ShuttingDown,
)
"""Errors of calls that no replica has got."""
RUN: Final[Errors] = (
    errors.FunctionFailed,
    errors.ExecutionTimeout,
    errors.ReplicaDied,
    errors.Poison,
    errors.AnswerTooLarge,
)
"""Errors of calls that a replica has got."""
READ: Final[Errors] = (
    errors.BadInput,
    errors.UnsupportedType,
    errors.UnsupportedEncoding,
    errors.NotAcceptable,
)
"""Errors of bodies that a function does not take."""
FORWARDED: Final[Errors] = (
    *NOT_STARTED,
    errors.Asleep,
    errors.PathDenied,
    errors.UpstreamFailed,
    errors.UpstreamTimeout,
    errors.ReplicaDied,
    errors.ReplicaHung,
    errors.Poison,
    errors.UnknownFunction,
    errors.UnknownRevision,
)
"""Errors of requests that a server answers."""
METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def call_routes() -> list[Route]:
    """Return the routes of calls and of the state of the server."""
    return [*_functions(), *(_passed(method) for method in METHODS), *_state()]


def _functions() -> list[Route]:
    bodies = (
        Content(JSON, (Inputs, InferRequest), EXAMPLE),
        Content(OCTETS),
        Content(NPY),
        Content("image/*"),
        Content("audio/wav"),
        Content("*/*"),
    )
    answers = (Content(JSON, (Outputs, InferAnswer)), Content(OCTETS), Content(NPY))
    described = json_of((FunctionDescription, ServerDescription, PythonDescription))
    moved = Answer(MOVED, "A browser is sent to the pages of a server function.")
    shown = (Answer(OK, WORDS[OK], described), moved)
    return [
        _call("GET", "/fn/{name}", "Describe a function; nothing wakes.", shown),
        _call("HEAD", "/fn/{name}", "As GET, without a body.", (Answer(OK, WORDS[OK]), moved)),
        _call(
            "POST",
            "/fn/{name}",
            "Call a function; a cold one wakes.",
            (Answer(OK, WORDS[OK], answers, (*SENT, LENGTH.name)),),
            request=bodies,
            parameters=(LENGTH, *CALLING),
            errors=(*READ, *NOT_STARTED, *RUN, errors.MethodNotAllowed),
            text="The body is short JSON (`inputs` by name), the Open Inference Protocol's JSON or"
            " its binary form, one tensor as npy, a picture, a sound, or any bytes, as the"
            " function's signature says; `GET /fn/{name}/openapi.json` shows it. `Accept` chooses"
            " the form of the answer. A server function gets the request as it is, at its path /.",
        ),
        _call(
            "GET",
            "/fn/{name}/openapi.json",
            "Describe the calls of one function with its signature, as an OpenAPI document.",
            (Answer(OK, WORDS[OK], json_of(dict[str, Any]), ("ETag",)), _UNCHANGED),
            text="Other server functions than those in Python answer at this path themselves.",
        ),
    ]


_UNCHANGED: Final = Answer(NOT_MODIFIED, WORDS[NOT_MODIFIED])


def _call(method: str, path: str, summary: str, answers: tuple[Answer, ...], **more: Any) -> Route:
    more = {**more, "errors": (*UNKNOWN, *more.get("errors", ()))}
    more["parameters"] = (FUNCTION, *more.get("parameters", ()))
    return Route(method, path, CALLS, summary, "invoke", answers, is_open=True, **more)


def _passed(method: str) -> Route:
    """Return the description of what a server function answers."""
    has_body = method not in ("GET", "OPTIONS")
    return Route(
        method,
        "/fn/{name}/{path}",
        "Server functions",
        f"Send a {method} request to the server of a function.",
        "invoke",
        (Answer(0, "What the server answers.", (Content("*/*"),)),),
        (Content("*/*"),) if has_body else (),
        (FUNCTION, _PATH, *CALLING),
        (*FORWARDED, errors.Unknown),
        "`path` may have slashes. Every method is passed on; WebSockets are, too. A function that"
        " has no server has no such paths.",
        is_open=True,
        is_body_required=False,
    )


def _state() -> list[Route]:
    ready = (
        answered(Readiness),
        Answer(NOT_READY, "No calls are accepted any more.", json_of(Readiness)),
    )
    page = (Content(TEXT), Content(METRICS))
    return [
        _public("/healthz", "Ask whether the process runs.", (answered(Health),)),
        _public("/readyz", "Ask whether calls are accepted.", ready, OF_WORKERS),
        Route(
            "GET",
            "/metrics",
            STATE,
            "Get the metrics, as Prometheus reads them.",
            "read",
            (Answer(OK, WORDS[OK], page),),
            errors=OF_WORKERS,
            is_open=True,
        ),
        _public(
            "/openapi.json",
            "Get this document.",
            (Answer(OK, WORDS[OK], json_of(dict[str, Any]), ("ETag",)), _UNCHANGED),
            OF_WORKERS,
        ),
    ]


def _public(path: str, summary: str, answers: tuple[Answer, ...], errors: Errors = ()) -> Route:
    return Route("GET", path, STATE, summary, None, answers, errors=errors)
