"""The connections to one server: requested, open and idle ones, and the frames that name them.

The sidecar knows each connection by the id of the OPEN that requested it, or of the last one that
reused it. END is sent exactly once for each such id, except that END with the flag KEPT is followed
by REUSE or by END. Which ends are told late, or not at all: `gateway.dispatch.keeping`.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from time import monotonic
from typing import Final

import structlog

from gateway.dispatch.keeping import LATE_S, KeptConnections
from gateway.socket_channel import Side, SocketChannel, Stream
from gateway.upstream import UpstreamConnection
from registry.exchange import ReplicaEndpoint
from registry.tasks import Tasks
from runtime_image.contract.link import Flag, Kind, NotStarted
from runtime_image.link.frames import LinkError, pack
from runtime_image.link.stream import adopt

log = structlog.get_logger()

IDLE_S: Final = 2.0
"""Seconds for which an idle connection is kept: servers close theirs after 5 s or more."""
TELL_MIN_S: Final = 0.001
"""Min seconds between two looks at ends to be told: the resolution of the event loop's timers."""
ASK_S: Final = 2.0
"""Seconds after which a sidecar that does not say whether its server listens is taken for dead."""
UNANSWERED_S: Final = 1.0
"""Min seconds between two frames about exchanges without an answer."""
LATE_MAX: Final = 1000
"""Max connections between two used ones that arrive for exchanges that have ended."""
_FAMILIES: Final = (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX)


class ServerSockets(Side):
    """Side of one sidecar's link that has the connections. Event loop thread only.

    `connected_s`: when the link was established, or the replica has woken since (monotonic
    seconds).
    """

    def __init__(
        self,
        endpoint: ReplicaEndpoint,
        stream: Stream,
        tasks: Tasks,
        on_opened: Callable[[int, UpstreamConnection], None],
        on_unusable: Callable[[int], None],
    ) -> None:
        """Create the side channel. Raises OSError if there are no descriptors left.

        `on_opened(id, connection)` gives a new connection to its exchange.
        `on_unusable(id)` reports that the connection of an exchange cannot be used; END was sent.
        """
        self.endpoint = endpoint
        """The replica, as the manager published it last."""
        self._stream = stream
        self._tasks = tasks
        self._on_opened = on_opened
        self._on_unusable = on_unusable
        self._open_channel()
        self._live: dict[int, UpstreamConnection | None] = {}
        """Exchanges that are not over; None while the connection has not arrived."""
        self._kept: KeptConnections[UpstreamConnection] = KeptConnections(self._tell)
        """The idle connections."""
        self._loop = asyncio.get_running_loop()
        self._telling: asyncio.TimerHandle | None = None
        self.connected_s = 0.0
        self._late = 0
        """Connections that arrived for ended exchanges, since the last one that was used."""
        self._unanswered_s = 0.0
        """When the sidecar was last told of an exchange without an answer."""
        self._asked: dict[int, Callable[[bool], None]] = {}
        """Questions whether the server listens, by the ids of their connections."""

    def __len__(self) -> int:
        return len(self._live) + len(self._kept)

    def _open_channel(self) -> None:
        """Create the side channel. Raises OSError."""
        on_ended = self._stream.abort
        self._channel = SocketChannel(self.endpoint.id, self._on_descriptor, on_ended)

    def _close_channel(self) -> None:
        self._channel.close()

    def _lost_error(self) -> Exception:
        """Return the error of connections in use when the link is lost."""
        return ConnectionAbortedError("the link to the replica was lost")

    # Side of a link

    @property
    def descriptors(self) -> list[int]:
        """The sidecar's end of the side channel, to be sent with HELLO."""
        return self._channel.descriptors

    def hello_sent(self) -> None:
        """Close this process's copy of the sidecar's end."""
        self._channel.hello_sent()

    def on_hello(self, body: bytes | bytearray) -> None:
        """Begin to receive connections. Raises LinkError."""
        self._channel.on_hello(body)
        self._begin()

    def _begin(self) -> None:
        self.connected_s = monotonic()

    def on_woken(self, endpoint: ReplicaEndpoint, now: float) -> None:
        """Note that the replica has slept and serves again since `now`: calls that waited for it
        show the phases of its wake."""
        self.endpoint, self.connected_s = endpoint, now

    def on_link_lost(self) -> None:
        """Close the side channel and all connections."""
        self.close()
        for answered in self._asked.values():
            # Later: the dispatcher does not know yet that the link is lost.
            self._loop.call_soon(answered, False)
        self._asked.clear()

    def close(self) -> None:
        """Close the side channel and all connections; the proxy reads the end of those in use."""
        self._close_channel()
        connections = [*self._live.values(), *self._kept.clear()]
        self._live.clear()
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        for connection in connections:
            if connection is not None:
                # Without an error, the end of an answer of unknown length would look complete.
                connection.abort(self._lost_error())

    # Exchanges

    def request(self, id: int, *, is_free: bool) -> None:
        """Request a connection for exchange `id`."""
        self._live[id] = None
        self._kept.request(id, is_free=is_free)

    def reuse(self, id: int, now: float) -> UpstreamConnection | None:
        """Return the newest idle connection, for exchange `id`; None if there is none.

        Those on which the server has said something, or which it has closed, are closed.
        """
        kept = self._kept
        while (connection := kept.newest()) is not None:
            if connection.is_silent:
                kept.reuse(connection, id, now)
                connection.begin(id, is_reused=True)
                self._live[id] = connection
                return connection
            self.recall(connection.known_id)
        return None

    def end(self, id: int, *, kept: bool) -> None:
        """End exchange `id`, unless that was done; `kept`: its connection becomes idle."""
        if id not in self._live:
            return
        connection = self._live.pop(id)
        if connection is None:
            self._tell(Kind.END, id, 0, 0)
        elif kept and connection.is_flushed:
            connection.rest()
            self._kept.keep(connection, monotonic())
            if self._telling is None and not self._kept.is_prompt:
                self._telling = self._loop.call_later(LATE_S, self._tell_ends)
        else:
            self._kept.drop(connection)
            connection.handler = None
            connection.abort()

    def tell_tunnel(self, id: int, *, is_quiet: bool) -> None:
        """Tell the sidecar that exchange `id`, if it is not over, is a WebSocket."""
        connection = self._live.get(id)
        if connection is not None:
            # A sidecar that runs since before an upgrade may not know this frame.
            flags = Flag.OPTIONAL | (Flag.FREE if is_quiet else 0)
            self._tell(Kind.TUNNEL, connection.known_id, flags, 0)

    def tell_unanswered(self, id: int, now: float) -> None:
        """Tell the sidecar that the server has not answered exchange `id`; once in UNANSWERED_S, as
        one that runs since before an upgrade counts frames that it does not know. The end of the
        exchange says it of each."""
        connection = self._live.get(id)
        if connection is not None:
            connection.has_failed = True
        if now - self._unanswered_s >= UNANSWERED_S:
            self._unanswered_s = now
            self._tell(Kind.UNANSWERED, id, Flag.OPTIONAL, 0)

    def _tell_ends(self) -> None:
        """Tell the sidecar of ends that are due."""
        now = monotonic()
        next_s = self._kept.tell_due(now)
        self._telling = None
        if next_s != float("inf"):
            delay_s = max(next_s - now, TELL_MIN_S)
            self._telling = self._loop.call_later(delay_s, self._tell_ends)

    def _tell(self, kind: Kind, id: int, flags: int, aux: int) -> None:
        self._stream.send(pack(kind, id, flags=flags, aux=aux))

    def not_started(self, id: int) -> bool:
        """Forget a request that was not granted; False if it is not waiting for an answer."""
        if id not in self._live or self._live[id] is not None:
            return False
        del self._live[id]
        return True

    def on_open(self, id: int, port: int) -> bool:
        """Handle OPEN of the sidecar: LinkError, as connections arrive on the side channel."""
        raise LinkError(f"unexpected OPEN {id} of port {port}")

    def recall(self, known_id: int) -> bool:
        """Close the connection that the sidecar knows by this id; False if it is not idle."""
        connection = self._kept.take(known_id)
        if connection is None:
            return False
        connection.is_idle = False
        connection.abort()
        return True

    def hasten(self) -> None:
        """Tell ends at once: links wait for slots, or the server is to stop."""
        self._kept.hasten(monotonic())

    def relax(self) -> None:
        """Tell ends late again."""
        self._kept.relax()

    def close_idle(self) -> None:
        """Close all idle connections."""
        for connection in list(self._kept):
            self.recall(connection.known_id)

    def idle_since_s(self) -> float:
        """Return since when the oldest idle connection rests; infinity without one."""
        oldest = self._kept.oldest()
        return float("inf") if oldest is None else oldest.idle_since_s

    def close_oldest(self) -> None:
        """Close the oldest idle connection, if there is one."""
        oldest = self._kept.oldest()
        if oldest is not None:
            self.recall(oldest.known_id)

    def sweep(self, now: float) -> None:
        """Close connections that were idle for IDLE_S."""
        while self.idle_since_s() + IDLE_S <= now:
            self.close_oldest()

    # Whether the server listens

    def ask(self, id: int, answered: Callable[[bool], None]) -> None:
        """Ask whether the server listens: `answered(listens)`. `id` belongs to no exchange.

        The sidecar connects to it, outside of its limit, and this connection is closed at once.
        """
        self._asked[id] = answered
        self._tell(Kind.OPEN, id, Flag.FREE, 0)
        self._loop.call_later(ASK_S, self._on_no_answer, id)

    def not_asked(self, id: int, reason: int) -> bool:
        """Handle the refusal of a connection; False if it was requested for an exchange.

        Too many connections, or a drain, do not mean that the server has ended.
        """
        is_asked = id in self._asked
        self._answer(id, listens=reason != NotStarted.REFUSED)
        return is_asked

    def _on_listens(self, id: int) -> None:
        self._tell(Kind.END, id, 0, 0)
        self._answer(id, listens=True)

    def _on_no_answer(self, id: int) -> None:
        if id in self._asked:
            self._tell(Kind.END, id, 0, 0)
            self._answer(id, listens=False)

    def _answer(self, id: int, *, listens: bool) -> None:
        answered = self._asked.pop(id, None)
        if answered is not None:
            answered(listens)

    # Connections

    def on_connected(self, connection: UpstreamConnection) -> None:
        """Give a new connection to its exchange; one whose exchange has ended was aborted."""
        self._late = 0
        self._kept.opened(connection, monotonic())
        self._on_opened(connection.id, connection)

    def on_idle_ended(self, connection: UpstreamConnection) -> None:
        """Close a connection that sent bytes or ended while it was idle."""
        if connection.is_idle:
            self.recall(connection.known_id)

    def _on_descriptor(self, id: int, descriptor: int | None) -> None:
        is_wanted = id in self._live and self._live[id] is None
        if id in self._asked:
            if descriptor is not None:
                os.close(descriptor)
            self._on_listens(id)
            return
        if descriptor is None:
            if is_wanted:
                self.end(id, kept=False)
                self._on_unusable(id)
            return
        if not is_wanted:
            os.close(descriptor)
            self._late += 1
            if self._late > LATE_MAX:
                raise LinkError(f"{LATE_MAX} connections without an exchange")
            return
        sock = _socket(descriptor)
        connection = UpstreamConnection(self, id)
        self._live[id] = connection
        self._tasks.spawn(f"socket {self.endpoint.id}", self._adopt(sock, connection))

    async def _adopt(self, sock: socket.socket, connection: UpstreamConnection) -> None:
        """Make a transport for a connected socket."""
        try:
            await adopt(sock, connection)
        except OSError as error:
            log.info("a connection is lost", replica=self.endpoint.id, reason=str(error))
            if self._live.get(connection.id) is connection:
                self.end(connection.id, kept=False)
                self._on_unusable(connection.id)
        else:
            connection.adopted()


def _socket(descriptor: int) -> socket.socket:
    """Return a non-blocking stream socket. Raises LinkError for any other descriptor."""
    try:
        sock = socket.socket(fileno=descriptor)
    except OSError as error:
        os.close(descriptor)
        raise LinkError(f"expected a socket: {error}") from error
    if sock.type != socket.SOCK_STREAM or sock.family not in _FAMILIES:
        sock.close()
        raise LinkError(f"expected a stream socket, got {sock.family!r} {sock.type!r}")
    sock.setblocking(False)
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock
