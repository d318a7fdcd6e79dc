"""Relays bytes between gateways on other machines and the server.

A gateway opens one more connection to the data listener for each exchange, and begins it with
CONNECT. It is paired with the connection to the server that OPEN of the same id has made; from then
on bytes are relayed in both directions. Each direction holds at most BUFFER bytes and reads no more
before they are written, so a slow reader slows the sender. The end of a stream is passed on as the
end of that direction only.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import selectors
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from runtime_image.contract.link import CHANNEL_KEY_SIZE
from runtime_image.contract.server import FREE_MAX
from runtime_image.replica.loop import Loop
from runtime_image.server.connecting import shut
from runtime_image.server.slots import CONNECT_S, Key

BUFFER: Final = 256 * 1024
"""Max bytes of a direction that are read and not yet written."""
ACKNOWLEDGED_MAX: Final = 4096
"""Bytes of a read up to which the server's bytes are acknowledged at once."""

_scratch = memoryview(bytearray(BUFFER))
"""All sockets are read by one thread, and what cannot be written at once is copied."""


@dataclass(slots=True, eq=False)
class _Direction:
    """One direction: `pending` are bytes read from `source` and not yet accepted by `target`."""

    source: socket.socket
    target: socket.socket
    pending: memoryview = field(default_factory=lambda: memoryview(b""))
    is_at_end: bool = False
    is_over: bool = False
    is_refused: bool = False
    """Whether `target` takes no more: what comes is read and dropped. TCP would lose what travels
    the other way if the connection were closed with unread bytes (RFC 1122 section 4.2.2.13)."""

    @property
    def reads(self) -> bool:
        """Whether more is to be read."""
        return not (self.is_at_end or self.is_over or self.pending)

    @property
    def writes(self) -> bool:
        """Whether bytes or the end are to be written. Over TLS the end takes room, too."""
        return bool(self.pending) or (self.is_at_end and not self.is_over)


class Splice:
    """Two connections whose bytes are relayed until both directions are over."""

    def __init__(
        self,
        loop: Loop,
        channel: socket.socket,
        server: socket.socket,
        guard: Callable[[], None] | None = None,
    ) -> None:
        """Owns both sockets, which are non-blocking. `guard` is called before bytes of the gateway
        are passed on, and may close this."""
        self._loop = loop
        self._guard = guard
        self.server = server
        self._request = _Direction(channel, server)
        self._response = _Direction(server, channel)
        self._events = {channel: 0, server: 0}
        self._is_over = False
        self._watch()

    def close(self) -> None:
        """Shut both connections down. What was read and not yet written is lost."""
        self._end()
        shut(self.server)

    def _end(self) -> None:
        """Relay nothing more. The server's descriptor stays open until `close`: `Progress` reads
        the kernel's counts of it until the exchange ends, which the gateway says on its link."""
        if self._is_over:
            return
        self._is_over = True
        for sock, events in self._events.items():
            self._loop.rewatch(sock, events, 0, self._channel_ready)
        shut(self._request.source)
        with contextlib.suppress(OSError):  # it was reset
            self.server.shutdown(socket.SHUT_RDWR)

    def _watch(self) -> None:
        channel, server = self._request.source, self._request.target
        for sock, read, write, ready in (
            (channel, self._request, self._response, self._channel_ready),
            (server, self._response, self._request, self._server_ready),
        ):
            wanted = selectors.EVENT_READ if read.reads else 0
            if write.writes:
                wanted |= selectors.EVENT_WRITE
            if wanted != self._events[sock]:
                self._loop.rewatch(sock, self._events[sock], wanted, ready)
                self._events[sock] = wanted

    def _channel_ready(self) -> None:
        self._turn(self._response, self._request)

    def _server_ready(self) -> None:
        self._turn(self._request, self._response)

    def _turn(self, writes: _Direction, reads: _Direction) -> None:
        """Handle an event of the socket that `writes` writes to and `reads` reads from."""
        if self._is_over:
            return
        if writes.writes:
            self._write(writes)
        if reads.reads and not self._is_over:
            self._read(reads)
        if self._request.is_over and self._response.is_over:
            self._end()
        if not self._is_over:
            self._watch()

    def _read(self, direction: _Direction) -> None:
        try:
            count = direction.source.recv_into(_scratch)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._end()  # it was reset: nothing more can be relayed in either direction
            return
        if self._guard is not None and direction is self._request:
            self._guard()
            if self._is_over:
                return
        if direction is self._response and 0 < count <= ACKNOWLEDGED_MAX:
            self._acknowledge()
        direction.is_at_end = not count
        direction.pending = _scratch[:count]
        self._write(direction)
        if direction.pending:
            direction.pending = memoryview(bytes(direction.pending))

    def _acknowledge(self) -> None:
        """Acknowledge what the server sent now. Many servers write head and body separately without
        TCP_NODELAY: their kernel then keeps the body back until the head is acknowledged, which may
        take 40 ms (RFC 1122 section 4.2.3.2)."""
        server = self._response.source
        if server.family != socket.AF_UNIX:
            with contextlib.suppress(OSError):
                server.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def _write(self, direction: _Direction) -> None:
        """Write as much as the target accepts, and the end of the stream after the last byte."""
        if direction.is_refused:
            self._drop(direction)
            return
        try:
            if direction.pending:
                direction.pending = direction.pending[direction.target.send(direction.pending) :]
            if direction.is_at_end and not direction.pending:
                direction.target.shutdown(socket.SHUT_WR)
                direction.is_over = True
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            if direction is self._response:
                self._end()  # the gateway is gone
                return
            # A server may answer and close before it has read everything.
            direction.is_refused = True
            self._drop(direction)

    @staticmethod
    def _drop(direction: _Direction) -> None:
        direction.pending = memoryview(b"")
        direction.is_over = direction.is_at_end


class Splicing:
    """`Passing` to a gateway on another machine: pairs its channels with connections to the
    server. `key` is what the gateway's channels must state."""

    def __init__(
        self,
        loop: Loop,
        link: int,
        limit: int,
        *,
        opened: Callable[[Key], None],
        passed: Callable[[Key], None],
        guard: Callable[[], None] | None,
    ) -> None:
        """`limit` is the number of slots; `guard` as in `Splice`. `opened(key)` is called for every
        connection to the server, before its channel has come."""
        self.key = os.urandom(CHANNEL_KEY_SIZE // 2).hex()
        self._loop = loop
        self._link = link
        self._channels_max = 2 * (limit + FREE_MAX)
        self._opened = opened
        self._passed = passed
        self._guard = guard
        self._channels: dict[int, tuple[socket.socket, float]] = {}
        """Channels that came before their connection to the server, and when."""
        self._servers: dict[Key, socket.socket] = {}
        self._splices: dict[Key, Splice] = {}

    def is_key(self, key: bytes) -> bool:
        """Whether a channel with this key belongs to this link."""
        return hmac.compare_digest(key, self.key.encode())

    def connect(self, id: int, channel: socket.socket) -> None:
        """Handle CONNECT: the channel of exchange `id`, now owned by this object."""
        key = Key(self._link, id)
        if key in self._servers:
            self._begin(key, channel, self._servers.pop(key))
        elif key in self._splices or len(self._channels) >= self._channels_max:
            channel.close()
        else:
            self._forget(id)
            self._channels[id] = channel, self._loop.clock()

    def put(self, key: Key, sock: socket.socket) -> None:
        """Passing: relay from now on, or once the channel has come."""
        self._opened(key)
        channel = self._channels.pop(key.id, None)
        if channel is None:
            self._servers[key] = sock
        else:
            self._begin(key, channel[0], sock)

    def _begin(self, key: Key, channel: socket.socket, server: socket.socket) -> None:
        self._splices[key] = Splice(self._loop, channel, server, self._guard)
        self._passed(key)

    def rename(self, old: Key, key: Key) -> None:
        """Passing: rename the pair."""
        self._splices[key] = self._splices.pop(old)

    def shut(self, key: Key) -> None:
        """Passing: shut both connections, or the one that is there."""
        self._forget(key.id)
        server = self._servers.pop(key, None)
        if server is not None:
            shut(server)
        splice = self._splices.pop(key, None)
        if splice is not None:
            splice.close()

    def socket(self, key: Key) -> socket.socket | None:
        """Passing: return the server's connection."""
        splice = self._splices.get(key)
        return splice.server if splice is not None else self._servers.get(key)

    def tick(self) -> None:
        """Passing: close channels whose exchange was not opened in time."""
        now = self._loop.clock()
        for id, (_, since_s) in list(self._channels.items()):
            if now - since_s >= CONNECT_S:
                self._forget(id)

    def close(self) -> None:
        """Passing: shut everything down."""
        ids = {key.id for key in (*self._servers, *self._splices)}
        for id in ids | self._channels.keys():
            self.shut(Key(self._link, id))

    def _forget(self, id: int) -> None:
        channel = self._channels.pop(id, None)
        if channel is not None:
            channel[0].close()
