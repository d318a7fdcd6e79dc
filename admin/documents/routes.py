"""What the OpenAPI document says of each route of the admin API."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Final, Literal, NamedTuple

from msgspec import Meta

from admin.documents import deploys as d
from admin.documents import functions as f
from admin.documents import history as h
from admin.documents import hosts as k
from admin.documents import requests as r
from admin.documents import server as s
from admin.documents.deploys import OperationRow
from admin.documents.events import LogEvents, ServerEvents
from admin.documents.functions import Items
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
from gateway.statuses import ACCEPTED, CREATED, OK
from registry import errors
from registry.model.keys import Need
from registry.names import NAME_MAX

PREFIX: Final = "/admin/v1"


class AdminRoute(NamedTuple):
    """A route of the admin API: all that the server and the document know of it."""

    need: Need
    """Scope that the caller's key needs."""
    handler: str
    """Where `admin.api.table.Handlers` has the handler: "SUBJECT.METHOD"."""
    summary: str
    answer: Any = None
    """Type of the JSON answer, None for none."""
    statuses: tuple[int, ...] = (OK,)
    """Statuses of successful answers."""
    request: Any = None
    """Type of the JSON body, `bytes` for any bytes, None for none."""
    parameters: tuple[Parameter, ...] = ()
    """Those of the query and the header; the path's are in IN_PATH."""
    errors: Errors = ()
    """Errors of this route, beside those of every route."""
    sent: tuple[str, ...] = ()
    """Headers of the answer."""
    events: Any = None
    """Events of an answer that is a stream of them: a Struct with the type of each by its name."""
    others: tuple[str, ...] = ()
    """Media types of other answers."""
    is_body_required: bool = True

    def described(self, method: str, path: str) -> Route:
        """Return the route for the OpenAPI document; `path` is below PREFIX."""
        answers = [answered(self.answer, status=one, headers=self.sent) for one in self.statuses]
        contents = [*answers[0].contents, *(Content(one) for one in self.others)]
        if self.events is not None:
            contents.append(Content(EVENTS, self.events))
        answers[0] = answers[0]._replace(contents=tuple(contents))
        return Route(
            method,
            PREFIX + path,
            f"Admin API: {GROUPS[path.split('/')[1]]}",
            self.summary,
            self.need,
            tuple(answers),
            _body(self.request),
            (*_in_path(path), *self.parameters),
            (*self.errors, errors.StoreUnavailable, *OF_WORKERS),
            is_body_required=self.is_body_required,
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
    number("limit", "Maximum items of a page.", r.PAGE_MAX, r.PAGE_MAX),
    Parameter("next", "Cursor of the page.", Annotated[str, Meta(max_length=r.CURSOR_MAX)]),
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


_HOURS: Final = number("hours", "Hours before now.", 1, r.HOURS_MAX)
_LINES: Final = number("lines", "Maximum lines of each replica.", r.LINES, r.LINES_MAX)
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
_read: Final = partial(AdminRoute, "read")
_deploy: Final = partial(AdminRoute, "deploy")
_invoke: Final = partial(AdminRoute, "invoke")
_admin: Final = partial(AdminRoute, "admin")

ROUTES: Final = {
    "HEAD /blobs/{sha256}": _deploy(
        "uploads.head_blob",
        "Ask whether a file is stored, and claim it for a deploy.",
        parameters=(_SIZE,),
        errors=(errors.Unknown, errors.BadBundle),
    ),
    "PUT /blobs/{sha256}": _deploy(
        "uploads.put_blob", "Upload a file of a bundle.", d.Blob, (CREATED,), bytes, errors=_STORED
    ),
    "POST /functions/{name}/revisions": _deploy(
        "uploads.post_revision",
        "Start a deploy.",
        OperationRow,
        (ACCEPTED,),
        r.DeployRequest,
        errors=(*_REFUSED, *_UNKNOWN),
        sent=("Location",),
    ),
    "GET /operations": _read(
        "uploads.list_operations", "List the newest deploys and rollbacks.", Items[OperationRow]
    ),
    "GET /operations/{id}": _read(
        "uploads.get_operation",
        "Show a deploy or a rollback, and wait for its next phase.",
        OperationRow,
        parameters=_WAIT,
        errors=(errors.Unknown,),
    ),
    "DELETE /operations/{id}": _deploy(
        "uploads.cancel_operation",
        "Cancel a deploy or a rollback.",
        OperationRow,
        errors=(errors.Unknown,),
    ),
    "GET /functions": _read(
        "functions.list_functions",
        "List the functions with their state.",
        Items[f.FunctionRow],
        parameters=_PAGE,
    ),
    "GET /functions/{name}": _read(
        "functions.get_function",
        "Show a function with all details.",
        f.FunctionDetail,
        errors=_UNKNOWN,
        sent=("ETag",),
    ),
    "PATCH /functions/{name}": _deploy(
        "operate.patch_function",
        "Change the scaling of a function.",
        f.Scaled,
        request=r.ScalingRequest,
        parameters=(_IF_MATCH,),
        errors=(*_UNKNOWN, *_CHANGED, errors.Refused, errors.BadManifest),
        sent=("ETag",),
    ),
    "DELETE /functions/{name}": _deploy(
        "functions.remove_function", "Remove a function.", s.Removed, errors=(*_UNKNOWN, *_ENGINE)
    ),
    "POST /functions/{name}/rollback": _deploy(
        "operate.post_rollback",
        "Start a rollback.",
        OperationRow,
        (ACCEPTED,),
        r.RollbackRequest,
        errors=(*_UNKNOWN, errors.Conflict, errors.Incompatible, errors.Refused),
        sent=("Location",),
    ),
    "POST /functions/{name}/warm": _deploy(
        "operate.warm",
        "Wait until a replica of a function is ready.",
        f.Warmed,
        parameters=(number("wait", "Seconds to wait.", r.WARM_S, r.WARM_MAX_S),),
        errors=(*_UNKNOWN, errors.FunctionFailing, errors.NoRoom, *_ENGINE),
    ),
    "POST /functions/{name}/prepare": _deploy(
        "operate.prepare",
        "Ask for the compiled model of a function.",
        f.Prepares,
        (ACCEPTED,),
        r.PrepareRequest,
        errors=(*_UNKNOWN, errors.Refused),
        is_body_required=False,
    ),
    "POST /functions/{name}/sleep": _deploy(
        "operate.sleep",
        "Stop the idle replicas of a function.",
        f.Slept,
        request=r.SleepRequest,
        errors=_UNKNOWN,
        is_body_required=False,
    ),
    "POST /functions/{name}/park": _deploy(
        "operate.park",
        "Have the idle replicas of a function sleep, and wait until they do.",
        f.Parked,
        parameters=(number("wait", "Seconds to wait.", r.WARM_S, r.WARM_MAX_S),),
        errors=(*_UNKNOWN, errors.Conflict),
    ),
    "POST /functions/{name}/unpark": _deploy(
        "operate.unpark",
        "Wake a parked replica of a function, and wait until it is ready.",
        f.Warmed,
        parameters=(number("wait", "Seconds to wait.", r.WARM_S, r.WARM_MAX_S),),
        errors=(*_UNKNOWN, errors.Conflict, errors.FunctionFailing, errors.NoRoom, *_ENGINE),
    ),
    "POST /functions/{name}/tickets": _invoke(
        "pages.add_ticket",
        "Make a ticket, with which a browser opens the pages of a server function.",
        f.TicketRow,
        (CREATED,),
        r.TicketRequest,
        errors=_UNKNOWN,
        is_body_required=False,
    ),
    "GET /functions/{name}/revisions": _read(
        "functions.list_revisions",
        "List the revisions of a function that can be called.",
        Items[f.RevisionRow],
        errors=_UNKNOWN,
    ),
    "GET /functions/{name}/why": _read(
        "functions.why", "Show why a function is in its state.", f.Why, errors=_UNKNOWN
    ),
    "GET /functions/{name}/logs": _read(
        "logs.logs",
        "Show or follow the logs of the replicas of a function.",
        Items[f.ReplicaLog],
        parameters=(_LINES, _LAST_ID),
        errors=_UNKNOWN,
        events=LogEvents,
    ),
    "GET /functions/{name}/errors": _read(
        "errors.errors",
        "List the latest errors of a function.",
        Items[f.FailureRow],
        errors=_UNKNOWN,
    ),
    "GET /functions/{name}/sample": _read(
        "functions.sample",
        "Get a sample body for a call of a function.",
        others=("*/*",),
        errors=(*_UNKNOWN, errors.Unknown),
    ),
    "GET /functions/{name}/timeline": _read(
        "timeline.of_function",
        "Show states, use of devices and requests of a function over time.",
        h.FunctionTimeline,
        parameters=(_HOURS,),
        errors=_UNKNOWN,
    ),
    "GET /functions/{name}/advice": _read(
        "advice.of_function",
        "Replay the recorded requests of a function with other idle times.",
        h.Advice,
        parameters=(number("hours", "Hours before now.", r.HOURS, r.HOURS_MAX),),
        errors=(*_UNKNOWN, errors.AdviceUnavailable),
    ),
    "GET /aliases": _read(
        "aliases.list_aliases",
        "List the aliases of models.",
        Items[s.AliasRow],
        parameters=(*_PAGE, _ONLY),
        errors=_UNKNOWN,
    ),
    "POST /aliases": _deploy(
        "aliases.add_alias",
        "Give the model of a function a further name.",
        s.NewAlias,
        (OK, CREATED),
        r.AliasRequest,
        errors=(*_UNKNOWN, errors.Conflict, errors.Refused),
    ),
    "DELETE /aliases": _deploy(
        "aliases.remove_alias",
        "Remove an alias.",
        s.RemovedAlias,
        parameters=(Parameter("alias", "The alias.", is_required=True),),
        errors=(errors.Unknown,),
    ),
    "GET /timeline": _read(
        "timeline.of_all",
        "Show the use of all devices over time.",
        h.Timeline,
        parameters=(_HOURS,),
    ),
    "GET /usage": _read(
        "usage.get_usage",
        "Show the usage of models by key or by function.",
        h.Usage,
        parameters=_USAGE,
    ),
    "GET /cost": _read(
        "cost.get_cost",
        "Show device-seconds, energy and costs by function or by key.",
        h.Costs,
        parameters=_USAGE,
    ),
    "GET /pools": _read(
        "pools.list_pools",
        "List the pools, one for each revision.",
        Items[s.PoolRow],
        parameters=_PAGE,
    ),
    "GET /replicas": _read("pools.list_replicas", "List the replicas.", Items[s.ReplicaRow]),
    "GET /devices": _read("pools.list_devices", "List the devices.", Items[s.DeviceRow]),
    "GET /events": _read(
        "events.follow",
        "Follow the events of the server: a snapshot, then changes.",
        parameters=(_ONLY, _LAST_ID),
        events=ServerEvents,
    ),
    "GET /session": _read("session.get_session", "Show what the key may do.", s.Session),
    "GET /backup": _admin(
        "backup.get_backup",
        "Get a copy of the database.",
        others=("application/vnd.sqlite3",),
        errors=(errors.QueueFull,),
    ),
    "GET /keys": _admin("keys.list_keys", "List the keys.", Items[s.KeyRow]),
    "POST /keys": _admin(
        "keys.add_key",
        "Create a key.",
        s.NewKey,
        (CREATED,),
        r.KeyRequest,
        errors=(errors.Conflict,),
    ),
    "DELETE /keys/{id}": _admin(
        "keys.remove_key",
        "Remove a key.",
        s.Removed,
        errors=(errors.Unknown, errors.RevokedNotStored),
    ),
    "GET /access": _admin("access.get_access", "Tell who may call without a key.", s.AccessState),
    "PATCH /access": _admin(
        "access.patch_access",
        "Let everybody who reaches the server call without a key, or nobody.",
        s.AccessState,
        request=r.AccessRequest,
        errors=(errors.Conflict,),
    ),
    "POST /access/token": _admin(
        "access.rotate_admin",
        "Replace the admin token. The new one is in the data folder.",
        s.NewToken,
        errors=(errors.Conflict,),
    ),
    "GET /secrets": _admin(
        "secrets.list_secrets", "List the secrets, without their values.", Items[s.SecretRow]
    ),
    "POST /secrets": _admin(
        "secrets.set_secret",
        "Create a secret, or replace its value.",
        s.SecretChange,
        (OK, CREATED),
        r.SecretRequest,
        errors=(errors.Conflict,),
    ),
    "DELETE /secrets/{name}": _admin(
        "secrets.remove_secret",
        "Remove a secret.",
        s.RemovedSecret,
        parameters=(_FORCE,),
        errors=(errors.Unknown, errors.Conflict),
    ),
    "GET /hosts": _read(
        "hosts.list_hosts", "List the hosts, the server's own machine first.", Items[k.HostRow]
    ),
    "POST /hosts": _admin(
        "hosts.add_host",
        "Log in to a machine, or reach the server's cluster; check it, and add it as a host.",
        k.NewHost,
        (CREATED,),
        r.SshHostRequest | r.KubernetesHostRequest,
        parameters=(_UNCHECKED,),
        errors=(errors.Conflict, errors.HostRefused),
    ),
    "GET /hosts/{name}": _admin(
        "hosts.get_host", "Show a host with its settings.", k.HostDetail, errors=(errors.Unknown,)
    ),
    "PATCH /hosts/{name}": _admin(
        "hosts.patch_host",
        "Change a host: its labels, limits or login, or drain it.",
        k.HostDetail,
        request=r.HostChanges,
        parameters=(_UNCHECKED,),
        errors=(errors.Unknown, errors.HostRefused),
    ),
    "DELETE /hosts/{name}": _admin(
        "hosts.remove_host",
        "Remove a host once its replicas have drained.",
        k.RemovedHost,
        (OK, ACCEPTED),
        parameters=(_FORGET,),
        errors=(errors.Unknown, errors.Conflict),
    ),
    "POST /hosts/{name}/check": _admin(
        "hosts.check_host",
        "Check all that a host needs.",
        Items[k.Check],
        errors=(errors.Unknown,),
    ),
    "POST /images/prune": _admin(
        "images.prune",
        "Remove the images that no function needs.",
        s.PrunedImages,
        errors=(*_ENGINE, errors.Refused),
    ),
    "GET /environments": _read(
        "environments.list_environments",
        "List the environments of Python functions.",
        Items[s.EnvironmentRow],
    ),
    "GET /environments/{id}": _read(
        "environments.get_environment",
        "Show an environment with its packages.",
        s.EnvironmentDetail,
        errors=(errors.Unknown, errors.Conflict),
    ),
    "DELETE /environments/{id}": _admin(
        "environments.remove_environment",
        "Remove an environment that nothing live names.",
        s.RemovedEnvironment,
        errors=(errors.Unknown, errors.Conflict),
    ),
    "POST /environments/prune": _admin(
        "environments.prune",
        "Remove the environments that no revision names.",
        s.PrunedEnvironments,
        errors=(errors.Conflict,),
    ),
}
"""Every route of the admin API, by method and path below PREFIX."""
