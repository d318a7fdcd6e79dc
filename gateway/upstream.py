"""Connections to functions' servers, as the proxy uses them."""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, cast

from registry.exchange import ReplicaEndpoint

if TYPE_CHECKING:
    from gateway.server_sockets import ServerSockets

WRITE_BUFFER_MAX: Final = 64 * 1024
"""Bytes not yet accepted by the kernel above which the handler is told to pause."""
READ_SIZE: Final = 64 * 1024
ACKNOWLEDGED_MAX: Final = 8
"""Max parts of an incomplete answer that are acknowledged at once: the first ones, of which the
head, the beginning of the body and the first events are."""
LAST_MAX: Final = 4 * READ_SIZE
"""Max bytes that are read from a connection after a failed write."""


class HostLost(ConnectionError):
    """The connection to a server on another host has broken: what was sent may have arrived, and
    what the server has sent may be lost."""

    def __init__(self) -> None:
        super().__init__("the connection to the replica's host broke")


class UpstreamHandler(Protocol):
    """Receiver of one exchange's events. Methods are called in the event loop's thread."""

    def upstream_data(self, data: bytes) -> None:
        """Handle received bytes."""

    def upstream_eof(self) -> None:
        """Handle the end of the server's stream; this side can still be written."""

    def upstream_lost(self, error: Exception | None) -> None:
        """Handle the loss of the connection; `error` is None if it was closed in order."""

    def upstream_paused(self) -> None:
        """Stop writing: WRITE_BUFFER_MAX bytes wait for the kernel."""

    def upstream_resumed(self) -> None:
        """Write again."""


class UpstreamConnection(asyncio.Protocol):
    """One connection to a function's server, with one exchange at a time.

    `handler` receives the events of the exchange; the proxy sets it when it gets the connection.
    Without a handler the connection is idle. `is_reused`: an earlier exchange used this connection.
    `is_idle`: kept for the next exchange. `has_failed`: the server gave no whole answer
    in time.
    `known_id`, `opened_s`, `idle_since_s` and `is_told` belong to `gateway.dispatch.keeping`.
    """

    def __init__(self, owner: ServerSockets, id: int) -> None:
        """Create the protocol. `id` is that of the exchange that requested the connection."""
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._is_aborted = False
        self._error: Exception | None = None
        self._is_paused = False
        self._has_ended = False
        self._was_silent = False
        self._has_spoken = self._has_hung_up = False
        self._set_option: Callable[[int, int, int], None] | None = None
        """The TCP socket's `setsockopt`, None for a Unix socket."""
        self._poll: select.poll | None = None
        """Used for every reuse: to make one takes longer than to poll."""
        self.id = id
        self.handler: UpstreamHandler | None = None
        self.is_reused = False
        self.is_idle = False
        self.known_id = id
        self.opened_s = self.idle_since_s = 0.0
        self.is_told = False
        self.has_failed = False
        self._acknowledged = 0
        self._step_max = 0
        self._unread = b""
        """Received bytes that the handler gets in later steps."""
        self._has_turn = False
        """Whether the next step is scheduled."""

    @property
    def endpoint(self) -> ReplicaEndpoint:
        """The replica."""
        return self._owner.endpoint

    @property
    def connected_s(self) -> float:
        """When the replica began to serve, as `ServerSockets.connected_s`."""
        return self._owner.connected_s

    @property
    def port(self) -> int:
        """TCP port of the server, 0 for a Unix socket."""
        peer = self._transport.get_extra_info("peername") if self._transport else None
        return int(peer[1]) if isinstance(peer, tuple) else 0

    @property
    def has_unread(self) -> bool:
        """Whether received bytes wait for a later step."""
        return bool(self._unread)

    @property
    def is_flushed(self) -> bool:
        """Whether the connection is open both ways and has no unsent bytes."""
        transport = self._transport
        if transport is None or self._has_ended or transport.is_closing():
            return False
        return not transport.get_write_buffer_size()

    @property
    def is_silent(self) -> bool:
        """Whether nothing of the server is unread: no byte, and not the end of its stream.

        A reused connection was examined when it was chosen.
        """
        if self._was_silent:
            return True
        if self._has_spoken or self._has_hung_up:
            return False
        if self._transport is None or self._transport.is_closing():
            return False
        poll = self._poll
        if poll is None:
            poll = select.poll()
            try:
                poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
            except (OSError, ValueError):
                return False
            self._poll = poll
        return not poll.poll(0)

    @property
    def has_only_ended(self) -> bool:
        """Whether the server has sent no byte on a connection that is not silent: it has ended."""
        if self._has_spoken:
            return False
        transport = self._transport
        if transport is None or transport.is_closing():
            return True
        descriptor = transport.get_extra_info("socket").fileno()
        try:
            with socket.socket(fileno=os.dup(descriptor)) as same:
                return not same.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write bytes; dropped silently if the connection is lost."""
        if self._transport is not None:
            self._transport.write(data)

    def write_eof(self) -> None:
        """End this side's stream after the bytes written so far."""
        if self._transport is not None and not self._transport.is_closing():
            self._has_ended = True
            self._transport.write_eof()

    def pause_reading(self) -> None:
        """Receive no more bytes until `resume_reading`."""
        if self._transport is not None and not self._is_paused:
            self._is_paused = True
            if not self._unread:
                self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Receive bytes again."""
        if self._transport is not None and self._is_paused:
            self._is_paused = False
            if self._unread:
                self._take_turn()
            else:
                self._transport.resume_reading()

    def read_in_steps(self, size: int, received: bytes = b"") -> None:
        """Hand on `received`, and what follows in this exchange, in parts of at most `size` bytes:
        one in each turn of the event loop, where the handler's work on them takes long."""
        self._step_max = size
        if received:
            self._unread_more(received)

    def abort(self, error: Exception | None = None) -> None:
        """Close the connection at once; unsent bytes are dropped. The handler gets `error`."""
        self._is_aborted = True
        self._error = error
        if self._transport is not None:
            self._transport.abort()

    def acknowledge(self) -> None:
        """Acknowledge what was received now, not with the next bytes that are sent.

        Many servers write head and body separately without TCP_NODELAY: the kernel then keeps the
        body back until the head is acknowledged, which may take 40 ms (RFC 1122 section 4.2.3.2).
        """
        set_option, transport = self._set_option, self._transport
        if set_option is None or transport is None or transport.is_closing():
            return
        try:
            set_option(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        except OSError:
            return  # the connection is lost, which asyncio reports

    def begin(self, id: int, *, is_reused: bool) -> None:
        """Begin exchange `id`."""
        self.id = id
        self.is_idle = False
        self.is_reused = self._was_silent = is_reused
        self._acknowledged = self._step_max = 0

    def rest(self) -> None:
        """Become idle."""
        self.handler = None
        self.is_idle = True
        self._was_silent = False
        self.resume_reading()

    # asyncio callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio callback: the socket has a transport; `adopted` begins its use."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(WRITE_BUFFER_MAX)

    def adopted(self) -> None:
        """Begin to use the connection, unless its exchange has ended meanwhile."""
        if self._is_aborted:
            self.abort(self._error)
            return
        is_lost = self._transport is None
        sock = None if self._transport is None else self._transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            self._set_option = sock.setsockopt
        self._owner.on_connected(self)
        if is_lost and self.handler is not None:
            self.handler.upstream_lost(self._error)

    def data_received(self, data: bytes) -> None:
        """asyncio callback: bytes were received."""
        handler = self.handler
        if handler is None:
            self._has_spoken = True
            self._owner.on_idle_ended(self)
            return
        if self._step_max and (self._unread or len(data) > self._step_max):
            self._unread_more(data)
            return
        handler.upstream_data(data)
        if self._acknowledged < ACKNOWLEDGED_MAX and self.handler is handler:
            self._acknowledged += 1
            self.acknowledge()

    def eof_received(self) -> bool:
        """asyncio callback: the server has ended its stream."""
        self._has_ended = True
        if self.handler is None:
            self._has_hung_up = True
            self._owner.on_idle_ended(self)
            return False
        self.handler.upstream_eof()
        return True

    def pause_writing(self) -> None:
        """asyncio callback: the write buffer is full."""
        if self.handler is not None:
            self.handler.upstream_paused()

    def resume_writing(self) -> None:
        """asyncio callback: the write buffer has room."""
        if self.handler is not None:
            self.handler.upstream_resumed()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio callback: the socket is about to be closed."""
        if exc is not None and self.handler is not None and self._transport is not None:
            self._read_last(self._transport)
        self._transport = None
        self._hand_on_unread()
        if self.handler is None:
            self._error = self._error or exc
            self._owner.on_idle_ended(self)
        else:
            self.handler.upstream_lost(exc or self._error)

    def _unread_more(self, data: bytes) -> None:
        """Keep bytes for the next steps; no more are received before these are handed on."""
        if not self._unread and not self._is_paused and self._transport is not None:
            self._transport.pause_reading()
        self._unread += data
        self._take_turn()

    def _take_turn(self) -> None:
        """Schedule the next step."""
        if not self._has_turn:
            self._has_turn = True
            asyncio.get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        """Hand on the next part. Without a handler the exchange is over, and so is the connection:
        it was not clean."""
        self._has_turn = False
        if self._is_paused or not self._unread or self.handler is None:
            return
        self._hand_on(self.handler)
        if self._unread:
            self._take_turn()
        elif self._transport is not None and not self._is_paused:
            self._transport.resume_reading()

    def _hand_on_unread(self) -> None:
        """Hand on all that was received: the connection is lost."""
        while self._unread and self.handler is not None:
            self._hand_on(self.handler)

    def _hand_on(self, handler: UpstreamHandler) -> None:
        """Hand on the next part."""
        part, self._unread = self._unread[: self._step_max], self._unread[self._step_max :]
        handler.upstream_data(part)

    def _read_last(self, transport: asyncio.Transport) -> None:
        """Read what arrived before a failed write.

        A server that answers early and closes resets the connection when more of the request
        arrives; its answer may be unread then, and asyncio reads no more after a failed write.
        """
        descriptor, left = transport.get_extra_info("socket").fileno(), LAST_MAX
        while left > 0 and self.handler is not None:
            try:
                data = os.read(descriptor, READ_SIZE)
            except OSError:
                return
            if not data:
                return
            left -= len(data)
            self.data_received(data)
