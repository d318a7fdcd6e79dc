"""Parts of a gateway process, which is either the whole server or one of several workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from aiohttp import web

from admin.extras import grpc_refusal
from admin.telemetry.logs import access_writer
from admin.telemetry.tracing import check_traces, open_tracer
from gateway.admission.access import Access
from gateway.delivery import Delivery
from gateway.dispatch.dispatcher import Limits
from gateway.http.app import Gateway, Site, stop_serving
from gateway.http.context import Enter, assemble
from gateway.metrics.counters import CounterStore
from gateway.metrics.requests import OnColdStart
from gateway.ports import CallHistory, ModelControl, ModelStatistics, Pools
from gateway.settings import GatewaySettings
from registry.catalog import Catalog
from registry.errors import BadRequest
from registry.tasks import Tasks, every
from registry.upstream_keys import UpstreamKeys

if TYPE_CHECKING:
    from gateway.grpc.server import GrpcServer

RootTask = tuple[str, float, Callable[[], Any]]
"""Periodic task of a server: its name, its period in seconds, and the function that it calls."""


class Process(NamedTuple):
    """Configuration of a gateway process. `name` is unique within its server; `is_shared`: other
    processes write to the same access log."""

    name: str
    settings: GatewaySettings
    log_format: Literal["human", "json"]
    is_shared: bool


def make_delivery(
    process: Process, pools: Pools, history: CallHistory, counters: CounterStore | None = None
) -> Delivery:
    """Return the delivery of requests to replicas, not opened yet. `counters` stores its counts."""
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
    enter: Enter | None = None,
    upstream_keys: UpstreamKeys | None = None,
    revisions: CounterStore | None = None,
    statistics: ModelStatistics | None = None,
    model_control: ModelControl | None = None,
) -> Gateway:
    """Return the gateway over `delivery`, with its access log and traces. Call it in the loop.

    `counters` and all after it as in `assemble`. Raises BadRequest if traces are enabled and cannot
    be sent.
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
        enter,
        upstream_keys,
        revisions,
        statistics,
        model_control,
    )
    return Gateway(invoker)


async def open_runner(app: web.Application, stack: AsyncExitStack, **options: Any) -> web.AppRunner:
    """Return a set-up runner of `app` with aiohttp's further `options`; `stack` cleans it up."""
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, **options)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    return runner


async def open_site(gateway: Gateway, app: web.Application, stack: AsyncExitStack) -> Site:
    """Return the site of a gateway, not listening yet; `app` has its other routes. `stack` closes
    it."""
    app.on_cleanup.append(gateway.close)
    runner = await open_runner(app, stack)
    site = Site(gateway, runner)
    stack.push_async_callback(site.close)
    return site


def check_extras(settings: GatewaySettings) -> None:
    """Raise BadRequest if traces or gRPC are enabled and their packages are not installed, or do
    not fit each other."""
    check_traces(settings)
    if settings.grpc_port and (refusal := grpc_refusal()):
        raise BadRequest(f"FN_GRPC_PORT: {refusal}")


async def open_grpc(gateway: Gateway, *, is_shared: bool = False) -> GrpcServer | None:
    """Return the gRPC server of a gateway, which accepts connections; None if it is disabled.

    `is_shared`: other processes use its port. Raises OSError if the port is taken.
    """
    if not gateway.invoker.settings.grpc_port:
        return None
    # An optional extra whose import takes a tenth of a second.
    from gateway.grpc.server import GrpcServer

    server = GrpcServer(gateway.invoker, version("fngate"), is_shared=is_shared)
    await server.start()
    return server


async def start_serving(
    site: Site, gateway: Gateway, delivery: Delivery, stack: AsyncExitStack
) -> int:
    """Accept connections for HTTP and gRPC; return the port of HTTP.

    `stack` ends that, and finishes accepted requests. Raises OSError if a port is taken.
    """
    port = await site.start()
    grpc = await open_grpc(gateway)
    if grpc is not None:
        stack.push_async_callback(grpc.close)
    seconds = gateway.invoker.settings.shutdown_s
    stack.push_async_callback(stop_serving, gateway, delivery, seconds)
    stack.push_async_callback(site.stop)
    if grpc is not None:
        stack.push_async_callback(grpc.stop)
    return port


def start_root_tasks(tasks: Tasks, listed: Iterable[RootTask]) -> None:
    """Start the periodic tasks of a process. `tasks` owns them: it has their names and, for a task
    that failed, the reason."""
    for name, period_s, action in listed:
        tasks.root(name, every(period_s, action))
