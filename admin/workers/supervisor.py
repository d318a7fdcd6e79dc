"""Supervisor: a server with several gateway processes, opened in order and closed in reverse."""

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
from admin.api.context import AdminContext
from admin.compose import (
    KEEP_S,
    SECOND_S,
    access_of,
    add_families,
    check_exposure,
    follow_store,
    make_health,
    make_manager,
    open_builds,
    open_deploys,
    open_history,
    url_of,
)
from admin.deploy.compiled_models import CompiledModels
from admin.deploy.deploys import Deploys
from admin.gateway_process import check_extras, open_runner, start_root_tasks
from admin.model_control import LocalModels
from admin.pool_sync import PoolSync
from admin.settings import Settings, is_malloc_set, run_dir
from admin.statistics import ServerStatistics
from admin.store import Store, open_store
from admin.workers.admin_proxy import PROXIED_MAX
from admin.workers.broadcast import Broadcaster, ClusterState, WorkerMessages
from admin.workers.connections import ConnectionPoll
from admin.workers.messages import Welcome
from admin.workers.metrics import LedgerPoll, MergedMetrics
from admin.workers.model_control import ModelRequests
from admin.workers.pool import CHECK_S, WorkerPool
from admin.workers.port import Port, reserve
from admin.workers.statistics import RevisionPage, StatisticsAnswers
from gateway.http.app import StatePages
from gateway.http.bodies import continue_later
from gateway.http.boundary import ErrorBoundary
from gateway.http.page_route import Entry
from gateway.metrics.requests import Metrics
from gateway.pages.entering import ENTER
from gateway.pages.tickets import Tickets
from pool_manager.driver import Driver
from pool_manager.manager import Manager
from registry.tasks import Tasks

ADMIN_SOCKET: Final = "admin.sock"
"""Socket in the run folder on which gateway processes reach the supervisor's application."""


@dataclass(frozen=True, slots=True)
class Supervised:
    """Running server that accepts calls at `url`, in the processes of `workers`."""

    url: str
    store: Store
    manager: Manager
    deploys: Deploys
    workers: WorkerPool


@asynccontextmanager
async def supervising(  # noqa: PLR0915 - the parts of a server, in their order
    settings: Settings, driver: Driver | None = None
) -> AsyncIterator[Supervised]:
    """Run a server as `admin.compose.running`, with `settings.workers` gateway processes.

    Start order: port, store, manager, private application, workers. Stop order is the reverse.
    Raises what `running` raises, and FnError if a worker cannot start.
    """
    async with AsyncExitStack() as stack:
        check_extras(settings.gateway())
        store = await open_store(settings.store(), stack)
        await check_exposure(settings, store)
        port = await _reserve_ports(settings, stack)
        history = await open_history(store, stack)
        broadcaster = Broadcaster(store.catalog, store.ring, store.upstream_keys, history.expected)
        stack.callback(history.subscribe(broadcaster.on_cold_start))
        # Before the manager follows the catalog: workers must know a revision before its pool.
        stack.callback(broadcaster.open())
        manager = await make_manager(settings, store, history, driver)
        cluster = ClusterState()
        models = CompiledModels(store.builds, settings.compiler)
        pools = await _open_pools(store, manager, broadcaster, cluster, models, stack)
        deploys = await open_deploys(settings, store, manager, models, stack, broadcaster.settled)
        builds = await open_builds(settings, store, manager, pools, models, stack)
        poll = ConnectionPoll()
        context = AdminContext(
            settings,
            store,
            manager,
            deploys,
            builds,
            history,
            cluster,
            cluster.failures,
            poll.ask,
            Tickets(time.monotonic),
            broadcaster.settled,
        )
        own, page = _metrics(store, cluster)
        loads = ModelRequests(store.catalog, LocalModels(store.catalog, manager))
        stack.push_async_callback(loads.close)
        messages = WorkerMessages(
            *(broadcaster, cluster, page, own, manager, history, poll),
            _statistics(store, manager, stack),
            loads,
        )
        workers = WorkerPool(settings.workers, partial(_welcome, settings, store, port), messages)
        add_families(own, context, workers)
        admin = _open_admin(context, workers, stack)
        stack.callback(messages.subscribe(admin.reader.count_answers))
        app = _application(admin, page, workers)
        await _open_private(settings, app, stack)
        stack.push_async_callback(workers.stop, settings.shutdown_s, app.shutdown)
        await workers.start()
        yield Supervised(url_of(settings.listen, port.number), store, manager, deploys, workers)


async def _reserve_ports(settings: Settings, stack: AsyncExitStack) -> Port:
    """Return the port of HTTP, after reserving that of gRPC as well. Raises OSError."""
    port = await reserve(settings.listen, settings.port)
    stack.callback(port.close)
    if settings.grpc_port:
        stack.callback((await reserve(settings.listen, settings.grpc_port)).close)
    return port


async def _open_pools(
    store: Store,
    manager: Manager,
    broadcaster: Broadcaster,
    cluster: ClusterState,
    models: CompiledModels,
    stack: AsyncExitStack,
) -> PoolSync:
    """Start the manager; workers see only its serialised messages."""
    stack.push_async_callback(manager.close)
    stack.callback(manager.subscribe(cluster.on_endpoints))
    stack.callback(manager.subscribe(broadcaster.send_endpoints))
    pools = follow_store(store, manager, models, stack)
    await manager.start()
    return pools


def _open_admin(context: AdminContext, workers: WorkerPool, stack: AsyncExitStack) -> Admin:
    """Return the admin API, after starting all periodic tasks of the supervisor."""
    store, history = context.store, context.history
    tasks = Tasks("server")
    stack.push_async_callback(tasks.close)
    owners = (store.tasks, context.manager.tasks, context.builds.tasks, tasks)
    sources = [make_health(context).reasons, store.reasons, workers.reasons]
    admin = open_admin(context, list, [*sources, *(one.reasons for one in owners)], stack)
    root_tasks = [
        ("history", KEEP_S, history.flush),
        ("events", SECOND_S, admin.watch.tick),
        ("workers", CHECK_S, workers.check),
    ]
    start_root_tasks(tasks, root_tasks)
    return admin


def _metrics(store: Store, cluster: ClusterState) -> tuple[Metrics, MergedMetrics]:
    """Return the supervisor's own metrics, and the merged page."""
    loop = asyncio.get_running_loop()

    def is_deployed(namespace: str, name: str) -> bool:
        return store.catalog.find(name, namespace) is not None

    poll = LedgerPoll()
    own = Metrics(
        poll.balance,
        cluster.states,
        lambda: len(asyncio.all_tasks(loop)) + cluster.tasks,
        is_deployed,
        wall=time.time,  # noqa: TID251 - the shell passes the clock in
    )
    page = MergedMetrics(own, poll, is_deployed)
    store.catalog.subscribe(own.on_change)
    store.catalog.subscribe(page.on_change)
    return own, page


def _statistics(store: Store, manager: Manager, stack: AsyncExitStack) -> StatisticsAnswers:
    """Return the answers to the workers' questions for statistics."""
    catalog = store.catalog
    revisions = RevisionPage(lambda namespace, ref: catalog.find(ref, namespace) is not None)
    catalog.subscribe(revisions.on_change)
    wall = time.time  # noqa: TID251 - the shell passes the clock in
    found = ServerStatistics(revisions.read, manager, wall, time.monotonic)
    answers = StatisticsAnswers(revisions, found)
    stack.push_async_callback(answers.close)
    return answers


def _application(admin: Admin, page: MergedMetrics, workers: WorkerPool) -> web.Application:
    """Return the application for requests that gateway processes do not serve, but forward."""
    context, app = admin.context, web.Application()
    access = access_of(context.settings, context.store)
    boundary = ErrorBoundary(access)
    wall = time.time  # noqa: TID251 - the shell passes the clock in
    entry = Entry(access, context.store.catalog, context.tickets, wall)
    app.router.add_post(ENTER, entry.handle, expect_handler=continue_later)
    admin.add_routes(app, boundary)
    pages = StatePages(boundary, page, admin.reasons, lambda: not workers.is_stopping)
    pages.add_routes(app)
    return app


async def _open_private(settings: Settings, app: web.Application, stack: AsyncExitStack) -> None:
    """Serve `app` on a Unix socket that only this user can connect to."""
    runner = await open_runner(app, stack, auto_decompress=False)
    path = _socket_path(settings)
    # Only one server uses the data folder, so an existing socket is stale.
    path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(os.fspath(path))
    stack.callback(path.unlink, missing_ok=True)
    path.chmod(0o600)
    await web.SockSite(runner, sock, backlog=PROXIED_MAX).start()


def _welcome(settings: Settings, store: Store, port: Port, name: str) -> Welcome:
    return Welcome(
        name,
        replace(settings.gateway(), port=port.number),
        settings.log_format,
        os.fspath(_socket_path(settings)),
        keeps_buffers=not is_malloc_set(),
        cookie_secret=store.cookie_secret,
    )


def _socket_path(settings: Settings) -> Path:
    return run_dir(settings.data) / ADMIN_SOCKET
