"""Parts of a process with an HTTP server: the server's, and a gateway's of its own."""

from __future__ import annotations

import ctypes
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
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8
"""Parameter numbers of `mallopt` in glibc's malloc.h."""
MMAP_THRESHOLD = 32 * 2**20
TRIM_THRESHOLD = 128 * 2**20
"""Bytes. Buffers up to MMAP_THRESHOLD come from the heap. The heap shrinks only if more than
TRIM_THRESHOLD is free at its end."""
ARENAS_MAX = 2
"""Heaps of the process. gRPC frees what clients sent in any of its threads: with a heap for each,
every one of them would keep that much."""


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


def keep_large_buffers() -> bool:
    """Make the process keep freed body buffers; return whether the C library supports it (glibc).

    Otherwise each body's memory is requested from the kernel anew, which zeroes every page: half of
    the cost of a body of some MB.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    wanted = (
        (M_MMAP_THRESHOLD, MMAP_THRESHOLD),
        (M_TRIM_THRESHOLD, TRIM_THRESHOLD),
        (M_ARENA_MAX, ARENAS_MAX),
    )
    taken = [mallopt(*one) for one in wanted]
    return all(taken)
