"""Descriptions of the routes below /v2, of the Open Inference Protocol. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from gateway.admission.callers import Need
from gateway.oip.repository import IndexRequest, ModelRequest
from gateway.oip.statistics import Statistics
from gateway.openapi import oip_bodies as bodies
from gateway.openapi.call_routes import LENGTH, NOT_STARTED, READ, RUN, SENT
from gateway.openapi.routes import (
    JSON,
    OCTETS,
    OF_WORKERS,
    WORDS,
    Answer,
    Content,
    Errors,
    Parameter,
    Route,
    answered,
    json_of,
)
from gateway.problems import OK
from registry import errors

GROUP: Final = "Open Inference Protocol (/v2)"
_MODEL: Final = Parameter(
    "model",
    "Name of the model.",
    Annotated[str, Meta(max_length=255)],
    "path",
    is_required=True,
)
_MODEL_VERSION: Final = Parameter(
    "version",
    "Version of the model. Without it: the one that has the traffic.",
    Annotated[str, Meta(pattern="^[0-9]{1,9}$")],
    "path",
    is_required=True,
)
_EXAMPLE: Final = {
    "inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1.0, 2.0]}]
}
_UNKNOWN: Final[Errors] = (errors.UnknownModel,)
_REGION: Final = Parameter("name", "Name of the region.", place="path", is_required=True)
_DONE: Final = Answer(OK, WORDS[OK])
_BASES: Final = ("/v2/models/{model}", "/v2/models/{model}/versions/{version}")
_ANY_BODY: Final = (Content("*/*"),)


def oip_routes() -> list[Route]:
    """Return the routes below /v2."""
    return [*_server(), *_models(), *_repository(), *_extensions()]


def _route(  # noqa: PLR0913 - the fields of a route
    method: str,
    path: str,
    summary: str,
    need: Need | None,
    answers: Iterable[Answer],
    request: tuple[Content, ...] = (),
    parameters: tuple[Parameter, ...] = (),
    errors: Errors = (),
    **more: Any,
) -> Route:
    named = (*((_MODEL,) if "{model}" in path else ()),)
    named += (_MODEL_VERSION,) if "{version}" in path else ()
    region = (_REGION,) if "{name}" in path else ()
    return Route(
        *(method, path, GROUP, summary, need, tuple(answers), request),
        parameters=(*named, *region, *parameters),
        errors=(*_UNKNOWN, *errors) if named else errors,
        shape="oip",
        is_open=need not in (None, "admin"),
        is_body_required=bool(request) and path.endswith("/infer"),
        **more,
    )


def _server() -> list[Route]:
    ready = answered(bodies.ServerReady)
    closed = (errors.ShuttingDown,)
    return [
        _route("GET", "/v2", "Show the server.", "invoke", [answered(bodies.ServerMetadata)]),
        _route(
            *("GET", "/v2/health/live", "Ask whether the process runs.", None),
            [answered(bodies.ServerLive)],
        ),
        _route(
            *("GET", "/v2/health/ready", "Ask whether calls are accepted.", None, [ready]),
            errors=closed,
        ),
    ]


def _models() -> list[Route]:
    return [route for base in _BASES for route in _model(base)]


def _model(base: str) -> list[Route]:
    strict = Parameter(
        "strict",
        "`1`: only with a replica that is ready.",
        Literal["", "0", "1", "false", "true"],
    )
    away = (errors.FunctionFailing, errors.Asleep, errors.ShuttingDown)
    return [
        _route("GET", base, "Show a model.", "invoke", [answered(bodies.ModelMetadata)]),
        _route(
            *("GET", f"{base}/ready", "Ask whether a model can be called.", "invoke"),
            [answered(bodies.ModelReady)],
            parameters=(strict,),
            errors=away,
        ),
        _route(
            *("GET", f"{base}/config", "Show the configuration of a model, as Triton does."),
            "invoke",
            [answered(dict[str, Any])],
        ),
        _route(
            *("GET", f"{base}/stats", "Show statistics of a model.", "read"),
            [answered(Statistics)],
            errors=OF_WORKERS,
        ),
        _infer(f"{base}/infer"),
        *(
            _route(
                *("POST", f"{base}/{name}", "Not served: call infer.", "invoke", ()),
                _ANY_BODY,
                errors=(errors.NotServed,),
            )
            for name in ("generate", "generate_stream")
        ),
    ]


def _infer(path: str) -> Route:
    answers = (Content(JSON, bodies.InferAnswer), Content(OCTETS))
    return _route(
        "POST",
        path,
        "Call a model; a cold one wakes.",
        "invoke",
        [Answer(OK, WORDS[OK], answers, (*SENT, LENGTH.name))],
        (Content(JSON, bodies.InferRequest, _EXAMPLE), Content(OCTETS)),
        (LENGTH,),
        (*READ, *NOT_STARTED, *RUN),
    )


def _repository() -> list[Route]:
    index = Content(JSON, IndexRequest)
    body = Content(JSON, ModelRequest)
    place = "/v2/repository/models/{model}"
    listed = Answer(OK, WORDS[OK], json_of(list[bodies.IndexEntry]))
    loading = (*NOT_STARTED, errors.NoRoom, errors.NotServed, *OF_WORKERS)
    return [
        _route(
            *("POST", "/v2/repository/index", "List the models that the key may call.", "invoke"),
            [listed],
            (index,),
        ),
        _route(
            *("POST", f"{place}/load", "Wait until a model has a replica that is ready.", "deploy"),
            [_DONE],
            (body,),
            errors=loading,
        ),
        _route(
            *("POST", f"{place}/unload", "Let a model sleep when idle.", "deploy"),
            [_DONE],
            (body,),
            errors=(errors.NotServed, *OF_WORKERS),
        ),
        _route(
            *("GET", "/v2/models/stats", "Show statistics of all models.", "read"),
            [answered(Statistics)],
            errors=OF_WORKERS,
        ),
    ]


def _extensions() -> list[Route]:
    """Return the routes of what this server has not, or only in part."""
    empty = Answer(OK, WORDS[OK], json_of(list[Any]))
    found = []
    for place in ("/v2/systemsharedmemory", "/v2/cudasharedmemory"):
        region = f"{place}/region/{{name}}"
        what = "shared memory, of which the server uses none"
        found += [
            _route("GET", f"{place}/status", f"List {what}.", "invoke", [empty]),
            _route(
                *("GET", f"{region}/status", f"Show {what}.", "invoke", ()),
                errors=(errors.Unknown,),
            ),
            _route("POST", f"{place}/unregister", f"Forget {what}.", "invoke", [_DONE], _ANY_BODY),
            _route("POST", f"{region}/unregister", f"Forget {what}.", "invoke", [_DONE], _ANY_BODY),
            _route("POST", f"{region}/register", f"Refuse {what}.", "invoke", (), _ANY_BODY),
        ]
    for path in ("/v2/trace/setting", "/v2/models/{model}/trace/setting", "/v2/logging"):
        kind = "log" if path.endswith("logging") else "trace"
        shown = [answered(dict[str, Any])]
        found += [
            _route("GET", path, f"Show the {kind} settings.", "admin", shown),
            _route(
                "POST",
                path,
                f"Keep the {kind} settings: none can change.",
                "admin",
                shown,
                (Content(JSON, dict[str, Any]),),
            ),
        ]
    return found
