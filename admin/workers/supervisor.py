"""A server with gateway processes of its own, opened in order and closed in reverse."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from aiohttp import web

from admin.api.app import Admin, open_admin
from admin.api.context import AdminSide
from admin.compose import (
    access_of,
    add_families,
    check_exposure,
    make_manager,
    open_deploys,
    open_past,
    url_of,
)
from admin.deploy.deploys import Deploys
from admin.health import Health
from admin.pool_sync import Feed
from admin.settings import Settings, is_malloc_set, run_dir
from admin.store import Store, open_store
from admin.telemetry.tracing import check_traces
from admin.workers.admin_proxy import PASSED_MAX
from admin.workers.broadcast import Hub, Links, Overview
from admin.workers.messages import Welcome
from admin.workers.metrics import Gathered, Reckonings
from admin.workers.pool import Crew
from admin.workers.port import Port, reserve
from gateway.http.app import ErrorBoundary, StatePages
from gateway.metrics.requests import Metrics
from pool_manager.driver import Driver
from pool_manager.manager import Manager
from registry.store.keys import fingerprint

PASSING: Final = "admin.sock"
"""Where gateway processes reach the supervisor's application, in the run folder."""


@dataclass(frozen=True, slots=True)
class Supervised:
    """A server that accepts calls at `url`, in the processes of `crew`."""

    url: str
    store: Store
    manager: Manager
    deploys: Deploys
    crew: Crew


@asynccontextmanager
async def supervising(
    settings: Settings, driver: Driver | None = None
) -> AsyncIterator[Supervised]:
    """As `admin.compose.running`, with `settings.workers` gateway processes of their own.

    Start order: port, store, manager, private application, workers. Stop order is the reverse.
    Raises what `running` raises, and FnError where a worker cannot start.
    """
    async with AsyncExitStack() as stack:
        check_traces(settings.gateway())
        store = await open_store(settings.store(), stack)
        check_exposure(settings, store)
        port = await reserve(settings.listen, settings.port)
        stack.callback(port.close)
        past = await open_past(store, stack)
        hub = Hub(store.catalog, store.ring, past.expected)
        past.on_cold_start = hub.estimate_changed
        # Before the manager hears of the catalog: workers are to know a revision before its pool.
        stack.callback(hub.open())
        manager = await make_manager(settings, store, past, driver)
        overview = Overview()
        await _open_pools(store, manager, hub, overview, stack)
        deploys = await open_deploys(settings, store, manager, stack, hub.settled)
        own, page = _metrics(store, overview)
        links = Links(hub, overview, page, own, manager, past)
        crew = Crew(settings.workers, partial(_welcome, settings, store, port), links)
        failures = overview.failures
        side = AdminSide(settings, store, manager, deploys, past, overview, failures)
        add_families(own, side, crew)
        health = Health(settings.data, manager, overview, store.history, time.monotonic)
        sources = (health.reasons, store.backups.reasons, crew.reasons)
        admin = open_admin(side, list, lambda: [one for each in sources for one in each()], stack)
        links.on_answered = admin.scene.answered
        app = _application(admin, hub, page, crew)
        await _open_private(settings, app, stack)
        stack.push_async_callback(crew.stop, settings.shutdown_s, app.shutdown)
        await crew.start()
        yield Supervised(url_of(settings.listen, port.number), store, manager, deploys, crew)


async def _open_pools(
    store: Store, manager: Manager, hub: Hub, overview: Overview, stack: AsyncExitStack
) -> None:
    """The manager, of which workers see only serialised messages."""
    stack.push_async_callback(manager.close)
    stack.callback(manager.subscribe(overview.look))
    stack.callback(manager.subscribe(hub.pools))
    stack.callback(Feed(store.catalog, manager, store.bundles.__getitem__).close)
    await manager.start()


def _metrics(store: Store, overview: Overview) -> tuple[Metrics, Gathered]:
    """What the supervisor counts itself, and the page over all."""
    loop = asyncio.get_running_loop()

    def is_deployed(namespace: str, name: str) -> bool:
        return store.catalog.find(name, namespace) is not None

    reckonings = Reckonings()
    own = Metrics(
        reckonings.balance,
        overview.states,
        lambda: len(asyncio.all_tasks(loop)) + overview.tasks,
        is_deployed,
        wall=time.time,  # noqa: TID251 - the shell passes the clock in
    )
    page = Gathered(own, reckonings, is_deployed)
    store.catalog.subscribe(own.on_change)
    store.catalog.subscribe(page.changed)
    return own, page


def _application(admin: Admin, hub: Hub, page: Gathered, crew: Crew) -> web.Application:
    """Whatever is no call: gateway processes pass it here."""
    boundary = ErrorBoundary(access_of(admin.side.settings, admin.side.store))
    app = web.Application()
    admin.add_routes(app, boundary).settled = hub.settled
    pages = StatePages(boundary, page, admin.reasons, lambda: not crew.is_stopping)
    pages.add_routes(app)
    return app


async def _open_private(settings: Settings, app: web.Application, stack: AsyncExitStack) -> None:
    """Serve `app` to this user's processes alone."""
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, auto_decompress=False)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    path = _socket_path(settings)
    # Only one server has the data folder, so this one is left over.
    path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(os.fspath(path))
    stack.callback(path.unlink, missing_ok=True)
    path.chmod(0o600)
    await web.SockSite(runner, sock, backlog=PASSED_MAX).start()


def _welcome(settings: Settings, store: Store, port: Port, name: str) -> Welcome:
    return Welcome(
        name,
        replace(settings.gateway(), port=port.number),
        settings.log_format,
        fingerprint(store.token),
        os.fspath(_socket_path(settings)),
        keeps_buffers=not is_malloc_set(),
    )


def _socket_path(settings: Settings) -> Path:
    return run_dir(settings.data) / PASSING
