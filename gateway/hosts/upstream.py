"""Connections to functions' servers on other hosts: channels that a sidecar joins to its server.

For each exchange that needs a new connection, two messages leave at the same time: OPEN on the
link, and a channel to the sidecar's socket. The sidecar answers OPEN on the link when it has
connected to the server. The channel begins with the greeting; CONNECT, with the id of the exchange
and the key of the link, joins it to that connection. So a connection costs one round trip.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from gateway.hosts.greeting import Connection, Greeting
from gateway.server_sockets import ServerSockets
from gateway.socket_channel import hello_member
from gateway.upstream import HostLost, UpstreamConnection
from runtime_image.contract.link import Kind
from runtime_image.link.frames import LinkError, pack

log = structlog.get_logger()

KEY_LENGTH: Final = 32
PORT_MAX: Final = 65535


class RemoteUpstream(UpstreamConnection):
    """One channel, which is a connection to the server from `is_ready` on."""

    def __init__(
        self,
        owner: ServerSockets,
        id: int,
        on_failed: Callable[[RemoteUpstream, str], None],
    ) -> None:
        """See `UpstreamConnection`. `on_failed(connection, reason)`: it did not become ready."""
        super().__init__(owner, id)
        self._on_failed = on_failed
        self._greeting = Greeting(owner.endpoint.greeting)
        self._connect = b""
        self._is_joined = self._is_opened = self._is_failed = False
        self._port = 0

    @property
    def is_ready(self) -> bool:
        """Whether CONNECT was sent and the sidecar has connected to the server."""
        return self._is_joined and self._is_opened

    @property
    def port(self) -> int:
        """TCP port of the server, 0 for a Unix socket."""
        return self._port

    @property
    def is_silent(self) -> bool:
        """Whether nothing of the server has arrived: no byte, and not the end of its stream."""
        if self._has_spoken or self._has_hung_up:
            return False
        return self._transport is not None and not self._transport.is_closing()

    @property
    def has_only_ended(self) -> bool:
        """Whether the server has sent no byte on a connection that is not silent."""
        return not self._has_spoken

    def acknowledge(self) -> None:
        """Do nothing: the sidecar acknowledges what it reads."""

    async def dial(self, dialer: Callable[[], Connection], path: str, key: str) -> None:
        """Open the channel; CONNECT follows the greeting. `dialer` as in `RemoteServerSockets`."""
        self._connect = b"".join(pack(Kind.CONNECT, self.known_id, key.encode()))
        try:
            await dialer().dial(path, self)
        except OSError as error:
            self._fail(str(error))
            return
        if self._is_aborted:
            self.abort(self._error)

    def opened(self, port: int) -> None:
        """Handle the sidecar's connection to the server, which listens on `port`."""
        self._port, self._is_opened = port, True
        if self.is_ready:
            self.adopted()

    # asyncio callbacks

    def data_received(self, data: bytes) -> None:
        """asyncio callback: bytes were received."""
        if self._is_joined:
            super().data_received(data)
            return
        try:
            rest = self._greeting.feed(data)
            if rest:
                raise LinkError("bytes after the greeting, before CONNECT")
        except LinkError as error:
            self._fail(str(error))
            return
        if self._greeting.is_complete and not self._is_failed:
            self.write(self._connect)
            self._is_joined = True
            if self.is_ready:
                self.adopted()

    def eof_received(self) -> bool:
        """asyncio callback: the server has ended its stream."""
        if self._is_joined:
            return super().eof_received()
        self._fail("the channel ended before the greeting")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio callback: the channel is closed."""
        if not self.is_ready:
            self._transport = None
            self._fail(str(exc or "the channel ended before the exchange"))
            return
        if exc is not None:
            self._error = HostLost()
        self._transport = None
        self._hand_on_unread()
        if self.handler is None:
            self._owner.on_idle_ended(self)
        else:
            self.handler.upstream_lost(self._error)

    def _fail(self, reason: str) -> None:
        if not self._is_failed:
            self._is_failed = True
            self.abort()
            self._on_failed(self, reason)


class RemoteServerSockets(ServerSockets):
    """The connections to one server on another host."""

    dialer: Callable[[], Connection]
    """Returns the connection to the host; set before the first request. Raises OSError."""
    is_broken = False
    """Whether the connection to the host has broken."""

    def _open_channel(self) -> None:
        self._key = ""
        self._pending: dict[int, RemoteUpstream] = {}
        """Channels that are not ready, by the id of their exchange."""

    @property
    def descriptors(self) -> list[int]:
        """Descriptors do not cross hosts."""
        return []

    def hello_sent(self) -> None:
        """Do nothing: HELLO carries no descriptor."""

    def on_hello(self, body: bytes | bytearray) -> None:
        """Read the key of the link. Raises LinkError."""
        self._key = _key(body)
        self._begin()

    def request(self, id: int, *, is_free: bool) -> None:
        """Request a connection for exchange `id`."""
        super().request(id, is_free=is_free)
        connection = RemoteUpstream(self, id, self._on_failed)
        connection.known_id = id
        self._pending[id] = connection
        dialing = connection.dial(self.dialer, self.endpoint.path, self._key)
        self._tasks.spawn(f"channel {self.endpoint.id}", dialing)

    def end(self, id: int, *, kept: bool) -> None:
        """End exchange `id`, unless that was done; `kept`: its connection becomes idle."""
        self._forget(id)
        super().end(id, kept=kept)

    def not_started(self, id: int) -> bool:
        """Forget a request that was not granted; False if it is not waiting for an answer."""
        self._forget(id)
        return super().not_started(id)

    def on_open(self, id: int, port: int) -> bool:
        """Handle the sidecar's connection to the server; False if no exchange waits for it.

        Raises LinkError.
        """
        if port > PORT_MAX:
            raise LinkError(f"malformed OPEN: port {port}")
        if id in self._asked:
            self._on_listens(id)
            return True
        connection = self._pending.get(id)
        if connection is None:
            return False
        connection.opened(port)
        return True

    def on_connected(self, connection: UpstreamConnection) -> None:
        """Give a new connection to its exchange."""
        self._pending.pop(connection.id, None)
        self._live[connection.id] = connection
        super().on_connected(connection)

    def _close_channel(self) -> None:
        for id in list(self._pending):
            self._forget(id)

    def _lost_error(self) -> Exception:
        if self.is_broken:
            return HostLost()
        return super()._lost_error()

    def _forget(self, id: int) -> None:
        connection = self._pending.pop(id, None)
        if connection is not None:
            connection.abort()

    def _on_failed(self, connection: RemoteUpstream, reason: str) -> None:
        id = connection.id
        if self._pending.get(id) is not connection:
            return
        log.info("no connection to a server", replica=self.endpoint.id, reason=reason)
        self.end(id, kept=False)
        self._on_unusable(id)


def _key(body: bytes | bytearray) -> str:
    """Return the key in the HELLO of a sidecar. Raises LinkError."""
    key = hello_member(body, "key")
    if not isinstance(key, str) or len(key) != KEY_LENGTH or not key.isalnum():
        raise LinkError(f"malformed HELLO: expected {KEY_LENGTH} characters as key")
    return key
