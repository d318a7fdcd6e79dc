"""The listening socket: who reads what comes, and how that ends."""

from __future__ import annotations

import asyncio

from aiohttp import web

from gateway.answers.reply import Writer
from gateway.http.assembly import Invoker
from gateway.http.clients import connections_max
from gateway.http.fast.front import Front
from gateway.http.handler import Shared, make_clients
from gateway.http.invoke import calls_first
from gateway.settings import GatewaySettings
from registry.tasks import Tasks, every

BACKLOG = 1024
SWEEP_S = 1.0
EVENTS_FLUSH_S = 0.25
TRACES_FLUSH_S = 1.0
"""Longer than events wait: each batch is an HTTP request, as much work as 20 traces."""


class Site:
    """Listens, until `stop`; connections go on until `close`."""

    def __init__(self, invoker: Invoker, writer: Writer, runner: web.AppRunner) -> None:
        """`runner`'s server has been set up."""
        assert runner.server is not None
        self._settings: GatewaySettings = invoker.settings
        self._events = invoker.events
        self._tracer = invoker.tracer
        others = runner.server.request_handler
        runner.server.request_handler = calls_first(others, invoker, writer)
        seconds = self._settings.head_read_s
        self._handlers = Shared(runner.server, writer, invoker.reservations, seconds)
        self._front = Front(invoker, writer, self._handlers.adopt)
        self._tasks = Tasks("site")
        self._server: asyncio.Server | None = None

    async def start(self, *, reuse_port: bool = False) -> int:
        """Accept connections; the port. Raises OSError where it cannot be had."""
        factory = self._front if self._settings.fast_front else self._handlers
        most = connections_max(self._settings.connections)
        self._front.clients = make_clients(self._handlers, most, self._front.connections)
        self._server = await asyncio.get_running_loop().create_server(
            factory,
            self._settings.listen,
            self._settings.port,
            backlog=BACKLOG,
            reuse_port=reuse_port or None,
        )
        self._tasks.spawn("uploads", every(SWEEP_S, self._sweep))
        if self._events is not None:
            self._tasks.spawn("access log", every(EVENTS_FLUSH_S, self._events.flush))
        if self._tracer is not None:
            self._tasks.spawn("traces", every(TRACES_FLUSH_S, self._tracer.flush))
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def _sweep(self) -> None:
        self._front.sweep()
        self._handlers.sweep()

    async def stop(self) -> None:
        """Accept no more connections."""
        if self._server is not None:
            self._server.close()

    async def close(self) -> None:
        """Close the fast front's connections; aiohttp's runner closes its own."""
        await self._tasks.close()
        self._front.close()
        await self._front.wait_closed(self._settings.shutdown_s)
