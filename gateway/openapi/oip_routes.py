"""Descriptions of the routes below /v2, of the Open Inference Protocol. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final

from msgspec import Meta

from gateway.access import Need
from gateway.openapi import oip_bodies as bodies
from gateway.openapi.call_routes import LENGTH, NOT_STARTED, READ, RUN, SENT
from gateway.openapi.routes import (
    JSON,
    OCTETS,
    WORDS,
    Answer,
    Content,
    Errors,
    Parameter,
    Route,
    answered,
    json_of,
)
from gateway.problems import NOT_READY, OK
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
_DONE: Final = Answer(OK, WORDS[OK])


def oip_routes() -> list[Route]:
    """Return the routes below /v2."""
    return [*_server(), *_models(), *_repository()]


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
    return Route(
        *(method, path, GROUP, summary, need, tuple(answers), request),
        parameters=(*named, *parameters),
        errors=(*_UNKNOWN, *errors) if named else errors,
        shape="oip",
        is_open=need is not None,
        is_body_required=bool(request) and path.endswith("/infer"),
        **more,
    )


def _server() -> list[Route]:
    away = Answer(NOT_READY, "Not ready.")
    return [
        _route("GET", "/v2", "Show the server.", "invoke", [answered(bodies.ServerMetadata)]),
        _route("GET", "/v2/health/live", "Ask whether the process runs.", None, [_DONE]),
        _route("GET", "/v2/health/ready", "Ask whether calls are accepted.", None, [_DONE, away]),
    ]


def _models() -> list[Route]:
    return [
        route
        for base in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}")
        for route in (
            _route("GET", base, "Show a model.", "invoke", [answered(bodies.ModelMetadata)]),
            _route(
                "GET",
                f"{base}/ready",
                "Ask whether a model can be called.",
                "invoke",
                [_DONE],
                parameters=(Parameter("strict", "`1`: only with a replica that is ready."),),
                errors=NOT_STARTED,
            ),
            _route(
                "GET",
                f"{base}/config",
                "Show the configuration of a model, as Triton does.",
                "invoke",
                [answered(dict[str, Any])],
            ),
            _infer(f"{base}/infer"),
        )
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
    index = Content(JSON, bodies.IndexRequest)
    body = Content(JSON, bodies.ModelRequest)
    place = "/v2/repository/models/{model}"
    statistics = [answered(bodies.Statistics)]
    return [
        _route(
            "POST",
            "/v2/repository/index",
            "List the models that the key may call.",
            "invoke",
            [Answer(OK, WORDS[OK], json_of(list[bodies.IndexEntry]))],
            (index,),
        ),
        _route(
            "POST",
            f"{place}/load",
            "Wait until a model has a replica that is ready.",
            "deploy",
            [_DONE],
            (body,),
            errors=NOT_STARTED,
        ),
        _route(
            "POST", f"{place}/unload", "Let a model sleep when idle.", "deploy", [_DONE], (body,)
        ),
        _route("GET", "/v2/models/stats", "Show statistics.", "read", statistics),
        *(
            _route("GET", f"{base}/stats", "Show statistics of a model.", "read", statistics)
            for base in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}")
        ),
    ]
