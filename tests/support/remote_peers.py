"""Stand-ins for other hosts: connections that dial Unix sockets of this machine and can break, and
replicas there whose frames a test decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gateway.delivery import Delivery
from gateway.dispatch.dispatcher import Limits
from gateway.hosts.connections import Connect
from gateway.hosts.ssh import serves
from hosts.errors import ConnectionLost
from registry.exchange import (
    Endpoints,
    HostRoute,
    PoolEndpoints,
    ReplicaEndpoint,
    SshRoute,
    encode,
)
from registry.tasks import Tasks
from runtime_image.contract.link import VERSION, Kind
from runtime_image.link.frames import Frame, pack
from runtime_image.link.stream import FrameStream
from tests.support.peers import ANSWER, KEY, KnownPast, ListeningManager

HOST = "gpu2"
GREETING = "7f" * 32
SIDECAR_KEY = "ab" * 16
WAY = SshRoute("nn@gpu2", epoch=1)


class _Breakable(asyncio.Protocol):
    """Protocol of one channel, whose end can be made that of a broken connection."""

    def __init__(self, protocol: asyncio.BaseProtocol, channels: set[_Breakable]) -> None:
        self._protocol: Any = protocol
        self._channels = channels
        self._error: Exception | None = None
        self._is_buffered = isinstance(protocol, asyncio.BufferedProtocol)
        self.transport: asyncio.Transport | None = None

    def break_off(self) -> None:
        """End the channel as a broken connection does."""
        self._error = ConnectionLost("the test breaks it")
        assert self.transport is not None
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._channels.add(self)
        self._protocol.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if not self._is_buffered:
            self._protocol.data_received(data)
            return
        view = memoryview(data)
        while view and not (self.transport is None or self.transport.is_closing()):
            buffer = self._protocol.get_buffer(len(view))
            count = min(len(buffer), len(view))
            buffer[:count] = view[:count]
            self._protocol.buffer_updated(count)
            view = view[count:]

    def eof_received(self) -> bool | None:
        return bool(self._protocol.eof_received())

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._channels.discard(self)
        self._protocol.connection_lost(self._error or exc)


class UnixHost:
    """One connection to a host that is this machine."""

    def __init__(self, name: str, way: HostRoute) -> None:
        self.name = name
        self.way = way
        self.rtt_s = 0.07
        self.is_open = self.is_closed = False
        self.dials = 0
        self.channels: set[_Breakable] = set()
        self._up = asyncio.Event()
        self._up.set()

    @property
    def is_up(self) -> bool:
        """Whether dials succeed."""
        return self._up.is_set()

    def open(self) -> None:
        """Note the call."""
        self.is_open = True

    def renew(self, way: HostRoute) -> bool:
        """Go on with a route as a connection over SSH does."""
        assert isinstance(self.way, SshRoute)
        return serves(self.way, way, is_up=self.is_up)

    async def close(self) -> None:
        """End all channels."""
        self.is_closed = True
        for channel in list(self.channels):
            channel.break_off()

    async def wait_up(self, timeout_s: float) -> None:
        """Return once `heal` was called."""
        try:
            await asyncio.wait_for(self._up.wait(), timeout_s)
        except TimeoutError:
            raise ConnectionError("down") from None

    async def dial(self, path: str, protocol: asyncio.BaseProtocol) -> asyncio.Transport:
        """Connect to a Unix socket of this machine."""
        if not self.is_up:
            raise ConnectionLost("down")
        self.dials += 1
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_unix_connection(
            lambda: _Breakable(protocol, self.channels), path
        )
        return transport

    def break_off(self) -> None:
        """Break the connection with all its channels; `heal` ends that."""
        self._up.clear()
        for channel in list(self.channels):
            channel.break_off()

    def heal(self) -> None:
        """Let dials succeed again."""
        self._up.set()


class UnixHosts:
    """`Connect` that makes `UnixHost`s. `made`: all of them, in order."""

    def __init__(self) -> None:
        self.made: list[UnixHost] = []

    def __call__(self, name: str, way: HostRoute, _tasks: Tasks) -> UnixHost:
        """Make a connection."""
        self.made.append(UnixHost(name, way))
        return self.made[-1]

    @property
    def calls(self) -> UnixHost:
        """The newest connection for small frames."""
        return next(each for each in reversed(self.made) if each.name.endswith("calls"))

    @property
    def bodies(self) -> UnixHost:
        """The newest connection for bodies."""
        return next(each for each in reversed(self.made) if each.name.endswith("bodies"))


class _Stream(FrameStream):
    """A stream that reports when it is connected."""

    on_connected: Callable[[], None]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.on_connected()


class Channel:
    """The replica's end of one channel. `frames`: frames received; `lost`: how it ended."""

    def __init__(self, on_connected: Callable[[Channel], None]) -> None:
        self.frames: asyncio.Queue[Frame] = asyncio.Queue(1000)
        self.lost: asyncio.Queue[str] = asyncio.Queue(10)
        self.stream = _Stream(self.frames.put_nowait, self.lost.put_nowait, "channel")
        self.stream.on_connected = lambda: on_connected(self)

    async def next(self, kind: Kind) -> Frame:
        """Return the next frame; assert its kind."""
        frame = await asyncio.wait_for(self.frames.get(), 60)
        assert frame.kind is kind, frame
        return frame

    def send(self, kind: Kind, id: int = 0, body: bytes = b"", **fields: Any) -> None:
        """Send a frame."""
        self.stream.send(pack(kind, id, body, **fields))

    def answer(self, id: int, body: bytes = b"{}") -> None:
        """Send a well-formed RESPONSE."""
        self.send(Kind.RESPONSE, id, body, meta=ANSWER)

    async def greet(self, body: bytes = b"", link: int = VERSION) -> None:
        """Receive HELLO of a link version and answer it."""
        assert (await self.next(Kind.HELLO)).aux == link
        self.send(Kind.HELLO, body=body, aux=link)


class RemotePeer:
    """A replica on another host. `channels`: its channels in order of arrival."""

    def __init__(self, path: Path, greeting: str = GREETING) -> None:
        self.path = path
        self.greeting = greeting
        self.channels: asyncio.Queue[Channel] = asyncio.Queue(100)
        self._streams: list[FrameStream] = []

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[RemotePeer]:
        """Accept channels, and greet on each, while the block runs."""
        server = await asyncio.get_running_loop().create_unix_server(self._accept, str(self.path))
        try:
            yield self
        finally:
            server.close()
            for stream in self._streams:
                stream.abort("the peer closes")
            await server.wait_closed()
            await asyncio.sleep(0)
            self.path.unlink(missing_ok=True)

    def _accept(self) -> FrameStream:
        channel = Channel(self._greet)
        self._streams.append(channel.stream)
        return channel.stream

    def _greet(self, channel: Channel) -> None:
        channel.send(Kind.WELCOME, body=self.greeting.encode())
        self.channels.put_nowait(channel)

    async def channel(self, *, greets: bool = True) -> Channel:
        """Return the next channel; `greets`: its HELLO is answered."""
        channel = await asyncio.wait_for(self.channels.get(), 60)
        if greets:
            await channel.greet()
        return channel

    async def pair(self) -> tuple[Channel, Channel]:
        """Return the channels for small frames and for bodies of a new link."""
        return await self.channel(), await self.channel()

    def endpoint(self, **changes: Any) -> ReplicaEndpoint:
        """Return the manager's endpoint record of this replica."""
        fields: dict[str, Any] = {
            "id": self.path.stem,
            "path": str(self.path),
            "limit": 4,
            "marks_started": True,
            "devices": ("gpu2/cuda:0",),
            "phases": {"load": 5.0},
            "host": HOST,
            "greeting": GREETING,
        }
        return ReplicaEndpoint(**{**fields, **changes})


@asynccontextmanager
async def delivering_afar(connect: Connect, **limits: Any) -> AsyncIterator[Delivery]:
    """Run a gateway's delivery with other hosts; it closes with the block."""
    delivery = Delivery(
        Limits(**limits), "worker", ListeningManager(), KnownPast(), connect=connect
    )
    delivery.open()
    try:
        yield delivery
        assert delivery.balance().missing == 0, "a call is nowhere, or in two places"
    finally:
        await delivery.close()
        await asyncio.sleep(0)


def published_afar(
    *replicas: ReplicaEndpoint, ways: Mapping[str, HostRoute] | None = None
) -> bytes:
    """Return the manager's Endpoints for one pool and its hosts."""
    hosts = {each.host: WAY for each in replicas if each.host} if ways is None else dict(ways)
    shown = PoolEndpoints(list(replicas), "warm" if replicas else "waking", "test")
    return encode(Endpoints(1, False, {KEY: shown}, hosts))


class RemoteSidecar(RemotePeer):
    """A sidecar on another host. `joined`: channels that began with CONNECT, by exchange."""

    async def link(self) -> Channel:
        """Return a new link, whose HELLO has brought the key."""
        link = await self.channel(greets=False)
        assert (await link.next(Kind.HELLO)).aux == VERSION
        link.send(Kind.HELLO, body=b'{"key": "%b"}' % SIDECAR_KEY.encode(), aux=VERSION)
        return link

    async def joined(self, id: int) -> RawChannel:
        """Return the channel of exchange `id`, which has begun with CONNECT; raw bytes follow."""
        channel = await asyncio.wait_for(self.channels.get(), 60)
        connect = await channel.next(Kind.CONNECT)
        assert (connect.id, bytes(connect.body)) == (id, SIDECAR_KEY.encode())
        return RawChannel(channel.stream)

    def endpoint(self, **changes: Any) -> ReplicaEndpoint:
        """Return the manager's endpoint record of this replica."""
        return super().endpoint(**{"is_server": True, "limit": 2, **changes})


class RawChannel(asyncio.Protocol):
    """A channel that carries the server's bytes. `received`: bytes of the gateway, b"" for EOF."""

    def __init__(self, stream: FrameStream) -> None:
        transport = stream._transport
        assert transport is not None
        self.transport = transport
        self.received: asyncio.Queue[bytes] = asyncio.Queue(100_000)
        transport.set_protocol(self)

    def data_received(self, data: bytes) -> None:
        self.received.put_nowait(data)

    def eof_received(self) -> bool:
        self.received.put_nowait(b"")
        return True

    async def end(self) -> None:
        """Wait until the gateway has ended its stream."""
        while await asyncio.wait_for(self.received.get(), 60):
            pass

    async def read(self, count: int) -> bytes:
        """Return exactly `count` bytes."""
        data = b""
        while len(data) < count:
            data += await asyncio.wait_for(self.received.get(), 60)
        return data
