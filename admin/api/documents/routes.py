"""What the OpenAPI document says of each route of the admin API."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, NamedTuple

from msgspec import Meta

from admin.api.aliases import AliasRequest
from admin.api.documents import deploys as d
from admin.api.documents import functions as f
from admin.api.documents import history as h
from admin.api.documents import hosts as k
from admin.api.documents import server as s
from admin.api.documents.deploys import OperationRow
from admin.api.documents.functions import Items
from admin.api.functions import CURSOR_MAX, PAGE_MAX
from admin.api.history import HOURS, HOURS_MAX
from admin.api.hosts import HostChanges, HostRequest
from admin.api.keys import AccessRequest, KeyRequest
from admin.api.logs import LINES, LINES_MAX
from admin.api.operate import WARM_MAX_S, WARM_S, PrepareRequest, ScalingRequest, SleepRequest
from admin.api.pages import TicketRequest
from admin.api.secrets import SecretRequest
from gateway.admission.callers import Need
from gateway.openapi.routes import (
    EVENTS,
    OCTETS,
    OF_WORKERS,
    Content,
    Errors,
    Parameter,
    Route,
    answered,
    json_of,
)
from gateway.problems import ACCEPTED, CREATED, OK
from registry import errors
from registry.names import NAME_MAX

PREFIX: Final = "/admin/v1"


class About(NamedTuple):
    """What the document says of a route; fields as in `gateway.openapi.routes.Route`.

    `answer`: type of the JSON answer, None for none. `statuses`: of successful answers. `sent`:
    headers of the answer. `others`: media types of other answers. `request`: type of the body.
    """

    summary: str
    answer: Any = None
    statuses: tuple[int, ...] = (OK,)
    request: Any = None
    parameters: tuple[Parameter, ...] = ()
    errors: Errors = ()
    sent: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    is_body_required: bool = True


def describe_route(method: str, path: str, need: Need, about: About) -> Route:
    """Return a route for the OpenAPI document; `path` is below the prefix."""
    answers = [answered(about.answer, status=one, headers=about.sent) for one in about.statuses]
    if about.others:
        contents = (*answers[0].contents, *(Content(one) for one in about.others))
        answers[0] = answers[0]._replace(contents=contents)
    return Route(
        method,
        PREFIX + path,
        f"Admin API: {GROUPS[path.split('/')[1]]}",
        about.summary,
        need,
        tuple(answers),
        _body(about.request),
        (*_in_path(path), *about.parameters),
        (*about.errors, errors.StoreUnavailable, *OF_WORKERS),
        is_body_required=about.is_body_required,
    )


GROUPS: Final = {
    "blobs": "deploys",
    "operations": "deploys",
    "functions": "functions",
    "timeline": "history and usage",
    "usage": "history and usage",
    "cost": "history and usage",
    "pools": "pools, replicas and devices",
    "replicas": "pools, replicas and devices",
    "devices": "pools, replicas and devices",
    "events": "events",
    "session": "keys and secrets",
    "keys": "keys and secrets",
    "access": "keys and secrets",
    "secrets": "keys and secrets",
    "aliases": "functions",
    "hosts": "hosts",
    "images": "server",
    "environments": "server",
    "backup": "server",
}
"""Group of a route by the first word of its path."""
IN_PATH: Final = {
    "name": Parameter(
        "name",
        "Name of the function; where it is only read, also NAME@REVISION.",
        Annotated[str, Meta(max_length=NAME_MAX + 10)],
    ),
    "id": Parameter("id", "The id."),
    "sha256": Parameter(
        "sha256", "SHA-256 of the content, in hex.", Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    ),
}
_NAMES: Final = {
    "secrets": Parameter("name", "Name of the secret."),
    "hosts": Parameter("name", "Name of the host."),
    "environments": Parameter("id", "The environment's id, or the first digits of it."),
}


def _in_path(path: str) -> list[Parameter]:
    names = [one[1:-1] for one in path.split("/") if one.startswith("{")]
    own = _NAMES.get(path.split("/")[1])
    found = [own or IN_PATH[name] for name in names]
    return [one._replace(place="path", is_required=True) for one in found]


def _body(request: Any) -> tuple[Content, ...]:
    if request is None:
        return ()
    return (Content(OCTETS),) if request is bytes else json_of(request)


def number(name: str, text: str, default: int, most: int) -> Parameter:
    """Return a whole number of the query."""
    kind = Annotated[int, Meta(ge=1, le=most)]
    return Parameter(name, f"{text} At most {most}, by default {default}.", kind)


_PAGE: Final = (
    number("limit", "Maximum items of a page.", PAGE_MAX, PAGE_MAX),
    Parameter("next", "Cursor of the page.", Annotated[str, Meta(max_length=CURSOR_MAX)]),
)
_ONLY: Final = Parameter("function", "The only function that is wanted. Without it: all.")
_LAST_ID: Final = Parameter(
    "Last-Event-ID",
    "Id of the last event that the client has: the stream continues after it.",
    place="header",
)
_IF_MATCH: Final = Parameter(
    "If-Match", "The `ETag` of `GET /functions/{name}`. Required.", place="header"
)
_UNKNOWN: Final[Errors] = (errors.UnknownFunction, errors.UnknownRevision)
_REFUSED: Final[Errors] = (
    errors.Refused,
    errors.BadBundle,
    errors.BadManifest,
    errors.Incompatible,
    errors.Conflict,
)
_ENGINE: Final[Errors] = (errors.DriverError, errors.EngineDown)


_HOURS: Final = number("hours", "Hours before now.", 1, HOURS_MAX)
_LINES: Final = number("lines", "Maximum lines of each replica.", LINES, LINES_MAX)
_CHANGED: Final[Errors] = (
    errors.PreconditionRequired,
    errors.PreconditionFailed,
    errors.Conflict,
)
_STORED: Final[Errors] = (errors.BadBundle, errors.Conflict, errors.Unknown)
_SIZE: Final = Parameter("size", "Size of the blob in bytes.", Annotated[int, Meta(ge=0)])
_WAIT: Final = (
    Parameter(
        "wait",
        "Seconds that the answer may be delayed, at most 60.",
        Annotated[int, Meta(ge=0, le=9999)],
    ),
    Parameter(
        "phase", "Phase that the client knows: the answer is delayed while the operation is in it."
    ),
)
_USAGE: Final = (
    Parameter("by", "`function`, the default, or `key`.", Literal["function", "key"]),
    _ONLY,
    Parameter(
        "since",
        "Beginning: hours or days before now, such as `24h` and `7d`, or a date (UTC), such as"
        " `2026-11-01`. By default `24h`.",
    ),
)
_FORCE: Final = Parameter(
    "force", "`true` to remove a secret that functions need.", Literal["true"]
)
_FORGET: Final = Parameter(
    "force", "`true` to forget the replicas of an unreachable host.", Literal["true"]
)
_UNCHECKED: Final = Parameter(
    "unchecked", "`true` to store the host without a login.", Literal["true"]
)

ABOUT: Final = {
    "HEAD /blobs/{sha256}": About(
        "Ask whether a file is stored, and claim it for a deploy.",
        parameters=(_SIZE,),
        errors=(errors.Unknown, errors.BadBundle),
    ),
    "PUT /blobs/{sha256}": About(
        "Upload a file of a bundle.", d.Blob, (CREATED,), bytes, errors=_STORED
    ),
    "POST /functions/{name}/revisions": About(
        "Start a deploy.",
        OperationRow,
        (ACCEPTED,),
        d.DeployRequest,
        errors=(*_REFUSED, *_UNKNOWN),
        sent=("Location",),
    ),
    "GET /operations": About("List the newest deploys and rollbacks.", Items[OperationRow]),
    "GET /operations/{id}": About(
        "Show a deploy or a rollback, and wait for its next phase.",
        OperationRow,
        parameters=_WAIT,
        errors=(errors.Unknown,),
    ),
    "DELETE /operations/{id}": About(
        "Cancel a deploy or a rollback.", OperationRow, errors=(errors.Unknown,)
    ),
    "GET /functions": About(
        "List the functions with their state.", Items[f.FunctionRow], parameters=_PAGE
    ),
    "GET /functions/{name}": About(
        "Show a function with all details.", f.FunctionDetail, errors=_UNKNOWN, sent=("ETag",)
    ),
    "PATCH /functions/{name}": About(
        "Change the scaling of a function.",
        f.Scaled,
        request=ScalingRequest,
        parameters=(_IF_MATCH,),
        errors=(*_UNKNOWN, *_CHANGED, errors.Refused, errors.BadManifest),
        sent=("ETag",),
    ),
    "DELETE /functions/{name}": About(
        "Remove a function.", s.Removed, errors=(*_UNKNOWN, *_ENGINE)
    ),
    "POST /functions/{name}/rollback": About(
        "Start a rollback.",
        OperationRow,
        (ACCEPTED,),
        d.RollbackRequest,
        errors=(*_UNKNOWN, errors.Conflict, errors.Incompatible, errors.Refused),
        sent=("Location",),
    ),
    "POST /functions/{name}/warm": About(
        "Wait until a replica of a function is ready.",
        f.Warmed,
        parameters=(number("wait", "Seconds to wait.", WARM_S, WARM_MAX_S),),
        errors=(*_UNKNOWN, errors.FunctionFailing, errors.NoRoom, *_ENGINE),
    ),
    "POST /functions/{name}/prepare": About(
        "Ask for the compiled model of a function.",
        f.Prepares,
        (ACCEPTED,),
        PrepareRequest,
        errors=(*_UNKNOWN, errors.Refused),
        is_body_required=False,
    ),
    "POST /functions/{name}/sleep": About(
        "Stop the idle replicas of a function.",
        f.Slept,
        request=SleepRequest,
        errors=_UNKNOWN,
        is_body_required=False,
    ),
    "POST /functions/{name}/park": About(
        "Have the idle replicas of a function sleep, and wait until they do.",
        f.Parked,
        parameters=(number("wait", "Seconds to wait.", WARM_S, WARM_MAX_S),),
        errors=(*_UNKNOWN, errors.Conflict),
    ),
    "POST /functions/{name}/unpark": About(
        "Wake a parked replica of a function, and wait until it is ready.",
        f.Warmed,
        parameters=(number("wait", "Seconds to wait.", WARM_S, WARM_MAX_S),),
        errors=(*_UNKNOWN, errors.Conflict, errors.FunctionFailing, errors.NoRoom, *_ENGINE),
    ),
    "POST /functions/{name}/tickets": About(
        "Make a ticket, with which a browser opens the pages of a server function.",
        f.TicketRow,
        (CREATED,),
        TicketRequest,
        errors=_UNKNOWN,
        is_body_required=False,
    ),
    "GET /functions/{name}/revisions": About(
        "List the revisions of a function that can be called.",
        Items[f.RevisionRow],
        errors=_UNKNOWN,
    ),
    "GET /functions/{name}/why": About(
        "Show why a function is in its state.", f.Why, errors=_UNKNOWN
    ),
    "GET /functions/{name}/logs": About(
        "Show or follow the logs of the replicas of a function.",
        Items[f.ReplicaLog],
        parameters=(_LINES, _LAST_ID),
        errors=_UNKNOWN,
        others=(EVENTS,),
    ),
    "GET /functions/{name}/errors": About(
        "List the latest errors of a function.", Items[f.FailureRow], errors=_UNKNOWN
    ),
    "GET /functions/{name}/sample": About(
        "Get a sample body for a call of a function.",
        others=("*/*",),
        errors=(*_UNKNOWN, errors.Unknown),
    ),
    "GET /functions/{name}/timeline": About(
        "Show states, use of devices and requests of a function over time.",
        h.FunctionTimeline,
        parameters=(_HOURS,),
        errors=_UNKNOWN,
    ),
    "GET /functions/{name}/advice": About(
        "Replay the recorded requests of a function with other idle times.",
        h.Advice,
        parameters=(number("hours", "Hours before now.", HOURS, HOURS_MAX),),
        errors=(*_UNKNOWN, errors.AdviceUnavailable),
    ),
    "GET /aliases": About(
        "List the aliases of models.",
        Items[s.AliasRow],
        parameters=(*_PAGE, _ONLY),
        errors=_UNKNOWN,
    ),
    "POST /aliases": About(
        "Give the model of a function a further name.",
        s.NewAlias,
        (OK, CREATED),
        AliasRequest,
        errors=(*_UNKNOWN, errors.Conflict, errors.Refused),
    ),
    "DELETE /aliases": About(
        "Remove an alias.",
        s.RemovedAlias,
        parameters=(Parameter("alias", "The alias.", is_required=True),),
        errors=(errors.Unknown,),
    ),
    "GET /timeline": About(
        "Show the use of all devices over time.", h.Timeline, parameters=(_HOURS,)
    ),
    "GET /usage": About(
        "Show the usage of models by key or by function.", h.Usage, parameters=_USAGE
    ),
    "GET /cost": About(
        "Show device-seconds, energy and costs by function or by key.", h.Costs, parameters=_USAGE
    ),
    "GET /pools": About(
        "List the pools, one for each revision.", Items[s.PoolRow], parameters=_PAGE
    ),
    "GET /replicas": About("List the replicas.", Items[s.ReplicaRow]),
    "GET /devices": About("List the devices.", Items[s.DeviceRow]),
    "GET /events": About(
        "Follow the events of the server: a snapshot, then changes.",
        parameters=(_ONLY, _LAST_ID),
        others=(EVENTS,),
    ),
    "GET /session": About("Show what the key may do.", s.Session),
    "GET /backup": About(
        "Get a copy of the database.",
        others=("application/vnd.sqlite3",),
        errors=(errors.QueueFull,),
    ),
    "GET /keys": About("List the keys.", Items[s.KeyRow]),
    "POST /keys": About(
        "Create a key.", s.NewKey, (CREATED,), KeyRequest, errors=(errors.Conflict,)
    ),
    "DELETE /keys/{id}": About(
        "Remove a key.", s.Removed, errors=(errors.Unknown, errors.RevokedNotStored)
    ),
    "GET /access": About("Tell who may call without a key.", s.AccessState),
    "PATCH /access": About(
        "Let everybody who reaches the server call without a key, or nobody.",
        s.AccessState,
        request=AccessRequest,
        errors=(errors.Conflict,),
    ),
    "POST /access/token": About(
        "Replace the admin token. The new one is in the data folder.",
        s.NewToken,
        errors=(errors.Conflict,),
    ),
    "GET /secrets": About("List the secrets, without their values.", Items[s.SecretRow]),
    "POST /secrets": About(
        "Create a secret, or replace its value.",
        s.SecretChange,
        (OK, CREATED),
        SecretRequest,
        errors=(errors.Conflict,),
    ),
    "DELETE /secrets/{name}": About(
        "Remove a secret.",
        s.RemovedSecret,
        parameters=(_FORCE,),
        errors=(errors.Unknown, errors.Conflict),
    ),
    "GET /hosts": About("List the hosts, the server's own machine first.", Items[k.HostRow]),
    "POST /hosts": About(
        "Log in to a machine, check it, and add it as a host.",
        k.NewHost,
        (CREATED,),
        HostRequest,
        parameters=(_UNCHECKED,),
        errors=(errors.Conflict, errors.HostRefused),
    ),
    "GET /hosts/{name}": About(
        "Show a host with its settings.", k.HostDetail, errors=(errors.Unknown,)
    ),
    "PATCH /hosts/{name}": About(
        "Change a host: its labels, limits or login, or drain it.",
        k.HostDetail,
        request=HostChanges,
        parameters=(_UNCHECKED,),
        errors=(errors.Unknown, errors.HostRefused),
    ),
    "DELETE /hosts/{name}": About(
        "Remove a host once its replicas have drained.",
        k.RemovedHost,
        (OK, ACCEPTED),
        parameters=(_FORGET,),
        errors=(errors.Unknown, errors.Conflict),
    ),
    "POST /hosts/{name}/check": About(
        "Check all that a host needs.", Items[k.HostCheck], errors=(errors.Unknown,)
    ),
    "GET /environments": About(
        "List the environments of Python functions.", Items[s.EnvironmentRow]
    ),
    "GET /environments/{id}": About(
        "Show an environment with its packages.",
        s.EnvironmentDetail,
        errors=(errors.Unknown, errors.Conflict),
    ),
    "DELETE /environments/{id}": About(
        "Remove an environment that nothing live names.",
        s.RemovedEnvironment,
        errors=(errors.Unknown, errors.Conflict),
    ),
    "POST /environments/prune": About(
        "Remove the environments that no revision names.",
        s.PrunedEnvironments,
        errors=(errors.Conflict,),
    ),
    "POST /images/prune": About(
        "Remove the images that no function needs.",
        s.PrunedImages,
        errors=(*_ENGINE, errors.Refused),
    ),
}
"""Descriptions by method and path."""
