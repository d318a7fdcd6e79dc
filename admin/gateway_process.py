"""The parts of a gateway process, be it the whole server or one of several workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from typing import Any, Literal, NamedTuple

from aiohttp import web

from admin.telemetry.logs import access_writer
from admin.telemetry.tracing import open_tracer
from gateway.access import Access
from gateway.delivery import Delivery
from gateway.dispatch.dispatcher import Limits
from gateway.http.app import Gateway, Site
from gateway.http.context import assemble
from gateway.metrics.counters import CounterStore
from gateway.metrics.requests import OnColdStart
from gateway.ports import CallHistory, Pools
from gateway.settings import GatewaySettings
from registry.catalog import Catalog
from registry.tasks import Tasks, every

RootTask = tuple[str, float, Callable[[], Any]]
"""A task that runs as long as its server: its name, its period in seconds, what it calls."""


class Process(NamedTuple):
    """How a gateway process is set up. `name` tells it from the others of its server; `is_shared`:
    others write to the same access log."""

    name: str
    settings: GatewaySettings
    log_format: Literal["human", "json"]
    is_shared: bool


def make_delivery(
    process: Process, pools: Pools, history: CallHistory, counters: CounterStore | None = None
) -> Delivery:
    """The delivery of requests to replicas, not opened yet. `counters` has what it counts."""
    limits = Limits(process.settings.held_bytes_max, process.settings.retries)
    return Delivery(limits, process.name, pools, history, counters)


def make_gateway(  # noqa: PLR0913 - the collaborators of one gateway process
    process: Process,
    access: Access,
    catalog: Catalog,
    delivery: Delivery,
    history: CallHistory,
    counters: CounterStore | None = None,
    on_cold_start: OnColdStart | None = None,
) -> Gateway:
    """The gateway over `delivery`, with its access log and traces. To be called in the loop.

    `counters` and `on_cold_start` as `assemble` has them. Raises BadRequest where traces are wanted
    and cannot be sent.
    """
    settings = process.settings
    write = access_writer(process.log_format, is_shared=process.is_shared)
    invoker = assemble(
        settings,
        access,
        catalog,
        delivery,
        history,
        time.time,  # noqa: TID251 - the shell passes the clock in
        write if settings.access_log else None,
        counters,
        open_tracer(settings, process.name),
        on_cold_start,
    )
    return Gateway(invoker)


async def open_runner(app: web.Application, stack: AsyncExitStack, **options: Any) -> web.AppRunner:
    """A runner of `app`, set up, with aiohttp's further `options`; `stack` cleans it up."""
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, **options)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    return runner


async def open_site(gateway: Gateway, app: web.Application, stack: AsyncExitStack) -> Site:
    """The site of a gateway whose other routes are those of `app`. It does not listen yet; `stack`
    closes it."""
    app.on_cleanup.append(gateway.close)
    runner = await open_runner(app, stack)
    site = Site(gateway.invoker, gateway.writer, runner)
    stack.push_async_callback(site.close)
    return site


def start_root_tasks(tasks: Tasks, listed: Iterable[RootTask]) -> None:
    """Start every periodic task of a process. `tasks` owns them: it has their names and, of one
    that ended by itself, the reason."""
    for name, period_s, action in listed:
        tasks.root(name, every(period_s, action))
