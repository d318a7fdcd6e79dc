"""Parts of a process with an HTTP server: the server's, and a gateway's of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from aiohttp import web

from admin.extras import grpc_refusal
from admin.telemetry.tracing import check_traces
from gateway.http.app import Gateway, Site
from gateway.settings import GatewaySettings
from registry.errors import BadRequest
from registry.tasks import Tasks, every

if TYPE_CHECKING:
    from gateway.grpc.server import GrpcServer

RootTask = tuple[str, float, Callable[[], Any]]
"""Periodic task of a server: its name, its period in seconds, and the function that it calls."""


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


def start_root_tasks(tasks: Tasks, listed: Iterable[RootTask]) -> None:
    """Start the periodic tasks of a process. `tasks` owns them: it has their names and, for a task
    that failed, the reason."""
    for name, period_s, action in listed:
        tasks.root(name, every(period_s, action))
