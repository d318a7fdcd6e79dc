"""What the OpenAPI document says of a route. Pure."""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

from gateway.statuses import ACCEPTED, CREATED, NOT_MODIFIED, OK, STATUS
from registry import errors
from registry.errors import FnError
from registry.model.keys import Need

JSON: Final = "application/json"
OCTETS: Final = "application/octet-stream"
EVENTS: Final = "text/event-stream"
TEXT: Final = "text/plain"

Shape = Literal["problem", "openai", "anthropic", "either", "oip"]
"""Shape of a route's errors: a problem document, or that of a protocol; `either`: of OpenAI's or
of Anthropic's, as the client is."""
Place = Literal["path", "query", "header"]
Errors = tuple[type[FnError], ...]


class Parameter(NamedTuple):
    """A parameter of a route. `type`: a type whose schema msgspec can make."""

    name: str
    text: str
    type: Any = str
    place: Place = "query"
    is_required: bool = False


class Content(NamedTuple):
    """A body in one media type. `type` is None for bytes, a tuple for one of several types.
    `example`: a JSON value, or None."""

    media: str
    type: Any = None
    example: Any = None


class Answer(NamedTuple):
    """A successful answer. `status` 0 stands for every status: another server gives the answer."""

    status: int
    text: str
    contents: tuple[Content, ...] = ()
    headers: tuple[str, ...] = ()


class Route(NamedTuple):
    """A route. `need`: the scope of the key, None where nobody needs one. `is_open`: who may call
    without a key needs none either. `text` continues `summary`. `errors` are those of this route;
    `document` adds those of every route."""

    method: str
    path: str
    group: str
    summary: str
    need: Need | None
    answers: tuple[Answer, ...]
    request: tuple[Content, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    errors: Errors = ()
    text: str = ""
    shape: Shape = "problem"
    is_open: bool = False
    is_body_required: bool = True


EVERYWHERE: Final[Errors] = (
    errors.BadRequest,
    errors.HeadTimeout,
    errors.ExpectationFailed,
    errors.HeadTooLarge,
    errors.TooManyConnections,
    errors.ForeignHost,
)
"""Errors of every route: the request is no HTTP, or for another server."""
OF_BROWSERS: Final[Errors] = (errors.ForeignOrigin,)
OF_KEYS: Final[Errors] = (errors.NoKey, errors.WrongScope)
OF_BODIES: Final[Errors] = (errors.BodyTooLarge, errors.BodyTimeout, errors.BodyEvicted)
OF_WORKERS: Final[Errors] = (errors.ServerAway, errors.QueueFull, errors.ShuttingDown)
"""Errors of routes that one process serves for all."""
WORDS: Final = {
    OK: "Success.",
    CREATED: "Created.",
    ACCEPTED: "Accepted: the operation to follow.",
    NOT_MODIFIED: "The client has this version.",
}


def json_of(type: Any) -> tuple[Content, ...]:
    """Return a JSON body of a type."""
    return (Content(JSON, type),)


def answered(type: Any, *, status: int = OK, headers: tuple[str, ...] = ()) -> Answer:
    """Return a successful answer with a JSON body; without a body if `type` is None."""
    return Answer(status, WORDS[status], () if type is None else json_of(type), headers)


def errors_of(route: Route) -> dict[int, list[type[FnError]]]:
    """Return the errors of a route by status, those of its own first."""
    found = [*route.errors, *EVERYWHERE]
    found += OF_BROWSERS if route.need is not None else ()
    found += OF_KEYS if route.need is not None else ()
    found += OF_BODIES if route.request else ()
    by_status: dict[int, list[type[FnError]]] = {}
    for one in dict.fromkeys(found):
        by_status.setdefault(STATUS[one], []).append(one)
    return dict(sorted(by_status.items()))
