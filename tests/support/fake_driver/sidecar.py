"""Data plane of a fake sidecar: real slots and sockets, and a scripted HTTP server behind them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import socket
from array import array
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from registry.tasks import Tasks
from runtime_image.contract.link import SOCKET_NOTICE, VERSION, Flag, Kind
from runtime_image.contract.server import ServerSpec
from runtime_image.link.frames import Frame, LinkError, pack
from runtime_image.link.socket_end import SocketEnd
from runtime_image.server import slots
from runtime_image.server.slots import Key, SlotTable

TICK_S: Final = 0.5
LINKS_MAX: Final = 64
STREAM: Final = "/stream"
"""Path whose answer begins at once and ends after the script's `run_s`; others come whole."""


@dataclass(slots=True, eq=False)
class _Link:
    end: SocketEnd
    side: socket.socket | None = None


class FakeSidecar:
    """Hands out connections to a server that answers each request after the script's `run_s`.

    The answer is JSON: method, path, bytes of the body, revision. `run` is awaited for each
    request. `first_run(us)` is called at the first connection, `not_idle(ms)` when a drain is
    refused or revoked. `drained` is set when the server may stop.
    """

    def __init__(
        self,
        listener: socket.socket,
        spec: ServerSpec,
        *,
        run: Callable[[], Awaitable[None]],
        first_run: Callable[[int], None],
        not_idle: Callable[[int], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.limit = spec.concurrency
        self.drained = asyncio.Event()
        self._listener = listener
        self._spec = spec
        self._run = run
        self._first_run: Callable[[int], None] | None = first_run
        self._not_idle = not_idle
        self._table = SlotTable(spec.concurrency, spec.max_s, self._loop.time())
        self._tasks = Tasks("fake server")
        self._numbers = itertools.count(1)
        self._links: dict[int, _Link] = {}
        self._sockets: dict[Key, socket.socket] = {}
        """Our duplicates of the connections that gateways have."""

    @property
    def busy_s(self) -> float:
        """Seconds with any exchange so far."""
        return self._table.busy_ms(self._loop.time()) / 1e3

    async def accept(self) -> None:
        """Accept links from gateways, for ever."""
        came = asyncio.Event()
        self._loop.add_reader(self._listener, came.set)
        try:
            while True:
                await came.wait()
                came.clear()
                with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
                    self._open_link(self._listener.accept()[0])
        finally:
            self._loop.remove_reader(self._listener)

    async def work(self) -> None:
        """Enforce the time limits of slots, for ever."""
        while True:
            await asyncio.sleep(TICK_S)
            self._perform(self._table.tick(self._loop.time()))

    def drain(self, if_idle_ms: int) -> None:
        """Handle DRAIN."""
        self._perform(self._table.drain(if_idle_ms, self._loop.time()))

    def quiesce(self) -> None:
        """Handle QUIESCE."""
        self._perform(self._table.quiesce(self._loop.time()))

    def resume(self) -> None:
        """Handle RESUME."""
        self._perform(self._table.resume(self._loop.time()))

    async def close(self) -> None:
        """Shut every connection and link down, and stop the server."""
        for key in list(self._sockets):
            self._shut(key)
        for link in list(self._links):
            self._close_link(link)
        await self._tasks.close()

    # Links

    def _open_link(self, sock: socket.socket) -> None:
        if len(self._links) >= LINKS_MAX:
            sock.close()
            return
        link = next(self._numbers)
        self._links[link] = _Link(SocketEnd(sock, takes_descriptor=True))
        self._loop.add_reader(sock, self._readable, link)

    def _readable(self, link: int) -> None:
        try:
            frames = self._links[link].end.receive()
            for frame in frames or ():
                self._handle(link, frame)
        except LinkError:
            frames = None
        if frames is None:
            self._lose(link)

    def _lose(self, link: int) -> None:
        if link in self._links:
            self._close_link(link)
            self._perform(self._table.link_lost(link, self._loop.time()))

    def _close_link(self, link: int) -> None:
        one = self._links.pop(link)
        self._loop.remove_reader(one.end.sock)
        one.end.close()
        if one.side is not None:
            one.side.close()

    def _handle(self, link: int, frame: Frame) -> None:
        now = self._loop.time()
        match frame.kind:
            case Kind.HELLO:
                self._hello(link, frame)
            case Kind.OPEN if frame.flags & Flag.REUSE:
                self._perform(self._table.reuse(link, frame.id, frame.aux, now))
            case Kind.OPEN:
                is_free = bool(frame.flags & Flag.FREE)
                self._perform(self._table.open(link, frame.id, now, is_free=is_free))
            case Kind.END:
                is_kept = bool(frame.flags & Flag.KEPT)
                self._perform(self._table.end(link, frame.id, now, is_kept=is_kept))
            case Kind.TUNNEL:
                is_quiet = bool(frame.flags & Flag.FREE)
                self._perform(self._table.tunnel(link, frame.id, now, is_quiet=is_quiet))
            case Kind.QUIESCED:
                self._perform(self._table.quiesced(link, frame.aux, now))
            case _:
                raise LinkError(f"unexpected {frame.kind.name} on a sidecar's data link")

    def _hello(self, link: int, frame: Frame) -> None:
        one = self._links[link]
        descriptor = one.end.take_descriptor()
        if descriptor is None or frame.aux != VERSION:
            if descriptor is not None:
                os.close(descriptor)
            raise LinkError("expected a HELLO of this version with a side channel")
        one.side = socket.socket(fileno=descriptor)
        one.side.setblocking(False)
        body = json.dumps({"revision": self._spec.revision, "limit": self.limit}).encode()
        self._send(link, Kind.HELLO, body=body, aux=VERSION)
        self._perform(self._table.join(link, self._loop.time()))

    def _send(self, link: int, kind: Kind, id: int = 0, *, aux: int = 0, body: bytes = b"") -> None:
        """Send a frame. Frames are few and small, so the socket buffer always has room."""
        if link in self._links:
            self._links[link].end.send(pack(kind, id, body=body, aux=aux))
            with contextlib.suppress(LinkError):  # `_readable` handles the end of the link
                self._links[link].end.flush()

    # Connections

    def _perform(self, commands: list[slots.Command]) -> None:
        for command in commands:
            match command:
                case slots.Connect(key):
                    self._connect(key)
                case slots.Rename(old, key):
                    self._sockets[key] = self._sockets.pop(old)
                case slots.Shut(key):
                    self._shut(key)
                case slots.Send(link, kind, id, aux):
                    self._send(link, kind, id, aux=aux)
                case slots.EndLink(link):
                    self._lose(link)
                case slots.NotIdle(idle_ms):
                    self._not_idle(idle_ms)
                case slots.Stop():
                    self.drained.set()

    def _connect(self, key: Key) -> None:
        ours, servers = socket.socketpair()
        self._sockets[key] = ours
        self._tasks.spawn("connection", self._serve(servers))
        side = self._links[key.link].side
        assert side is not None
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [ours.fileno()]))]
        try:
            side.sendmsg([SOCKET_NOTICE.pack(key.id)], rights)
        except OSError:
            # A gateway that does not read its side channel cannot be served.
            self._loop.call_soon(self._lose, key.link)
            return
        if self._first_run is not None:
            self._first_run(0)
            self._first_run = None
        self._perform(self._table.connected(key, self._loop.time()))

    def _shut(self, key: Key) -> None:
        sock = self._sockets.pop(key, None)
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    # The server

    async def _serve(self, sock: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=sock)
        try:
            while await self._answer(reader, writer):
                pass
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, ValueError):
            pass  # the connection was shut, or the request is malformed
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; return whether the connection stays open."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ", 2)
        fields = dict(map(_field, filter(None, head[1:])))
        length = int(fields.get("content-length", "0"))
        await reader.readexactly(length)
        about = {"method": method, "path": path, "body_bytes": length}
        body = json.dumps({**about, "revision": self._spec.revision}).encode()
        if path.partition("?")[0] == STREAM:
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegin\r\n")
            await writer.drain()
            await self._run()
            writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        else:
            await self._run()
            kind = b"Content-Type: application/json\r\n"
            size = b"Content-Length: %d\r\n\r\n" % len(body)
            writer.write(b"HTTP/1.1 200 OK\r\n" + kind + size + body)
        await writer.drain()
        return fields.get("connection", "").lower() != "close"


def _field(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.lower(), value.strip()
