"""Streams of messages between a server and one gateway: over a socket pair, or over memory.

On a socket each message is its length (u32, little-endian), then that many bytes. No other process
has either end of the pair, so the end of the stream shows at once that the other process has
exited. In memory the other end gets the messages themselves, which nobody changes.
"""

from __future__ import annotations

import asyncio
import socket
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Any, Final, cast

import structlog

from admin.workers.messages import Message, encode
from runtime_image.link.stream import adopt

log = structlog.get_logger()

MESSAGE_MAX: Final = 64 * 2**20
"""Max bytes of one message."""
BEHIND_MAX: Final = 256 * 2**20
"""Max bytes that the peer may leave unread; at a start they include all deployed functions."""
QUEUED_MAX: Final = 100_000
"""Max messages that the peer in the same process may leave unread: it is not opened yet."""
CLOSED: Final = "closed by the other side"
_LENGTH: Final = Struct("<I")

OnMessage = Callable[[Any], None]
OnLost = Callable[[str], None]


class Stream(ABC):
    """One end of a stream. It is opened once, and is of no use after its end.

    A message that raises in the receiver aborts the stream, as the two ends' states would differ.
    """

    def __init__(self) -> None:
        self._on_message: OnMessage | None = None
        self._on_lost: OnLost = lambda _reason: None
        self._reason = CLOSED

    async def open(self, on_message: OnMessage, on_lost: OnLost) -> None:
        """Receive messages in order, and once the reason of the end. Messages may arrive before
        this returns."""
        self._on_message, self._on_lost = on_message, on_lost
        await self._begin()

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """True while messages can be sent."""

    @abstractmethod
    def send(self, message: Message) -> None:
        """Send a message. It is dropped if the stream is lost, which `on_lost` reports."""

    @abstractmethod
    def abort(self, reason: str) -> None:
        """End the stream at once; `on_lost` follows with this reason."""

    @abstractmethod
    def close(self) -> None:
        """End the stream after all sent messages."""

    @abstractmethod
    async def _begin(self) -> None:
        """Begin to receive."""

    def _take(self, message: Message) -> None:
        """Pass a message on."""
        assert self._on_message is not None
        try:
            self._on_message(message)
        except Exception as error:  # the two ends' states may differ now
            log.exception("a message could not be taken")
            self.abort(f"{type(error).__name__}: {error}")


class SocketStream(Stream, asyncio.Protocol):
    """Stream over one end of a socket pair, which it owns."""

    def __init__(
        self,
        sock: socket.socket,
        decode: Callable[[bytes], Message],
        *,
        message_max: int = MESSAGE_MAX,
        behind_max: int = BEHIND_MAX,
    ) -> None:
        """`decode` reads the other end's messages; it raises for anything else."""
        super().__init__()
        self._sock = sock
        self._decode = decode
        self._message_max = message_max
        self._behind_max = behind_max
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()

    @property
    def is_open(self) -> bool:
        """Implement `Stream.is_open`."""
        return self._transport is not None

    def send(self, message: Message) -> None:
        """Implement `Stream.send`."""
        if self._transport is None:
            return
        data = encode(message)
        if len(data) > self._message_max:
            self.abort(f"a message of {len(data)} bytes is over the limit")
        elif self._transport.get_write_buffer_size() > self._behind_max:
            self.abort("the other side has fallen behind")
        else:
            self._transport.write(_LENGTH.pack(len(data)) + data)

    def abort(self, reason: str) -> None:
        """Implement `Stream.abort`."""
        self._reason = reason
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Implement `Stream.close`."""
        if self._transport is not None:
            self._transport.close()

    async def _begin(self) -> None:
        self._sock.setblocking(False)
        await adopt(self._sock, self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport (asyncio callback)."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Pass on the messages in the received bytes (asyncio callback)."""
        self._received += data
        try:
            for one in self._cut():
                if self._transport is None or self._transport.is_closing():
                    return  # a message before this one was refused
                self._take(self._decode(one))
        except Exception as error:  # whatever a decoder raises, what follows means nothing
            log.exception("a message could not be read")
            self.abort(f"{type(error).__name__}: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end of the stream (asyncio callback)."""
        if self._transport is None:
            return
        self._transport = None
        self._on_lost(str(exc) if exc else self._reason)

    def _cut(self) -> Iterator[bytes]:
        """Yield the complete messages received so far. Raises ValueError on one over the limit."""
        at = 0
        try:
            while len(self._received) - at >= _LENGTH.size:
                (size,) = _LENGTH.unpack_from(self._received, at)
                if size > self._message_max:
                    raise ValueError(f"a message of {size} bytes is over the limit")
                start, end = at + _LENGTH.size, at + _LENGTH.size + size
                if len(self._received) < end:
                    break
                at = end
                yield bytes(self._received[start:end])
        finally:
            del self._received[:at]


class MemoryStream(Stream):
    """Stream within one process, made by `memory_pair`.

    The other end receives a message before `send` returns, unless it is receiving another one: then
    after that one, as on a socket.
    """

    def __init__(self, copy: Callable[[Message], Message]) -> None:
        super().__init__()
        self._copy = copy
        self._peer: MemoryStream | None = None
        self._queue: deque[Message | None] = deque()
        """Messages to receive; None for the end."""
        self._is_receiving = False

    @property
    def is_open(self) -> bool:
        """Implement `Stream.is_open`."""
        return self._peer is not None

    def send(self, message: Message) -> None:
        """Implement `Stream.send`."""
        if self._peer is None:
            return
        if len(self._peer._queue) >= QUEUED_MAX:
            self.abort("the other side has fallen behind")
        else:
            self._peer._put(self._copy(message))

    def abort(self, reason: str) -> None:
        """Implement `Stream.abort`."""
        if self._peer is not None:
            self._peer._queue.clear()
            self._reason = reason
            self.close()

    def close(self) -> None:
        """Implement `Stream.close`."""
        if self._peer is not None:
            peer, self._peer = self._peer, None
            self._queue.clear()
            asyncio.get_running_loop().call_soon(self._on_lost, self._reason)
            peer._put(None)

    async def _begin(self) -> None:
        self._receive()

    def _put(self, message: Message | None) -> None:
        self._queue.append(message)
        self._receive()

    def _receive(self) -> None:
        if self._on_message is None or self._is_receiving:
            return
        self._is_receiving = True
        try:
            while self._queue:
                message = self._queue.popleft()
                if message is None:
                    self.close()
                else:
                    self._take(message)
        finally:
            self._is_receiving = False


def memory_pair(
    down: Callable[[Message], Message] = lambda message: message,
    up: Callable[[Message], Message] = lambda message: message,
) -> tuple[Stream, Stream]:
    """Return the server's and the gateway's end of a stream within this process. `down` and `up`
    return what the other end gets of a message."""
    server, gateway = MemoryStream(down), MemoryStream(up)
    server._peer, gateway._peer = gateway, server
    return server, gateway
