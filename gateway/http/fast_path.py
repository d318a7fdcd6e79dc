"""Fast path: reads plain `POST /fn` requests without aiohttp.

A connection has one owner at a time. As long as only plain requests arrive, the owner is a
`Connection`. At the first byte of anything else, aiohttp takes over all unanswered bytes and the
rest of the connection. Both use `Invocation`: admission, dispatch, metrics and errors are the same.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from time import monotonic
from typing import Final, cast

from gateway import problems
from gateway.http.bodies import BodyDiscarder, BodyReceiver, switch_protocol
from gateway.http.connections import ConnectionLimit, begin_answer, is_gone, peer_of
from gateway.http.context import Invoker
from gateway.http.exchange_client import ExchangeClient, ExchangeParts, is_for_server
from gateway.http.handler import AHEAD_MAX, READS_MAX, connection_refused
from gateway.http.invocation import Invocation
from gateway.http.plain_heads import PlainHead
from gateway.http.reservations import BodyReservation
from gateway.replies import CLOSE, Reply
from gateway.unsent import UnsentBuffer
from registry.errors import BodyEvicted, BodyTimeout, FnError
from runtime_image.contract.link import SLAB_BODY_MIN

QUIET_MAX: Final = 3630
"""Seconds without a byte after which a connection is closed, the same as aiohttp's."""
LINGER_S: Final = 2.0
"""Seconds for which the rest of a refused body is read, so that the client reads the answer."""
_END: Final = b"\r\n\r\n"


class State(Enum):
    """What a connection does."""

    NEW = auto()
    """Nothing was received yet."""
    IDLE = auto()
    """Every received request is answered, or its bytes wait for aiohttp."""
    UPLOADING = auto()
    """The body of a call arrives."""
    CALLING = auto()
    """A call runs or is held."""
    EXCHANGING = auto()
    """An `ExchangeClient` has the events."""
    DISCARDING = auto()
    """A refused body is read for a while, so that its client reads the answer."""


# Tuples: a member's hash is a Python method in 3.11, and each read asks for the state.
_RESTING: Final = (State.NEW, State.IDLE)
_ASKING: Final = (State.UPLOADING, State.CALLING)


class FastPath:
    """All fast-path connections of one listening socket."""

    def __init__(
        self,
        invoker: Invoker,
        parts: ExchangeParts,
        fallback: Callable[[], asyncio.BaseProtocol],
        limit: ConnectionLimit,
    ) -> None:
        """`fallback` creates aiohttp's handler; `limit` bounds the connections."""
        self.invoker = invoker
        self.writer = parts.writer
        self.fallback = fallback
        self.connections: set[Connection] = set()
        self.uploads: dict[Connection, float] = {}
        self.limit = limit
        self.parts = parts
        self._left = asyncio.Event()
        limit.track(self.connections)

    def __call__(self) -> asyncio.Protocol:
        """Return the protocol of a new connection."""
        return Connection(self)

    def sweep(self) -> None:
        """Close connections that exceed a time limit; to be called once a second.

        These are quiet connections, slow uploads, and half-closed connections whose client is gone.
        """
        now = monotonic()
        for connection in list(self.connections):
            connection.tick()
        for connection, due_s in list(self.uploads.items()):
            if now >= due_s:
                connection.expire()

    def close(self) -> None:
        """Close every connection. Requests in flight get no answer."""
        for connection in list(self.connections):
            connection.close()

    async def wait_closed(self, seconds: float) -> None:
        """Wait until all connections are closed: clients have `seconds` to read their answers."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.connections:
                    self._left.clear()
                    await self._left.wait()
        for connection in list(self.connections):
            connection.abort()

    def discard(self, connection: Connection) -> None:
        """Remove a connection that is closed or was handed over."""
        self.connections.discard(connection)
        self.uploads.pop(connection, None)
        self._left.set()


class Connection(asyncio.Protocol):
    """One client connection; its requests are answered one after the other."""

    __slots__ = (
        "_ahead",
        "_body",
        "_exchange",
        "_fast_path",
        "_invocation",
        "_is_ended",
        "_is_full",
        "_is_last",
        "_missing",
        "_state",
        "_transport",
        "_unparsed",
        "_unsent",
        "opened_s",
        "peer",
        "quiet_s",
    )

    def __init__(self, fast_path: FastPath) -> None:
        self._fast_path = fast_path
        self._transport: asyncio.Transport | None = None
        self._invocation: Invocation | None = None
        self._exchange: ExchangeClient | None = None
        self._body = bytearray()
        self._missing = 0
        self._unparsed: list[bytes] = []
        self._ahead: BodyReservation | None = None
        self._unsent = UnsentBuffer(fast_path.invoker.body_budget.answers)
        self._state = State.NEW
        self._is_full = self._is_last = self._is_ended = False
        self.peer = b""
        self.quiet_s = 0
        self.opened_s = monotonic()

    @property
    def is_idle(self) -> bool:
        """Whether every received request is answered, and the client takes the answers."""
        return self._state in _RESTING and not self._is_full and not self._unparsed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept or refuse a new connection (asyncio)."""
        self._transport = cast("asyncio.Transport", transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.peer = peer_of(transport)
        fast_path = self._fast_path
        self._unsent.watch(self._transport)
        fast_path.connections.add(self)
        if not fast_path.limit.admit(self):
            for piece in fast_path.writer.pieces(problems.reply(connection_refused())):
                self._transport.write(piece)
            self.close()

    def data_received(self, data: bytes) -> None:
        """Process received bytes (asyncio)."""
        self.quiet_s = 0
        if self._exchange is not None:
            self._exchange.data_received(data)
        elif self._state in _RESTING and not self._unparsed:
            self._begin_request(data)
        elif self._state is State.UPLOADING:
            self._continue_body(data)
        else:
            self._read_ahead(data)

    def pause_writing(self) -> None:
        """Stop reading requests: the client has not taken all of its answers (asyncio)."""
        self._is_full = True
        self._unsent.pause(may_pause=self._exchange is not None)
        if self._exchange is not None:
            self._exchange.pause_writing()
        elif self._transport is not None and self._state is not State.DISCARDING:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Write more of the answer, or continue reading: the client has taken all so far
        (asyncio)."""
        if self._unsent.rest:
            is_full = self._unsent.write_more()
            if not self._unsent.rest:
                self._end_reply()
            if is_full:
                return
        self._is_full = False
        self._unsent.close()
        if self._exchange is not None:
            self._exchange.resume_writing()
        elif self._transport is not None and not self._unparsed:
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        """Handle the client's end of sending; return whether an answer is pending (asyncio)."""
        if self._exchange is not None:
            return self._exchange.eof_received()
        begun = self._transport
        is_owed = self._state in _ASKING or bool(self._unparsed or self._unsent.rest)
        if begun is None or not is_owed or self._state is State.UPLOADING:
            return False
        if not self._unsent.rest and (begun := begin_answer(begun)) is None:
            return False
        self._transport = begun
        self._unsent.watch(begun)
        self._is_ended = True
        return True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's signature
        """Cancel the request in flight: the client has disconnected (asyncio)."""
        exchange, self._exchange, self._state = self._exchange, None, State.IDLE
        if exchange is not None:
            exchange.connection_lost()
        self._detach()
        invocation, self._invocation = self._invocation, None
        if invocation is not None:
            invocation.cancel()

    def expire(self) -> None:
        """Refuse a body that did not arrive in time."""
        if self._state is State.DISCARDING:
            self.close()
            return
        seconds = self._fast_path.invoker.settings.body_read_s
        self._refuse(BodyTimeout(f"the body did not arrive within {seconds:g} s"))

    def tick(self) -> None:
        """Count one second; close the connection if it has been quiet for too long, or nothing is
        read from it and its client does not read either."""
        self.quiet_s += 1
        head_read_s = self._fast_path.invoker.settings.head_read_s
        if self._exchange is not None:
            self._exchange.count_second(head_read_s)
            return
        quiet_max = head_read_s if self._state is State.NEW else QUIET_MAX
        is_quiet = self.quiet_s > quiet_max and self._state not in _ASKING
        transport = self._transport
        is_deaf = transport is not None and (self._is_ended or not transport.is_reading())
        if is_quiet or (transport is not None and is_deaf and is_gone(transport)):
            self.abort()

    def close(self) -> None:
        """Close the connection, after its answer."""
        self._is_last = True
        if self._transport is not None and not self._unsent.rest:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once, discarding unsent answers."""
        if self._transport is not None:
            self._transport.abort()

    def _begin_request(self, data: bytes) -> None:
        """Parse the first bytes of a request.

        If the request is not plain or is refused, aiohttp parses it again and answers: no work has
        been done for it yet.
        """
        self._state = State.IDLE
        end = data.find(_END) + 4
        found = self._fast_path.parts.heads.find(self.peer, data[:end]) if end > 3 else None
        if found is None or self._transport is None:
            self._begin_other(data)
            return
        if not isinstance(found, PlainHead):
            self._exchange_client(self._transport).begin_known(found, data[end:])
            return
        head, length, key, correlation = found
        invocation = Invocation(self._fast_path.invoker, head, self._reply, correlation)
        try:
            fits = length <= invocation.admit(key)
        except FnError:
            fits = False
        if not fits:
            invocation.release()
            self._begin_other(data)
            return
        self._invocation, self._state = invocation, State.CALLING
        discard = end + length - len(data)
        if discard > 0 or (discard == 0 and length >= SLAB_BODY_MIN):
            self._receive(invocation, data[end:], discard)
        elif discard == 0:
            invocation.run(data[end:])
        else:
            self._read_ahead(data[discard:])
            invocation.run(data[end:discard])

    def _begin_other(self, data: bytes) -> None:
        """Begin a request that is not plain: an exchange, or one that aiohttp reads."""
        transport = self._transport
        if transport is None or not is_for_server(data, self._fast_path.parts.exchanges):
            self._unparsed = [data]
            self._hand_over()
            return
        self._exchange_client(transport).data_received(data)

    def _exchange_client(self, transport: asyncio.Transport) -> ExchangeClient:
        """Return the client side of a new exchange, which gets the connection's events."""
        self._state = State.EXCHANGING
        client = self._exchange = ExchangeClient(self._fast_path.parts, self, transport)
        if self._is_full:
            client.pause_writing()
        return client

    def take_back(self, ahead: bytes, *, is_paused: bool) -> None:
        """Read the next request: an exchange is over.

        `ahead` are its first bytes; `is_paused`: the exchange has paused reading.
        """
        transport = self._transport
        self._exchange, self._state = None, State.IDLE
        if transport is None:
            return
        self.quiet_s = 0
        if self._is_full:
            transport.pause_reading()
        elif is_paused:
            transport.resume_reading()
        if ahead:
            self._read_ahead(ahead)
            # In a later loop iteration: pipelined requests must not nest.
            asyncio.get_running_loop().call_soon(self._parse_ahead)

    def _parse_ahead(self) -> None:
        """Parse what was read ahead of the end of an exchange."""
        if self._transport is None or self._transport.is_closing() or not self._unparsed:
            return
        data = b"".join(self._unparsed)
        self._unparsed = []
        if self._ahead is not None:
            self._ahead.release()
            self._ahead = None
        if not self._is_full:
            self._transport.resume_reading()
        self._begin_request(data)

    def discard_rest(self) -> None:
        """Discard what the client of an exchange still sends, for at most LINGER_S, and close."""
        self._exchange = None  # it is over, and has no time limits any more
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._state = State.DISCARDING
        self._fast_path.uploads[self] = monotonic() + LINGER_S
        switch_protocol(transport, BodyDiscarder(self))
        if transport.can_write_eof():
            # The end of an answer without a length. A client that has closed has just reset it,
            # which must not become an error of another one, whose request evicts this.
            with suppress(OSError):
                transport.write_eof()

    def _receive(self, invocation: Invocation, begun: bytes, discard: int) -> None:
        """Receive a body that is large or incomplete; into shared memory if it is large."""
        view = invocation.buffer(len(begun) + discard)
        if view is not None:
            view[: len(begun)] = begun
        if not discard:
            invocation.run(begun)
            return
        self._fast_path.uploads[self] = monotonic() + self._fast_path.invoker.settings.body_read_s
        self._missing, self._state = discard, State.UPLOADING
        if not self._count(len(begun)):
            return
        if view is None or self._transport is None:
            self._body = bytearray(begun)
        else:
            rest = view[len(begun) :]
            upload = BodyReceiver(
                rest, self.on_received, self.on_body_complete, self.connection_lost
            )
            switch_protocol(self._transport, upload)

    def on_received(self, count: int) -> None:
        """Count `count` bytes that the `BodyReceiver` has received."""
        self.quiet_s = 0
        self._count(count)

    def _count(self, count: int) -> bool:
        """Count bytes of an incomplete body; False if there is no memory for them."""
        if self._invocation is None:
            return False
        try:
            self._invocation.count(count, self._refuse)
        except BodyEvicted as error:
            self._refuse(error)
            return False
        return True

    def _refuse(self, error: FnError) -> None:
        """Refuse an incomplete body: answer, then discard the rest for at most LINGER_S."""
        invocation, transport = self._invocation, self._transport
        if invocation is None or transport is None:
            return
        self._missing = 0
        self._body = bytearray()
        self._state = State.DISCARDING
        self._fast_path.uploads[self] = monotonic() + LINGER_S
        # The memory that it was received in is released: the socket must not write to it any more.
        switch_protocol(transport, BodyDiscarder(self))
        invocation.fail(error)

    def on_body_complete(self) -> None:
        """Run the call: the `BodyReceiver` has received the complete body."""
        transport, invocation = self._transport, self._invocation
        if transport is None or invocation is None:
            return
        switch_protocol(transport, self)
        if self._is_full and not transport.get_write_buffer_size():
            self.resume_writing()  # the `BodyReceiver` was told of it
        self._missing, self._state = 0, State.CALLING
        self._fast_path.uploads.pop(self, None)
        invocation.run(b"")

    def _continue_body(self, data: bytes) -> None:
        """Process more bytes of the body."""
        if len(data) > self._missing:
            self._read_ahead(data[self._missing :])
            data = data[: self._missing]
        if len(data) < self._missing and not self._count(len(data)):
            return
        self._body += data
        self._missing -= len(data)
        if not self._missing and self._invocation is not None:
            del self._fast_path.uploads[self]
            self._state = State.CALLING
            body, self._body = self._body, bytearray()
            self._invocation.run(body)

    def _read_ahead(self, data: bytes) -> None:
        """Keep bytes of the next request that arrived before this one is answered, for aiohttp.

        Reading continues up to a limit, because only a read detects that the client disconnects.
        """
        if self._is_last:
            return
        if self._ahead is None:
            self._ahead = self._fast_path.invoker.body_budget.open(self._drop_ahead)
        try:
            self._ahead.grow(len(data))
        except BodyEvicted as error:
            self._drop_ahead(error)
            return
        self._unparsed.append(data)
        is_much = len(self._unparsed) >= READS_MAX or self._ahead.bytes >= AHEAD_MAX
        if is_much and self._transport is not None:
            self._transport.pause_reading()

    def _drop_ahead(self, _error: FnError) -> None:
        """Drop what was read ahead, as its memory is needed; close after this answer."""
        self._unparsed.clear()
        self._is_last = True
        if self._invocation is None:
            self.close()

    def _reply(self, reply: Reply) -> None:
        """Answer the request in flight, unless its client disconnected in this loop iteration."""
        self._invocation = None
        if self._state is not State.DISCARDING:
            self._state = State.IDLE
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._is_last |= CLOSE in reply.headers
        self._unsent.write(self._fast_path.writer.pieces(reply))
        if not self._unsent.rest:
            self._end_reply()

    def _end_reply(self) -> None:
        """Close the connection or begin the next request: an answer is written."""
        if self._state is State.DISCARDING:
            return  # `expire` closes
        if self._unparsed and not self._is_last:
            # In a later loop iteration: the caller may be in the middle of other answers.
            asyncio.get_running_loop().call_soon(self._hand_over)
        elif self._is_last or self._is_ended:
            self.close()

    def _hand_over(self) -> None:
        """Make aiohttp the owner.

        It gets the unparsed bytes read by read: if one read contains two requests and the second
        one is malformed, aiohttp answers only the second.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._detach()
        handler = cast("asyncio.Protocol", self._fast_path.fallback())
        transport.set_protocol(handler)
        handler.connection_made(transport)
        if self._is_full:  # the transport calls pause_writing only once
            handler.pause_writing()
        if not self._is_ended:
            transport.resume_reading()
        for data in self._unparsed:
            handler.data_received(data)
        if self._is_ended and not handler.eof_received():
            transport.close()

    def _detach(self) -> None:
        self._fast_path.discard(self)
        if self._ahead is not None:
            self._ahead.release()
            self._ahead = None
        self._unsent.close()
        self._transport = None
