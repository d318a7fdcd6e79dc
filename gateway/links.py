"""Connecting to replicas: what data links and the links of sidecars have in common.

A gateway process connects to every replica that the pool manager lists, tries again while it is
listed, and hands a *side channel* to the replica with the first message. Replicas on other hosts
are reached over `gateway.hosts`, where nothing is sent before their greeting.
"""

from __future__ import annotations

import asyncio
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

import structlog

from gateway.dispatch.call import Command, Link
from gateway.dispatch.dispatcher import Dispatcher
from gateway.hosts.connections import HostConnections
from gateway.socket_channel import Side, Stream
from registry.exchange import ReplicaEndpoint
from registry.tasks import Tasks
from runtime_image.contract.link import Kind
from runtime_image.link.descriptors import SIDE_CLOSED
from runtime_image.link.frames import Frame, LinkError, Piece, pack
from runtime_image.link.stream import CLOSED, FrameStream, Greeting, connect

log = structlog.get_logger()

CLOSING: Final = "the gateway closes"
"""The reason with which links are aborted at shutdown."""
IDLE_FRAMES_MAX: Final = 10_000
"""Max frames on a link since the last one of those that the replica cannot send at will: they are
free for it and cost this process CPU time. An honest replica sends a few per call."""
CONNECT_TRIES: Final = 5
CONNECT_RETRY_S: Final = 0.2
REMOTE_RETRY_MAX_S: Final = 5.0
"""Max seconds between two attempts to reach a replica on another host. They go on while the manager
lists it, which knows when the host is gone."""


S = TypeVar("S", bound=Side)


Opening: TypeAlias = tuple[Stream, S, Coroutine[Any, Any, object]]
"""A new link: its stream, its side, and what connects it and sends HELLO; raises OSError."""


class Reach(NamedTuple, Generic[S]):
    """How replicas are reached: those of this machine, or those of all other hosts."""

    tries: int
    """Max attempts in a row."""
    pause_max_s: float
    """Max seconds between two of them."""
    make: Callable[[str, Peer[S], list[Piece]], Opening[S]]
    """Creates a link to the replica of an id, which sends HELLO. Raises OSError."""


@dataclass(slots=True)
class Peer(Generic[S]):
    """A replica with an established or pending link."""

    endpoint: ReplicaEndpoint
    pool: str
    side: S | None = None
    stream: Stream | None = None
    connected_s: float = 0.0
    """When HELLO arrived (monotonic seconds), 0 before."""
    idle_frames: int = 0
    """Frames since the last one that the replica could not send at will."""

    def count_idle(self, wanted: str) -> None:
        """Count a frame that the replica can send at will. Raises LinkError with what was `wanted`
        instead, if there were too many."""
        self.idle_frames += 1
        if self.idle_frames > IDLE_FRAMES_MAX:
            raise LinkError(f"{IDLE_FRAMES_MAX} frames without {wanted}")


class ReplicaLinks(ABC, Generic[S]):
    """Links to all listed replicas of one kind. Event loop thread only."""

    body_max: int
    """Max bytes of a received frame's body."""

    def __init__(
        self,
        worker: str,
        dispatcher: Dispatcher,
        tasks: Tasks,
        perform: Callable[[list[Command]], None],
        on_link_lost: Callable[[str], None],
        hosts: HostConnections,
    ) -> None:
        """Create the links.

        `perform` executes the dispatcher's commands. `on_link_lost(pool)` is called for every link
        that ends. `hosts` has the connections to other hosts.
        """
        self._hosts = hosts
        self._worker = worker
        self._dispatcher = dispatcher
        self._tasks = tasks
        self._perform = perform
        self._on_link_lost = on_link_lost
        self._here = Reach(CONNECT_TRIES, CONNECT_RETRY_S, self._make_local)
        self._afar = Reach(sys.maxsize, REMOTE_RETRY_MAX_S, self._make_remote)
        self._peers: dict[str, Peer[S]] = {}
        self._listed: dict[str, set[str]] = {}
        """Ids of the replicas that the manager lists, by pool."""

    @abstractmethod
    def _make_side(self, id: str, peer: Peer[S], stream: FrameStream) -> S:
        """Create the side channel of a new link. Raises OSError."""

    @abstractmethod
    def _make_remote(self, id: str, peer: Peer[S], hello: list[Piece]) -> Opening[S]:
        """Create a link to a replica on another host. Raises OSError."""

    @abstractmethod
    def _make_link(self, id: str, peer: Peer[S]) -> Link:
        """Return the dispatcher's view of a link whose replica has greeted; of one on this
        machine."""

    @abstractmethod
    def _on_frame(self, id: str, peer: Peer[S], frame: Frame) -> None:
        """Handle a received frame. Raises LinkError."""

    def reconcile(self, pool: str, endpoints: list[ReplicaEndpoint]) -> None:
        """Connect to newly listed replicas.

        Links to replicas that are no longer listed are not closed here: those replicas drain or
        die, and the link ends with them.
        """
        self._listed[pool] = {endpoint.id for endpoint in endpoints}
        if not endpoints:
            del self._listed[pool]
        for endpoint in endpoints:
            peer = self._peers.get(endpoint.id)
            if peer is not None:
                # The phases are those of its start until it wakes from a park.
                if peer.side is not None and endpoint.phases != peer.endpoint.phases:
                    peer.side.on_woken(endpoint, monotonic())
                peer.endpoint = endpoint
                continue
            self._peers[endpoint.id] = Peer(endpoint, pool)
            self._tasks.spawn(f"connect {endpoint.id}", self._connect(endpoint.id))

    def abort(self, link: str, reason: str) -> None:
        """Close the link of a replica that violated the protocol.

        A replica that is still listed gets a new link.
        """
        stream = self._peers[link].stream
        assert stream is not None
        stream.abort(reason)

    def has_host(self, host: str) -> bool:
        """Return whether a link to a replica on this host is open or pending."""
        return any(peer.endpoint.host == host for peer in self._peers.values())

    def close(self) -> None:
        """Close every link; none is re-established."""
        self._listed.clear()
        for peer in self._peers.values():
            if peer.stream is not None:
                peer.stream.abort(CLOSING)

    async def _connect(self, id: str) -> None:
        """Connect to a replica while the manager lists it, as often as its `Reach` says."""
        peer = self._peers[id]
        reach = self._reach(peer.endpoint)
        for attempt in range(reach.tries):
            if attempt:
                pause_s = CONNECT_RETRY_S * 2.0 ** min(attempt - 1, 10)
                await asyncio.sleep(min(pause_s, reach.pause_max_s))
            if id not in self._listed.get(peer.pool, ()):
                break
            try:
                await self._open(id, peer, reach)
            except OSError as error:
                log.info("a replica cannot be reached", replica=id, reason=str(error))
                continue
            return
        self._peers.pop(id, None)

    def _reach(self, endpoint: ReplicaEndpoint) -> Reach[S]:
        """Return how a replica is reached; the only place that asks where it is."""
        return self._afar if endpoint.host else self._here

    async def _open(self, id: str, peer: Peer[S], reach: Reach[S]) -> None:
        """Connect once and send HELLO. Raises OSError."""
        body = json.dumps({"worker": self._worker}).encode()
        hello = pack(Kind.HELLO, body=body, aux=peer.endpoint.link)
        stream, side, opening = reach.make(id, peer, hello)
        peer.stream, peer.side = stream, side
        try:
            await opening
        except BaseException:
            peer.stream = peer.side = None
            side.close()
            raise
        side.hello_sent()

    def _make_local(self, id: str, peer: Peer[S], hello: list[Piece]) -> Opening[S]:
        """Create a link to a replica on this machine. Raises OSError."""
        stream = FrameStream(
            partial(self._on_frame, id, peer),
            lambda reason: self._on_stream_lost(id, reason),
            f"data {id}",
            self.body_max,
        )
        side = self._make_side(id, peer, stream)
        greeting = Greeting(hello, side.descriptors)
        return stream, side, connect(stream, peer.endpoint.path, greeting)

    def _on_hello(self, id: str, frame: Frame, now: float) -> None:
        peer = self._peers[id]
        if frame.aux != peer.endpoint.link or id in self._dispatcher.links:
            raise LinkError(f"unexpected HELLO of link version {frame.aux}")
        assert peer.side is not None
        peer.side.on_hello(frame.body)
        peer.connected_s = now
        link = self._make_link(id, peer)
        link.host = peer.endpoint.host
        link.rtt_s = self._hosts.rtt_s(link.host)
        self._perform(self._dispatcher.on_link_up(link, now))

    def _on_stream_lost(self, id: str, reason: str, *, is_broken: bool = False) -> None:
        peer = self._peers.pop(id, None)
        # Expected when a replica sleeps or stops, and when this gateway shuts down.
        say = log.debug if reason in (CLOSED, SIDE_CLOSED, CLOSING) else log.info
        host = peer.endpoint.host if peer is not None else ""
        say("a data link ended", replica=id, reason=reason, **({"host": host} if host else {}))
        if peer is not None and peer.side is not None:
            peer.side.on_link_lost()
        self._perform(self._dispatcher.on_link_lost(id, monotonic(), is_broken=is_broken))
        if peer is not None:
            self._on_link_lost(peer.pool)
        if peer is not None and id in self._listed.get(peer.pool, ()):
            self._peers[id] = Peer(peer.endpoint, peer.pool)
            self._tasks.spawn(f"connect {id}", self._reconnect(id))

    async def _reconnect(self, id: str) -> None:
        await asyncio.sleep(CONNECT_RETRY_S)
        await self._connect(id)
