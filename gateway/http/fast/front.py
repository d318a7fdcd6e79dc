"""The fast way to invoke: plain requests are read here, every other is aiohttp's.

One connection has one owner at a time. While nothing but plain requests has come, that is a
`Connection`; at the first byte that is anything else it becomes aiohttp's, with all bytes that were
not answered, and stays that. Both share admission, dispatch, metrics and errors: `Invocation`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Final, cast

from gateway.answers.reply import Reply, Writer
from gateway.http.assembly import Invoker
from gateway.http.fast.hot import Heads
from gateway.http.fast.upload import Upload, exchange
from gateway.http.invocation import Invocation
from registry.errors import BodyTimeout, FnError
from runtime_image.contract.link import SLAB_BODY_MIN

QUIET_MAX: Final = 3630
"""Sweeps, and so seconds, without a byte before a connection is closed, as aiohttp does."""
READS_MAX: Final = 64
REST_MAX: Final = 1024 * 1024
"""Reads, and bytes, that came too early; from either on no more are read until the answer before
them is out."""
_END: Final = b"\r\n\r\n"


class Front:
    """All connections of one listening socket. `fallback` makes aiohttp's handler of one."""

    def __init__(
        self, invoker: Invoker, writer: Writer, fallback: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        self.invoker = invoker
        self.writer = writer
        self.fallback = fallback
        self.connections: set[Connection] = set()
        self.uploads: dict[Connection, float] = {}
        self.read = Heads().read
        self._left = asyncio.Event()

    def __call__(self) -> asyncio.Protocol:
        """A new connection's protocol."""
        return Connection(self)

    def sweep(self) -> None:
        """End uploads that take too long, and what is idle for an hour; to be called once a
        second."""
        now = monotonic()
        for connection in list(self.connections):
            connection.grow_old()
        for connection, due_s in list(self.uploads.items()):
            if now >= due_s:
                connection.expire()

    def close(self) -> None:
        """Close every connection; what is not answered by now is not answered any more."""
        for connection in list(self.connections):
            connection.close()

    async def wait_closed(self, seconds: float) -> None:
        """Return when all are closed. Clients have so long to take the answers that were given."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.connections:
                    self._left.clear()
                    await self._left.wait()
        for connection in list(self.connections):
            connection.abort()

    def left(self, connection: Connection) -> None:
        """A connection is gone, or somebody else's."""
        self.connections.discard(connection)
        self.uploads.pop(connection, None)
        self._left.set()


class Connection(asyncio.Protocol):
    """One client. Requests are answered one after the other."""

    __slots__ = (
        "_body",
        "_front",
        "_invocation",
        "_is_full",
        "_missing",
        "_quiet",
        "_rest",
        "_transport",
    )

    def __init__(self, front: Front) -> None:
        self._front = front
        self._transport: asyncio.Transport | None = None
        self._invocation: Invocation | None = None
        self._body = bytearray()
        self._missing = 0
        self._rest: list[bytes] = []
        self._is_full = False
        self._quiet = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's: a client came."""
        self._transport = cast("asyncio.Transport", transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._front.connections.add(self)

    def data_received(self, data: bytes) -> None:
        """asyncio's: bytes came."""
        self._quiet = 0
        if self._invocation is None and not self._rest:
            self._begin(data)
        elif self._missing:
            self._continue(data)
        else:
            self._hold(data)

    def pause_writing(self) -> None:
        """asyncio's: the client does not read its answers; no more requests are read meanwhile."""
        self._is_full = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """asyncio's: it reads again."""
        self._is_full = False
        if self._transport is not None and not self._rest:
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's signature
        """asyncio's: the client is gone."""
        self._forget()
        invocation, self._invocation = self._invocation, None
        if invocation is not None:
            invocation.leave()

    def expire(self) -> None:
        """The body has not come in time."""
        if self._invocation is not None:
            seconds = self._front.invoker.settings.body_read_s
            self._missing = 0
            if self._transport is not None:
                # Its place is given back: nothing may be received there any more.
                exchange(self._transport, self)
            self._invocation.fail(BodyTimeout(f"the body did not arrive within {seconds:g} s"))

    def grow_old(self) -> None:
        """A second has passed."""
        self._quiet += 1
        if self._quiet > QUIET_MAX and self._invocation is None:
            self.close()

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once, whatever its client has not taken yet."""
        if self._transport is not None:
            self._transport.abort()

    def _begin(self, data: bytes) -> None:
        """A request begins. Whatever speaks against it is aiohttp's to say: it has come so far
        that nothing was done for it yet."""
        end = data.find(_END) + 4
        hot = self._front.read(data[:end]) if end > 3 else None
        if hot is None:
            self._rest = [data]
            self._hand_over()
            return
        invocation = Invocation(self._front.invoker, hot.head, self._reply, hot.correlation)
        try:
            fits = hot.length <= invocation.admit(hot.key)
        except FnError:
            fits = False
        if not fits:
            invocation.withdraw()
            self._rest = [data]
            self._hand_over()
            return
        self._invocation = invocation
        left = end + hot.length - len(data)
        if left > 0 or (left == 0 and hot.length >= SLAB_BODY_MIN):
            self._receive(invocation, data[end:], left)
        elif left == 0:
            invocation.run(data[end:])
        else:
            self._hold(data[left:])
            invocation.run(data[end:left])

    def _receive(self, invocation: Invocation, begun: bytes, left: int) -> None:
        """The body is large, or not whole yet: the rest of a large one is received where it
        stays."""
        view = invocation.room(len(begun) + left)
        if view is not None:
            view[: len(begun)] = begun
        if not left:
            invocation.run(begun)
            return
        self._front.uploads[self] = monotonic() + self._front.invoker.settings.body_read_s
        if view is None or self._transport is None:
            self._body = bytearray(begun)
            self._missing = left
        else:
            exchange(
                self._transport, Upload(view[len(begun) :], self.received, self.connection_lost)
            )

    def received(self) -> None:
        """An `Upload` is whole."""
        transport, invocation = self._transport, self._invocation
        if transport is None or invocation is None:
            return
        exchange(transport, self)
        self._front.uploads.pop(self, None)
        invocation.run(b"")

    def _continue(self, data: bytes) -> None:
        """More of the body."""
        if len(data) > self._missing:
            self._hold(data[self._missing :])
            data = data[: self._missing]
        self._body += data
        self._missing -= len(data)
        if not self._missing and self._invocation is not None:
            del self._front.uploads[self]
            body, self._body = self._body, bytearray()
            self._invocation.run(body)

    def _hold(self, data: bytes) -> None:
        """The next request came before this one is answered: it waits, and is aiohttp's. Reading
        goes on for a while, because a client that leaves is noticed by it."""
        self._rest.append(data)
        is_much = len(self._rest) >= READS_MAX or sum(map(len, self._rest)) >= REST_MAX
        if is_much and self._transport is not None:
            self._transport.pause_reading()

    def _reply(self, reply: Reply) -> None:
        """Answer the request that goes on. Its client may have left in this turn."""
        self._invocation = None
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        for piece in self._front.writer.pieces(reply):
            transport.write(piece)
        if reply.closes:
            self._front.uploads.pop(self, None)
            transport.close()
        elif self._rest:
            # Not from in here: whoever answers may be in the middle of other answers.
            asyncio.get_running_loop().call_soon(self._hand_over)

    def _hand_over(self) -> None:
        """aiohttp goes on with this connection. It gets what is left as it came: of two requests
        in one read, of which the second is malformed, it answers only that one."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._forget()
        handler = cast("asyncio.Protocol", self._front.fallback())
        transport.set_protocol(handler)
        handler.connection_made(transport)
        if self._is_full:  # the transport tells nobody twice
            handler.pause_writing()
        transport.resume_reading()
        for data in self._rest:
            handler.data_received(data)

    def _forget(self) -> None:
        self._front.left(self)
        self._transport = None
