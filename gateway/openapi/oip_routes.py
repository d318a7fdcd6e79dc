"""Descriptions of the routes below /v2, of the Open Inference Protocol. Pure."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta

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
)
from gateway.statuses import OK
from registry import errors
from registry.model.keys import Need

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
_ANY_BODY: Final = Content("*/*")
_ANSWERS: Final = (Content(JSON, bodies.InferAnswer), Content(OCTETS))
_STATS: Final = "Show statistics of {}."


def oip_routes() -> list[Route]:
    """Return the routes below /v2."""
    return [*_server(), *_models(), *_repository(), *_extensions()]


def _get(path: str, summary: str, need: Need | None, shown: Any = None, **more: Any) -> Route:
    """Return a route that shows a value of the type `shown`; None for one that always fails."""
    return _route("GET", path, summary, need, () if shown is None else (answered(shown),), **more)


def _post(
    path: str, summary: str, need: Need, answer: Answer | None, *request: Content, **more: Any
) -> Route:
    """Return a route that takes a body in one of the forms `request`; without an `answer` it always
    fails."""
    answers = () if answer is None else (answer,)
    return _route("POST", path, summary, need, answers, request=request, **more)


def _route(  # noqa: PLR0913 - the fields of a route
    method: str,
    path: str,
    summary: str,
    need: Need | None,
    answers: tuple[Answer, ...],
    *,
    parameters: tuple[Parameter, ...] = (),
    errors: Errors = (),
    **more: Any,
) -> Route:
    named = tuple(one for one in (_MODEL, _MODEL_VERSION, _REGION) if f"{{{one.name}}}" in path)
    return Route(
        method,
        path,
        GROUP,
        summary,
        need,
        answers,
        parameters=(*named, *parameters),
        errors=(*_UNKNOWN, *errors) if _MODEL in named else errors,
        shape="oip",
        is_open=need not in (None, "admin"),
        is_body_required=path.endswith("/infer"),
        **more,
    )


def _server() -> list[Route]:
    live, ready = bodies.ServerLive, bodies.ServerReady
    closed = (errors.ShuttingDown,)
    return [
        _get("/v2", "Show the server.", "invoke", bodies.ServerMetadata),
        _get("/v2/health/live", "Ask whether the process runs.", None, live),
        _get("/v2/health/ready", "Ask whether calls are accepted.", None, ready, errors=closed),
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
    config = "Show the configuration of a model, as Triton does."
    unserved, why = "Not served: call infer.", (errors.NotServed,)
    return [
        _get(base, "Show a model.", "invoke", bodies.ModelMetadata),
        _get(
            f"{base}/ready",
            "Ask whether a model can be called.",
            "invoke",
            bodies.ModelReady,
            parameters=(strict,),
            errors=away,
        ),
        _get(f"{base}/config", config, "invoke", dict[str, Any]),
        _get(f"{base}/stats", _STATS.format("a model"), "read", Statistics, errors=OF_WORKERS),
        _post(
            f"{base}/infer",
            "Call a model; a cold one wakes.",
            "invoke",
            Answer(OK, WORDS[OK], _ANSWERS, (*SENT, LENGTH.name)),
            Content(JSON, bodies.InferRequest, _EXAMPLE),
            Content(OCTETS),
            parameters=(LENGTH,),
            errors=(*READ, *NOT_STARTED, *RUN),
        ),
        _post(f"{base}/generate", unserved, "invoke", None, _ANY_BODY, errors=why),
        _post(f"{base}/generate_stream", unserved, "invoke", None, _ANY_BODY, errors=why),
    ]


def _repository() -> list[Route]:
    model = Content(JSON, ModelRequest)
    place = "/v2/repository/models/{model}"
    index, listed = "List the models that the key may call.", answered(list[bodies.IndexEntry])
    load, unload = "Wait until a model has a replica that is ready.", "Let a model sleep when idle."
    unloading = (errors.NotServed, *OF_WORKERS)
    loading = (*NOT_STARTED, errors.NoRoom, *unloading)
    return [
        _post("/v2/repository/index", index, "invoke", listed, Content(JSON, IndexRequest)),
        _post(f"{place}/load", load, "deploy", _DONE, model, errors=loading),
        _post(f"{place}/unload", unload, "deploy", _DONE, model, errors=unloading),
        _get(
            "/v2/models/stats", _STATS.format("all models"), "read", Statistics, errors=OF_WORKERS
        ),
    ]


def _extensions() -> list[Route]:
    """Return the routes of what this server has not, or only in part."""
    found = []
    what, unknown = "shared memory, of which the server uses none", (errors.Unknown,)
    for place in ("/v2/systemsharedmemory", "/v2/cudasharedmemory"):
        region = f"{place}/region/{{name}}"
        found += [
            _get(f"{place}/status", f"List {what}.", "invoke", list[Any]),
            _get(f"{region}/status", f"Show {what}.", "invoke", errors=unknown),
            _post(f"{place}/unregister", f"Forget {what}.", "invoke", _DONE, _ANY_BODY),
            _post(f"{region}/unregister", f"Forget {what}.", "invoke", _DONE, _ANY_BODY),
            _post(f"{region}/register", f"Refuse {what}.", "invoke", None, _ANY_BODY),
        ]
    settings = Content(JSON, dict[str, Any])
    for path in ("/v2/trace/setting", "/v2/models/{model}/trace/setting", "/v2/logging"):
        kind = "log" if path.endswith("logging") else "trace"
        kept = f"Keep the {kind} settings: none can change."
        found += [
            _get(path, f"Show the {kind} settings.", "admin", dict[str, Any]),
            _post(path, kept, "admin", answered(dict[str, Any]), settings),
        ]
    return found
