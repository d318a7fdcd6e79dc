"""The admin API: its routes with access checks, and the wiring of its handlers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from admin.api.aliases import AliasRoutes
from admin.api.context import CALLER, AdminContext
from admin.api.cost import CostRoutes
from admin.api.deploys import UploadRoutes
from admin.api.environments import EnvironmentRoutes
from admin.api.events import EventRoutes, make_rows, open_watch, server_facts
from admin.api.functions import FunctionRoutes
from admin.api.history import AdviceRoutes, TimelineRoutes
from admin.api.hosts import HostRoutes
from admin.api.images import ImageRoutes
from admin.api.keys import AccessRoutes, KeyRoutes, SessionRoutes
from admin.api.logs import ErrorRoutes, LogRoutes
from admin.api.openapi import DocumentPages
from admin.api.operate import BackupRoutes, OperateRoutes
from admin.api.pages import PageRoutes
from admin.api.places import Places
from admin.api.pools import PoolRoutes
from admin.api.secrets import SecretRoutes
from admin.api.table import Handlers, Scoped, table
from admin.api.usage import UsageRoutes
from admin.deploy.deploys import Settled, at_once
from admin.documents.routes import PREFIX
from admin.events.snapshot import FunctionRows, StateReader
from admin.events.watch import EventWatch
from admin.host_login import HostLogins
from admin.ui.files import UiPages, read_files
from gateway.admission.access import Access
from gateway.admission.credentials import Realm
from gateway.http.bodies import continue_later
from gateway.http.boundary import ErrorBoundary, Handler
from gateway.http.call_route import credential_in
from gateway.waits import OpenRequests
from registry.errors import FnError, RevokedNotStored, Unknown
from registry.model.keys import Need
from registry.tasks import Tasks

SHIELDED = ("POST", "PATCH", "DELETE")
"""Methods that change store and memory together: they run to the end if the client disconnects."""
WAITING = (
    "/functions/{name}/warm",
    "/functions/{name}/park",
    "/functions/{name}/unpark",
    "/functions/{name}/tickets",
    "/hosts/{name}/check",
)
"""POST paths that change neither; they are cancelled if the client disconnects."""

REQUESTS_MAX: Final = 256
"""Max requests at once, waits and streams among them; see `Places`. Changes are not counted."""

Outcome = web.StreamResponse | Exception

wall: Final = time.time  # noqa: TID251 - the shell passes the clock in


class AdminApi:
    """Admin API with access checks: each route needs the admin token or a key with its scope."""

    def __init__(self, access: Access, handlers: Handlers, settled: Settled = at_once) -> None:
        """`settled` is awaited after each change, until every gateway process has applied it."""
        self._access = access
        self._settled = settled
        self._tasks = Tasks("admin API")
        self._open = OpenRequests(access.ring)
        self._places = Places("requests to the admin API are open", REQUESTS_MAX)
        self._table = table(handlers)

    def add_routes(self, app: web.Application, boundary: ErrorBoundary) -> None:
        """Add all routes inside the error boundary; unknown paths get 404 (401 without a key)."""
        add = app.router.add_route
        for row in self._table:
            is_shielded = row.method in SHIELDED and row.path not in WAITING
            guarded = boundary.wrap(self._scoped(row.need, row.handler, is_shielded=is_shielded))
            add(row.method, PREFIX + row.path, guarded, expect_handler=continue_later)
        nowhere = boundary.wrap(self._scoped("read", _unknown_route, is_shielded=False))
        add("*", PREFIX + "/{rest:(?s:.*)}", nowhere, expect_handler=continue_later)
        app.on_cleanup.append(self._close)

    async def _close(self, _app: web.Application) -> None:
        await self._tasks.close()

    def _scoped(self, need: Need, handler: Scoped, *, is_shielded: bool) -> Handler:
        async def checked(request: web.Request) -> web.StreamResponse:
            caller = self._access.identify(credential_in(request, Realm.ADMIN), Realm.ADMIN)
            caller.require(need, request.match_info.get("name", ""))
            request[CALLER] = caller
            if not is_shielded:
                with self._places.taken(caller):
                    return await self._open.run(caller.id, handler(request))
            task_name = f"{request.method} {request.path[:200]}"
            task = self._tasks.spawn(task_name, self._outcome(handler, request))
            outcome: Outcome = await asyncio.shield(task)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        return checked

    async def _outcome(self, handler: Scoped, request: web.Request) -> Outcome:
        """Return the response or the error, so that a disconnected client logs no task failure."""
        try:
            response = await handler(request)
            await self._settled()
        except RevokedNotStored as error:
            await self._settled()  # it has changed memory all the same
            return error
        except (FnError, ConnectionError) as error:
            return error
        return response


async def _unknown_route(request: web.Request) -> web.StreamResponse:
    raise Unknown(f"no route {request.method} {request.path[:200]}")


@dataclass(frozen=True, slots=True)
class Admin:
    """Admin API of a server, ready to serve. `reader` counts the requests that gateways
    answered; `reasons` returns the degradations that `/readyz` reports."""

    context: AdminContext
    rows: FunctionRows
    reader: StateReader
    watch: EventWatch
    reasons: Callable[[], list[str]]

    def add_routes(self, app: web.Application, boundary: ErrorBoundary) -> None:
        """Add API and dashboard routes to `app`, and end waiting requests when `app` shuts down."""
        context = self.context
        store, manager, deploys = context.store, context.manager, context.deploys
        settings = context.settings
        operate = OperateRoutes(
            store.catalog, manager, deploys, context.builds, self.rows, time.monotonic
        )
        advice = AdviceRoutes(store, context.history.expected, wall)
        logs = LogRoutes(store.catalog, manager, deploys.runner, time.monotonic)
        events = EventRoutes(self.watch, time.monotonic)
        hosts = HostRoutes(store.hosts, manager, HostLogins(), context.clusters, wall)
        handlers = Handlers(
            FunctionRoutes(
                store,
                manager,
                self.rows,
                deploys,
                context.history,
                context.connections,
            ),
            operate,
            UploadRoutes(store.blobs, deploys),
            KeyRoutes(store.keys, store.ring, store.revocations, wall),
            AccessRoutes(store, settings.exposure, "" if settings.is_local else settings.listen),
            PoolRoutes(store.catalog, manager, time.monotonic, wall),
            TimelineRoutes(store, manager, wall),
            advice,
            logs,
            ErrorRoutes(store.catalog, manager, context.failures),
            events,
            SessionRoutes(server_facts(settings)),
            BackupRoutes(store.backups),
            SecretRoutes(store, manager, deploys.upstream_keys, wall),
            ImageRoutes(deploys),
            PageRoutes(boundary.access, store.catalog, context.tickets),
            AliasRoutes(store.catalog, deploys),
            UsageRoutes(store, wall),
            CostRoutes(store, settings.prices(), wall),
            hosts,
            EnvironmentRoutes(manager, deploys.packages),
        )
        AdminApi(boundary.access, handlers, context.settled).add_routes(app, boundary)
        DocumentPages(boundary).add_routes(app)
        UiPages(boundary, read_files()).add_routes(app)
        waiting = (deploys.runner, operate, events.streams, logs.streams, hosts)
        deploys.runner.begin_waiting()
        app.on_shutdown.extend(one.stop_waiting for one in waiting)
        app.on_shutdown.append(advice.advisor.close)


def open_admin(
    context: AdminContext,
    sources: Sequence[Callable[[], list[str]]],
    stack: AsyncExitStack,
) -> Admin:
    """Build the admin API and subscribe it to all events.

    Each of `sources` returns reasons for `/readyz` to report the server as degraded.
    """

    def reasons() -> list[str]:
        return [reason for source in sources for reason in source()]

    rows = make_rows(context)
    reader = StateReader(context.store.catalog, rows, reasons)
    watch = open_watch(context, reader, stack)
    return Admin(context, rows, reader, watch, reasons)
