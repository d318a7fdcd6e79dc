"""Descriptions of the routes below /v1. Pure."""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta

from gateway.openapi.answers import (
    AnthropicModel,
    AnthropicModelList,
    ModelEntry,
    ModelList,
)
from gateway.openapi.call_routes import FORWARDED
from gateway.openapi.routes import (
    EVENTS,
    JSON,
    Answer,
    Content,
    Parameter,
    Route,
    answered,
)
from gateway.v1.endpoints import (
    ENDPOINTS,
    MODELS,
    PREFIX,
    REALTIME,
    BodyForm,
    Endpoint,
    Protocol,
)
from gateway.v1.realtime import KEY, PROTOCOL
from gateway.v1.scanning import MODEL_MAX
from registry import errors

GROUP: Final = "Models (/v1)"
_MODEL: Final = {"model": "NAME", "messages": [{"role": "user", "content": "Hello"}]}
_VERSION: Final = Parameter(
    "anthropic-version", "Asks for errors and lists in Anthropic's form.", place="header"
)
_ID: Final = Parameter(
    "id",
    "Name of a model: of its function, or an alias.",
    Annotated[str, Meta(min_length=1)],
    "path",
    is_required=True,
)


_QUERIED: Final = Parameter(
    "model",
    "Name of the model: of its function, or an alias.",
    Annotated[str, Meta(min_length=1, max_length=MODEL_MAX)],
    is_required=True,
)
_OFFERED: Final = Parameter(
    PROTOCOL.decode(),
    f"Subprotocols. One of the form `{KEY.decode()}KEY` is a key, for browsers.",
    place="header",
)


def model_routes() -> list[Route]:
    """Return the routes below /v1."""
    return [*_lists(), *(_endpoint(one) for one in ENDPOINTS.values()), _realtime()]


def _realtime() -> Route:
    return Route(
        *("GET", (PREFIX + REALTIME).decode(), GROUP, "Open a WebSocket of a model."),
        "invoke",
        (Answer(0, "What the server of the model answers: 101, for a WebSocket."),),
        parameters=(_QUERIED, _OFFERED),
        errors=(errors.UnknownModel, *FORWARDED),
        text="The request is the handshake of a WebSocket. The rest is its server's.",
        shape="openai",
        is_open=True,
    )


def _lists() -> list[Route]:
    place = (PREFIX + MODELS).decode()
    return [
        _list(place, "List the models that the key may call.", ModelList, AnthropicModelList),
        _list(f"{place}/{{id}}", "Show a model.", ModelEntry, AnthropicModel, _ID),
    ]


def _list(path: str, summary: str, openai: Any, anthropic: Any, *parameters: Parameter) -> Route:
    return Route(
        "GET",
        path,
        GROUP,
        summary,
        "invoke",
        (answered((openai, anthropic)),),
        parameters=(_VERSION, *parameters),
        errors=(errors.UnknownModel,),
        shape="either",
        is_open=True,
    )


def _endpoint(one: Endpoint) -> Route:
    path = (PREFIX + one.path).decode()
    example = _MODEL if one.path in (b"/chat/completions", b"/messages") else None
    requests = {
        BodyForm.JSON: Content(JSON, dict[str, Any], example),
        BodyForm.MULTIPART: Content("multipart/form-data", dict[str, Any]),
    }
    contents = [Content(JSON), Content("*/*")]
    if one.streams:
        contents.insert(1, Content(EVENTS))
    is_openai = one.protocol is Protocol.OPENAI
    vendor = "OpenAI" if is_openai else "Anthropic"
    return Route(
        *("POST", path, GROUP, f"Send a request to a model, in {vendor}'s form."),
        "invoke",
        (Answer(0, "What the server of the model answers.", tuple(contents)),),
        tuple(requests[form] for form in one.forms),
        (_VERSION,) if not is_openai else (),
        (errors.UnknownModel, errors.Unknown, *FORWARDED, errors.UnsupportedEncoding),
        "`model` names the function, or an alias. The rest is its server's.",
        shape="openai" if is_openai else "anthropic",
        is_open=True,
    )
