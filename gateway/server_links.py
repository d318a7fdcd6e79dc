"""Links of sidecars: exchanges with functions' servers are requested, and connections arrive.

`ServerLinks` requests the connections that the dispatcher assigns. Every received frame is
validated. A frame that violates the protocol raises LinkError, which closes the link.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Final

import structlog

from gateway.dispatch.call import Call, Command, Data, Link, ServerLink, Stage, digest_of
from gateway.dispatch.dispatcher import Dispatcher
from gateway.dispatch.exchanges import UNUSABLE
from gateway.hosts.connections import HostConnections
from gateway.hosts.greeting import DIAL_S, GreetedStream
from gateway.hosts.upstream import RemoteServerSockets
from gateway.links import Opening, Peer, ReplicaLinks
from gateway.server_sockets import ServerSockets
from gateway.upstream import UpstreamConnection
from registry.errors import FnError
from registry.tasks import Tasks
from runtime_image.contract.link import Kind, NotStarted
from runtime_image.link.frames import Frame, LinkError, Piece, pack
from runtime_image.link.meta import RequestMeta
from runtime_image.link.stream import FrameStream

log = structlog.get_logger()

UNUSABLE_LOG_S: Final = 10.0
"""Seconds between two log lines about missing descriptors."""
NO_META: Final = RequestMeta("", "", -1, "")
_REASONS: Final = frozenset({NotStarted.FULL, NotStarted.DRAINING, NotStarted.REFUSED})


@dataclass(slots=True, eq=False)
class ExchangeCall(Call):
    """One exchange with a function's server, from its admission to the end of its answer.

    Exactly one of these happens, unless the proxy cancels the call first: `opened(connection)` is
    called, perhaps before `Delivery.submit_exchange` returns, and the proxy ends or retries the
    call; or `done(error)` is called. After a retry both may happen again. `opened` must set
    `connection.handler`. `body` is empty: the proxy counts what it keeps.
    `timeout_s` is not used. `wants_fresh`: it gets no connection that was used before. `pieces`
    returns the body while the proxy keeps it, None unless `may_poison`. `is_broken`: its last
    connection was lost with the connection to its replica's host.
    """

    is_exchange: bool = True
    may_poison: bool = False
    opened: Callable[[UpstreamConnection], None] = lambda _connection: None
    done: Callable[[FnError], None] = lambda _error: None
    wants_fresh: bool = False
    pieces: Callable[[], Iterable[Data]] | None = None
    is_broken: bool = False
    _digest: bytes = b""

    def digest(self) -> bytes:
        """Return the digest of its body, which stays known when the body is dropped."""
        if not self._digest and self.pieces is not None:
            self._digest = digest_of(self.pool, self.pieces())
        return self._digest

    def note_death(self) -> None:
        """Count a replica that died before its answer."""
        self.deaths += 1
        if self.may_poison:
            self.digest()


class ServerLinks(ReplicaLinks[ServerSockets]):
    """All links of this gateway process to sidecars."""

    body_max = 4096
    """Only HELLO has a body."""

    def __init__(  # noqa: PLR0913 - the collaborators of one gateway process
        self,
        worker: str,
        dispatcher: Dispatcher,
        tasks: Tasks,
        perform: Callable[[list[Command]], None],
        on_link_lost: Callable[[str], None],
        hand_over: Callable[[ExchangeCall, UpstreamConnection], None],
        hosts: HostConnections,
    ) -> None:
        """Create the links; see `ReplicaLinks`.

        `hand_over(call, connection)` gives a connection to the exchange that has started with it.
        """
        super().__init__(worker, dispatcher, tasks, perform, on_link_lost, hosts)
        self._hand_over = hand_over
        self.connections_max = 0
        """Max connections to servers, idle ones included; 0 = no limit."""
        self._logged_s = -UNUSABLE_LOG_S

    # Commands of the dispatcher

    def send(self, link: str, id: int, call: Call) -> None:
        """Use an idle connection for exchange `id`, or request a connection.

        For a fresh connection the link gives an idle one back, whose slot it may take.
        """
        if call.id != id or call.link != link or call.stage is not Stage.SENT:
            return  # ended by a callback since the dispatcher sent it
        assert isinstance(call, ExchangeCall)
        sockets = self._sockets(link)
        now = monotonic()
        connection = None
        if call.wants_fresh and not call.is_free:
            sockets.close_oldest()
        elif not call.is_free:
            connection = sockets.reuse(id, now)
        if connection is not None:
            self._dispatcher.exchanges.start(call, now)
            self._peers[link].idle_frames = 0
            self._hand_over(call, connection)
        elif self._has_room():
            sockets.request(id, is_free=call.is_free)
        else:
            self._on_unusable(link, id)

    def end(self, link: str, id: int, *, kept: bool) -> None:
        """End exchange `id`; `kept`: its connection becomes idle if it is in order."""
        peer = self._peers[link]
        peer.idle_frames = 0
        assert peer.side is not None
        peer.side.end(id, kept=kept)

    def tell_tunnel(self, link: str, id: int, *, is_quiet: bool) -> None:
        """Tell the sidecar that exchange `id` is a WebSocket, quiet or in use."""
        self._peers[link].idle_frames = 0
        self._sockets(link).tell_tunnel(id, is_quiet=is_quiet)

    def tell_unanswered(self, link: str, id: int) -> None:
        """Tell the sidecar that the server has not answered exchange `id`: it probes the server."""
        self._sockets(link).tell_unanswered(id, monotonic())

    def ask(self, link: str, answered: Callable[[bool], None]) -> None:
        """Ask whether the server of a link listens: `answered(listens)`, at once or later."""
        known = self._dispatcher.links.get(link)
        if isinstance(known, ServerLink):
            self._sockets(link).ask(known.take_id(), answered)
        else:
            answered(False)

    def close_idle(self, link: str) -> None:
        """Close the idle connections of a link."""
        self._sockets(link).close_idle()

    def decline(self, link: str) -> None:
        """Decline an offered slot."""
        self._send(link, Kind.END)

    def quiesced(self, link: str, count: int) -> None:
        """Answer QUIESCE; `count` exchanges are open or requested."""
        self._send(link, Kind.QUIESCED, aux=count)

    def sweep(self, now: float) -> None:
        """Close connections that were idle for too long."""
        for peer in self._peers.values():
            if peer.side is not None:
                peer.side.sweep(now)

    # Events of sidecars

    def _make_side(self, id: str, peer: Peer[ServerSockets], stream: FrameStream) -> ServerSockets:
        return ServerSockets(
            peer.endpoint,
            stream,
            self._tasks,
            partial(self._on_opened, id, peer),
            partial(self._on_unusable, id),
        )

    def _make_link(self, id: str, peer: Peer[ServerSockets]) -> Link:
        return ServerLink(id, peer.pool, peer.endpoint.limit, marks_started=True)

    def _make_remote(
        self, id: str, peer: Peer[ServerSockets], hello: list[Piece]
    ) -> Opening[ServerSockets]:
        endpoint = peer.endpoint
        stream = GreetedStream(
            endpoint.greeting,
            lambda _, frame: self._on_frame(id, peer, frame),
            lambda ended, reason: self._on_remote_lost(id, peer, ended, reason),
            f"data {id}",
            self.body_max,
        )
        sockets = RemoteServerSockets(
            endpoint,
            stream,
            self._tasks,
            partial(self._on_opened, id, peer),
            partial(self._on_unusable, id),
        )
        sockets.dialer = lambda: self._hosts.route(endpoint.host).bodies

        async def opening() -> None:
            route = self._hosts.route(endpoint.host)
            await route.bodies.wait_up(DIAL_S)  # for the channels of exchanges
            await stream.open(route.calls, endpoint.path)
            stream.send(hello)

        return stream, sockets, opening()

    def _on_remote_lost(
        self, id: str, peer: Peer[ServerSockets], stream: GreetedStream, reason: str
    ) -> None:
        if isinstance(peer.side, RemoteServerSockets):
            peer.side.is_broken = stream.is_broken
        self._on_stream_lost(id, reason, is_broken=stream.is_broken)

    def _on_frame(self, id: str, peer: Peer[ServerSockets], frame: Frame) -> None:
        now = monotonic()
        if frame.kind is Kind.HELLO:
            self._on_hello(id, frame, now)
            return
        sockets = peer.side
        if not peer.connected_s or sockets is None:
            raise LinkError("a frame before HELLO")
        if frame.kind is Kind.OPEN and sockets.on_open(frame.id, frame.aux):
            return
        if frame.kind is Kind.NOT_STARTED and sockets.not_asked(frame.id, frame.aux):
            return
        if frame.kind is Kind.NOT_STARTED and sockets.not_started(frame.id):
            if frame.aux not in _REASONS:
                raise LinkError(f"unknown reason {frame.aux}")
            exchanges = self._dispatcher.exchanges
            self._perform(exchanges.on_not_started(id, frame.id, frame.aux, now))
            return
        peer.count_idle("an exchange")
        self._on_other_frame(id, sockets, frame, now)

    def _on_other_frame(self, id: str, sockets: ServerSockets, frame: Frame, now: float) -> None:
        """Handle any frame but the answer to a request."""
        exchanges, kind = self._dispatcher.exchanges, frame.kind
        if kind in (Kind.NOT_STARTED, Kind.OPEN):
            return  # its exchange has ended meanwhile
        if kind is Kind.WINDOW and not frame.id and frame.aux <= 1:
            if not frame.aux:
                sockets.relax()
            self._perform(exchanges.on_window(id, frame.aux, now))
        elif kind is Kind.RECALL:
            if not frame.id:
                sockets.hasten()
            elif not sockets.recall(frame.id):
                exchanges.on_recall_missed(id)
        elif kind is Kind.QUIESCE and not frame.id:
            sockets.hasten()
            self._perform(exchanges.on_quiesce(id))
        else:
            raise LinkError(f"unexpected {kind.name} on a sidecar's link")

    def _on_opened(
        self, link: str, peer: Peer[ServerSockets], id: int, connection: UpstreamConnection
    ) -> None:
        call = self._dispatcher.exchanges.on_opened(link, id, monotonic())
        assert isinstance(call, ExchangeCall), "a connection without an exchange that waits for it"
        peer.idle_frames = 0
        connection.begin(id, is_reused=False)
        self._hand_over(call, connection)

    def _on_unusable(self, link: str, id: int) -> None:
        """Return an exchange to its queue: this process cannot have one more connection."""
        now = monotonic()
        if now - self._logged_s >= UNUSABLE_LOG_S:
            self._logged_s = now
            log.warning("a connection to a server failed", replica=link)
        exchanges = self._dispatcher.exchanges
        self._perform(exchanges.on_not_started(link, id, UNUSABLE, now))

    def _has_room(self) -> bool:
        """Return whether one more connection may be opened; closes the oldest idle one for it."""
        if not self.connections_max:
            return True
        every = [peer.side for peer in self._peers.values() if peer.side is not None]
        if sum(map(len, every)) < self.connections_max:
            return True
        oldest = min(every, key=ServerSockets.idle_since_s)
        if oldest.idle_since_s() == float("inf"):
            return False
        oldest.close_oldest()
        return True

    def _send(self, link: str, kind: Kind, *, aux: int = 0) -> None:
        stream = self._peers[link].stream
        assert stream is not None
        stream.send(pack(kind, aux=aux))

    def _sockets(self, link: str) -> ServerSockets:
        sockets = self._peers[link].side
        assert sockets is not None
        return sockets
