"""The handlers of the admin API, bound to its routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from operator import attrgetter
from typing import NamedTuple

from aiohttp import web

from admin.api.aliases import AliasRoutes
from admin.api.cost import CostRoutes
from admin.api.deploys import UploadRoutes
from admin.api.environments import EnvironmentRoutes
from admin.api.events import EventRoutes
from admin.api.functions import FunctionRoutes
from admin.api.history import AdviceRoutes, TimelineRoutes
from admin.api.hosts import HostRoutes
from admin.api.images import ImageRoutes
from admin.api.keys import AccessRoutes, KeyRoutes, SessionRoutes
from admin.api.logs import ErrorRoutes, LogRoutes
from admin.api.operate import BackupRoutes, OperateRoutes
from admin.api.pages import PageRoutes
from admin.api.pools import PoolRoutes
from admin.api.secrets import SecretRoutes
from admin.api.usage import UsageRoutes
from admin.documents.routes import ROUTES
from registry.model.keys import Need

Scoped = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Handlers(NamedTuple):
    """Handlers of the admin API, by subject."""

    functions: FunctionRoutes
    operate: OperateRoutes
    uploads: UploadRoutes
    keys: KeyRoutes
    access: AccessRoutes
    pools: PoolRoutes
    timeline: TimelineRoutes
    advice: AdviceRoutes
    logs: LogRoutes
    errors: ErrorRoutes
    events: EventRoutes
    session: SessionRoutes
    backup: BackupRoutes
    secrets: SecretRoutes
    images: ImageRoutes
    pages: PageRoutes
    aliases: AliasRoutes
    usage: UsageRoutes
    cost: CostRoutes
    hosts: HostRoutes
    environments: EnvironmentRoutes


class Row(NamedTuple):
    """A route of the admin API. `path` is below the prefix."""

    method: str
    path: str
    need: Need
    handler: Scoped


def table(to: Handlers) -> list[Row]:
    """Return every route with its handler. Raises AttributeError for one without a handler."""
    rows = []
    for key, about in ROUTES.items():
        method, path = key.split(" ")
        rows.append(Row(method, path, about.need, attrgetter(about.handler)(to)))
    return rows
