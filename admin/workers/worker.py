"""A gateway in a process of its own: `python -m admin.workers DOOR COUNTERS REVISIONS`
(descriptors).

Started by the server only. Its whole configuration arrives over its streams, so its command line
and its environment hold no secrets.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import sys

import uvloop
from aiohttp import web

from admin.gateway_process import keep_large_buffers
from admin.telemetry import logs
from admin.workers.admin_proxy import AdminProxy
from admin.workers.messages import Welcome, decode_down
from admin.workers.node import GatewayNode, Place
from admin.workers.shared_counters import CounterWriter, open_writer
from admin.workers.stream import SocketStream, Stream
from gateway.http.bodies import continue_later
from gateway.http.boundary import ErrorBoundary
from gateway.http.page_route import guarded

PUBLIC = ("/openapi.json", "/docs")
"""Paths of the server that are the same for everybody: pages of other sites may link there."""


class SocketDoor:
    """The inherited socket pair, over which the server passes a descriptor for each stream
    (unix(7), SCM_RIGHTS). Its end reports the death of the server."""

    def __init__(self, sock: socket.socket) -> None:
        """`sock` belongs to the door."""
        sock.setblocking(False)
        self._sock = sock

    async def next(self) -> Stream | None:
        """Return the next stream; None once the server is gone."""
        while True:
            try:
                _, passed, _, _ = socket.recv_fds(self._sock, 1, 1, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                await self._readable()
            except OSError:
                return None
            else:
                if not passed:
                    return None
                return SocketStream(socket.socket(fileno=passed[0]), decode_down)

    async def _readable(self) -> None:
        loop, news = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._sock.fileno(), news.set)
        try:
            await news.wait()
        finally:
            loop.remove_reader(self._sock.fileno())


class ProxiedPlace(Place):
    """Requests that are not calls go to the server."""

    _proxy: AdminProxy

    def open(self, welcome: Welcome) -> None:
        """Implement `Place.open`."""
        self._proxy = AdminProxy(welcome.passing)
        self.enter = guarded(self._proxy.handle)

    def add_routes(self, app: web.Application, boundary: ErrorBoundary) -> None:
        """Implement `Place.add_routes`."""
        public = boundary.wrap(self._proxy.handle, is_linked=True)
        for path in PUBLIC:
            app.router.add_route("*", path, public, expect_handler=continue_later)
        handler = boundary.wrap(self._proxy.handle)
        app.router.add_route("*", "/{rest:(?s:.*)}", handler, expect_handler=continue_later)
        app.on_cleanup.append(self._proxy.close)


class OwnProcess(ProxiedPlace):
    """A process of its own."""

    def open(self, welcome: Welcome) -> None:
        """Implement `Place.open`."""
        logs.set_up(welcome.log_format)
        if welcome.keeps_buffers:
            keep_large_buffers()
        super().open(welcome)

    def on_ready(self) -> None:
        """Implement `Place.on_ready`."""
        # Objects of the start live for ever: exclude them from later collections.
        gc.collect()
        gc.freeze()
        gc.enable()

    def tasks(self) -> int:
        """Implement `Place.tasks`."""
        return len(asyncio.all_tasks())


def main() -> int:
    """Run the process. It ignores Ctrl-C in a terminal, as the server stops it. The server started
    it with SIGINT blocked, so that no SIGINT arrives too early."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    door, counters, numbers = (int(text) for text in sys.argv[1:])
    cells, revisions = open_writer(counters), open_writer(numbers)
    uvloop.run(run(socket.socket(fileno=door), cells, revisions, OwnProcess()))
    return 0


async def run(
    door: socket.socket, counters: CounterWriter, revisions: CounterWriter, place: Place
) -> None:
    """Serve until the end, or until a signal says so. `door` is this process's end of the pair."""
    with door:
        node = GatewayNode(SocketDoor(door).next, counters, revisions, place)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, node.end)
        try:
            await node.run()
        finally:
            loop.remove_signal_handler(signal.SIGTERM)
