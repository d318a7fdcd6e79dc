"""The routes of the admin API that `fnctl` calls, with the types of their bodies.

`admin.documents.routes` says what each one does; a test ties both tables together. Types are
imported when a route is called: to make one takes as long as a short request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Final, Generic, TypeVar

from admin import documents as d

B = TypeVar("B")
T = TypeVar("T")
ADVICE_S: Final = 150.0
"""Slightly longer than a server takes at most to compute an advice."""
UPLOAD_S: Final = 300.0
"""Max seconds without progress: a server syncs gigabytes, or copies and checks its database."""
HOST_S: Final = 180.0
"""Slightly longer than a server takes at most to log in to a host and check it."""


@dataclass(frozen=True, slots=True)
class Route(Generic[T]):
    """A route that answers one T."""

    method: str
    path: str
    """Below the prefix; {} stands for a name."""
    answer: Callable[[], type[T]]
    """Returns the type of the answer."""
    _: KW_ONLY
    timeout_s: float | None = None
    """Max seconds of a wait for the server; None for the client's own limit."""


@dataclass(frozen=True, slots=True)
class BodyRoute(Route[T], Generic[T, B]):
    """A route that takes a B and answers one T."""

    body: Callable[[], type[B]]
    """Returns the type of the body."""


@dataclass(frozen=True, slots=True)
class ListRoute(Generic[T]):
    """A route that answers a list of T, in pages."""

    method: str
    path: str
    """As in `Route`."""
    item: Callable[[], type[T]]
    """Returns the type of an item."""
    timeout_s: float | None = None
    """As in `Route`."""


def _operation() -> type[d.deploys.OperationRow]:
    return d.deploys.OperationRow


SESSION: Final = Route("GET", "/session", lambda: d.server.Session)

FUNCTIONS: Final = ListRoute("GET", "/functions", lambda: d.functions.FunctionRow)
FUNCTION: Final = Route("GET", "/functions/{}", lambda: d.functions.FunctionDetail)
SCALE: Final = BodyRoute(
    "PATCH", "/functions/{}", lambda: d.functions.Scaled, lambda: d.requests.ScalingRequest
)
REMOVE: Final = Route("DELETE", "/functions/{}", lambda: d.server.Removed)
DEPLOY: Final = BodyRoute(
    "POST", "/functions/{}/revisions", _operation, lambda: d.requests.DeployRequest
)
ROLL_BACK: Final = BodyRoute(
    "POST", "/functions/{}/rollback", _operation, lambda: d.requests.RollbackRequest
)
WARM: Final = Route("POST", "/functions/{}/warm", lambda: d.functions.Warmed)
PARK: Final = Route("POST", "/functions/{}/park", lambda: d.functions.Parked)
UNPARK: Final = Route("POST", "/functions/{}/unpark", lambda: d.functions.Warmed)
SLEEP: Final = BodyRoute(
    "POST", "/functions/{}/sleep", lambda: d.functions.Slept, lambda: d.requests.SleepRequest
)
PREPARE: Final = BodyRoute(
    "POST", "/functions/{}/prepare", lambda: d.functions.Prepares, lambda: d.requests.PrepareRequest
)
TICKET: Final = BodyRoute(
    "POST", "/functions/{}/tickets", lambda: d.functions.TicketRow, lambda: d.requests.TicketRequest
)
WHY: Final = Route("GET", "/functions/{}/why", lambda: d.functions.Why)
ERRORS: Final = ListRoute("GET", "/functions/{}/errors", lambda: d.functions.FailureRow)
LOGS: Final = ListRoute("GET", "/functions/{}/logs", lambda: d.functions.ReplicaLog)
ADVICE: Final = Route("GET", "/functions/{}/advice", lambda: d.history.Advice, timeout_s=ADVICE_S)

OPERATIONS: Final = ListRoute("GET", "/operations", _operation)
OPERATION: Final = Route("GET", "/operations/{}", _operation)
CANCEL: Final = Route("DELETE", "/operations/{}", _operation)

ALIASES: Final = ListRoute("GET", "/aliases", lambda: d.server.AliasRow)
ADD_ALIAS: Final = BodyRoute(
    "POST", "/aliases", lambda: d.server.NewAlias, lambda: d.requests.AliasRequest
)
REMOVE_ALIAS: Final = Route("DELETE", "/aliases", lambda: d.server.RemovedAlias)

USAGE: Final = Route("GET", "/usage", lambda: d.history.Usage)
COST: Final = Route("GET", "/cost", lambda: d.history.Costs)
REPLICAS: Final = ListRoute("GET", "/replicas", lambda: d.server.ReplicaRow)
DEVICES: Final = ListRoute("GET", "/devices", lambda: d.server.DeviceRow)

KEYS: Final = ListRoute("GET", "/keys", lambda: d.server.KeyRow)
ADD_KEY: Final = BodyRoute("POST", "/keys", lambda: d.server.NewKey, lambda: d.requests.KeyRequest)
REMOVE_KEY: Final = Route("DELETE", "/keys/{}", lambda: d.server.Removed)
ACCESS: Final = Route("GET", "/access", lambda: d.server.AccessState)
DECIDE_ACCESS: Final = BodyRoute(
    "PATCH", "/access", lambda: d.server.AccessState, lambda: d.requests.AccessRequest
)
ROTATE_ADMIN: Final = Route("POST", "/access/token", lambda: d.server.NewToken)
SECRETS: Final = ListRoute("GET", "/secrets", lambda: d.server.SecretRow)
SET_SECRET: Final = BodyRoute(
    "POST", "/secrets", lambda: d.server.SecretChange, lambda: d.requests.SecretRequest
)
REMOVE_SECRET: Final = Route("DELETE", "/secrets/{}", lambda: d.server.RemovedSecret)

HOSTS: Final = ListRoute("GET", "/hosts", lambda: d.hosts.HostRow)
HOST: Final = Route("GET", "/hosts/{}", lambda: d.hosts.HostDetail)
ADD_HOST: Final = BodyRoute(
    "POST", "/hosts", lambda: d.hosts.NewHost, lambda: d.requests.SshHostRequest, timeout_s=HOST_S
)
ADD_CLUSTER: Final = BodyRoute(
    "POST",
    "/hosts",
    lambda: d.hosts.NewHost,
    lambda: d.requests.KubernetesHostRequest,
    timeout_s=HOST_S,
)
CHANGE_HOST: Final = BodyRoute(
    "PATCH",
    "/hosts/{}",
    lambda: d.hosts.HostDetail,
    lambda: d.requests.HostChanges,
    timeout_s=HOST_S,
)
REMOVE_HOST: Final = Route("DELETE", "/hosts/{}", lambda: d.hosts.RemovedHost)
CHECK_HOST: Final = ListRoute("POST", "/hosts/{}/check", lambda: d.hosts.Check, HOST_S)

ENVIRONMENTS: Final = ListRoute("GET", "/environments", lambda: d.server.EnvironmentRow)
ENVIRONMENT: Final = Route("GET", "/environments/{}", lambda: d.server.EnvironmentDetail)
REMOVE_ENVIRONMENT: Final = Route(
    "DELETE", "/environments/{}", lambda: d.server.RemovedEnvironment, timeout_s=UPLOAD_S
)
PRUNE_ENVIRONMENTS: Final = Route(
    "POST", "/environments/prune", lambda: d.server.PrunedEnvironments, timeout_s=UPLOAD_S
)
PRUNE_IMAGES: Final = Route(
    "POST", "/images/prune", lambda: d.server.PrunedImages, timeout_s=UPLOAD_S
)
