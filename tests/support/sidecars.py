"""A scripted sidecar: a link's socket whose answers a test decides, with real side channels."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from gateway.server_links import NO_META, ExchangeCall
from gateway.upstream import UpstreamConnection
from registry.errors import FnError
from registry.exchange import ReplicaEndpoint
from runtime_image.contract.link import HEADER, SOCKET_NOTICE, VERSION, Kind
from runtime_image.link.frames import Frame, pack
from runtime_image.link.stream import FrameStream
from tests.support.peers import KEY


class Sidecar:
    """The other end of sidecar links. `frames`: frames received; `lost`: how links ended.

    `servers`: the server's ends of the connections that were granted, by id.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.frames: asyncio.Queue[Frame] = asyncio.Queue(100_000)
        self.lost: asyncio.Queue[str] = asyncio.Queue(100)
        self.servers: dict[int, socket.socket] = {}
        self.channels: list[socket.socket] = []
        self.linked: asyncio.Queue[None] = asyncio.Queue(100)
        self._streams: list[FrameStream] = []
        self._greets = True

    @asynccontextmanager
    async def listening(self, *, greets: bool = True) -> AsyncIterator[Sidecar]:
        """Accept links while the block runs; `greets`: answer HELLO."""
        self._greets = greets
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.setblocking(False)
        listener.bind(str(self.path))
        listener.listen(16)
        accepting = asyncio.ensure_future(self._accept(listener))
        try:
            yield self
        finally:
            accepting.cancel()
            with suppress(asyncio.CancelledError):
                await accepting
            listener.close()
            for stream in self._streams:
                stream.abort("the sidecar closes")
            for sock in [*self.channels, *self.servers.values()]:
                sock.close()
            await asyncio.sleep(0)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            sock, _ = await loop.sock_accept(listener)
            readable = asyncio.Event()
            loop.add_reader(sock, readable.set)
            try:
                await readable.wait()
            except asyncio.CancelledError:
                loop.remove_reader(sock)
                sock.close()
                raise
            loop.remove_reader(sock)
            await self._greet(sock)

    async def _greet(self, sock: socket.socket) -> None:
        """Receive HELLO with its descriptor, and answer it."""
        hello, descriptors, _, _ = socket.recv_fds(sock, 4096, 2)
        kind, version = HEADER.unpack_from(hello)[2], HEADER.unpack_from(hello)[5]
        assert (kind, version) == (Kind.HELLO, VERSION)
        self.channels.append(socket.socket(fileno=descriptors[0]))
        stream = FrameStream(self.frames.put_nowait, self.lost.put_nowait, "sidecar")
        self._streams.append(stream)
        await asyncio.get_running_loop().create_unix_connection(lambda: stream, sock=sock)
        self.linked.put_nowait(None)
        if self._greets:
            self.send(Kind.HELLO, aux=VERSION)

    async def next(self, kind: Kind) -> Frame:
        """Return the next frame; assert its kind."""
        frame = await asyncio.wait_for(self.frames.get(), 60)
        assert frame.kind is kind, frame
        return frame

    def send(self, kind: Kind, id: int = 0, **fields: Any) -> None:
        """Send a frame over the newest link."""
        self._streams[-1].send(pack(kind, id, **fields))

    def grant(self, id: int) -> socket.socket:
        """Pass a connected socket for exchange `id`; return the server's end of it."""
        server, passed = socket.socketpair()
        server.setblocking(False)
        self.pass_descriptors(id, [passed.fileno()])
        passed.close()
        self.servers[id] = server
        return server

    def pass_descriptors(self, id: int, descriptors: list[int]) -> None:
        """Send a notice with any number of descriptors."""
        channel = self.channels[-1]
        channel.setblocking(False)
        socket.send_fds(channel, [SOCKET_NOTICE.pack(id)], descriptors)

    async def round_trip(self) -> None:
        """Wait until the gateway has handled all frames sent before."""
        self.send(Kind.WINDOW, aux=1)
        assert (await self.next(Kind.END)).id == 0

    def hang_up(self) -> None:
        """Close the newest link and its side channel, as the sidecar's death does."""
        self._streams[-1].abort("hung up")
        self.channels.pop().close()

    def endpoint(self, **changes: Any) -> ReplicaEndpoint:
        """Return the manager's endpoint record of this replica."""
        fields: dict[str, Any] = {
            "id": self.path.stem,
            "path": str(self.path),
            "limit": 2,
            "marks_started": True,
            "devices": ("cpu:0",),
            "phases": {"load": 5.0},
            "is_server": True,
        }
        return ReplicaEndpoint(**{**fields, **changes})


class Proxy:
    """Caller of exchanges that records what happens, in order.

    `opened`: connections that were handed over; `errors`: errors of exchanges.
    """

    def __init__(self) -> None:
        self.opened: asyncio.Queue[UpstreamConnection] = asyncio.Queue(1000)
        self.errors: asyncio.Queue[FnError] = asyncio.Queue(1000)
        self.received: asyncio.Queue[bytes] = asyncio.Queue(1000)
        self.lost: asyncio.Queue[Exception | None] = asyncio.Queue(1000)
        self.events: list[str] = []
        self.calls: list[ExchangeCall] = []

    def call(self, **changes: Any) -> ExchangeCall:
        """Return an exchange with ample wait budget."""
        now = asyncio.get_running_loop().time()
        fields: dict[str, Any] = {
            "pool": KEY,
            "meta": NO_META,
            "body": b"",
            "arrived_s": now,
            "wait_until_s": now + 60,
            "timeout_s": 60.0,
        }
        return ExchangeCall(
            **{**fields, **changes}, opened=self._on_opened, done=self.errors.put_nowait
        )

    async def connection(self) -> UpstreamConnection:
        """Return the next connection that was handed over."""
        return await asyncio.wait_for(self.opened.get(), 60)

    def _on_opened(self, connection: UpstreamConnection) -> None:
        connection.handler = self
        self.opened.put_nowait(connection)

    def upstream_data(self, data: bytes) -> None:
        """Record received bytes."""
        self.received.put_nowait(data)

    def upstream_eof(self) -> None:
        """Record the end of the server's stream."""
        self.events.append("eof")
        self.received.put_nowait(b"")

    def upstream_lost(self, error: Exception | None) -> None:
        """Record the loss of a connection."""
        self.lost.put_nowait(error)

    def upstream_paused(self) -> None:
        """Record that writing must pause."""
        self.events.append("paused")

    def upstream_resumed(self) -> None:
        """Record that writing may go on."""
        self.events.append("resumed")
