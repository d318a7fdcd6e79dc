"""Data links: one connection per replica carries requests out and answers back, as frames.

`DataLinks` connects to every replica that the pool manager lists and sends the requests that the
dispatcher assigns. Every received frame is validated. A frame that violates the protocol raises
LinkError, which closes the link.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, Final, NamedTuple

import structlog

from gateway.dispatch.call import Call, Command, Link
from gateway.dispatch.dispatcher import Dispatcher
from gateway.shared_memory import BodySlot, SharedLink, SlabPool
from registry.errors import FnError
from registry.exchange import ReplicaEndpoint
from registry.tasks import Tasks
from runtime_image.contract.errors import RequestError
from runtime_image.contract.link import ANSWER_MAX, FAILED_MAX, STARTED_MAX, VERSION, Flag, Kind
from runtime_image.link.frames import Frame, LinkError, pack
from runtime_image.link.meta import AnswerMeta, pack_known_request, pack_request, unpack_answer
from runtime_image.link.stream import CLOSED, FrameStream, Greeting, connect

log = structlog.get_logger()

CLOSING: Final = "the gateway closes"
"""The reason with which links are aborted at shutdown."""
CONNECT_TRIES: Final = 5
CONNECT_RETRY_S: Final = 0.2
IDLE_FRAMES_MAX: Final = 10_000
"""Max frames on a link between two final ones (RESPONSE, FAILED, CANCELLED). They are free for the
replica and cost this process CPU time; an honest replica sends a few per request."""
# Module constants: every answer would otherwise repeat these attribute look-ups.
_RESPONSE, _SLAB, _FIRST = Kind.RESPONSE, int(Flag.SLAB), int(Flag.FIRST)
_ALONE, _TRACE = int(Flag.ALONE), int(Flag.TRACE)


class Delivered(NamedTuple):
    """A replica's answer, with facts about the replica.

    `json_length` is 0 unless the answer is binary with a JSON head. `is_first`: this is the answer
    of the replica's first run. `connected_s`: when the link was established (monotonic seconds).
    `phases`: the phases of the replica's cold start, in milliseconds.
    """

    meta: AnswerMeta
    json_length: int
    body: bytes | bytearray
    is_first: bool
    replica: str
    device: str
    connected_s: float
    phases: dict[str, float]


Outcome = Delivered | RequestError | FnError
_delivered: Callable[[tuple[Any, ...]], Delivered] = partial(tuple.__new__, Delivered)
"""Construct a Delivered without the Python frame of the named tuple's own constructor."""


@dataclass(slots=True, eq=False)
class HeldCall(Call):
    """A call and the callback for its outcome.

    `done` is called exactly once, unless the client disconnects first. `slot`: the body's place in
    shared memory, None for a body outside of it. The creator of the call releases that reference.
    """

    done: Callable[[Outcome], None] = lambda _outcome: None
    slot: BodySlot | None = None


@dataclass(slots=True)
class _Peer:
    """A replica with an established or pending link.

    `connected_s`: when HELLO arrived (monotonic seconds), 0 before. `idle_frames`: frames since the
    last final one.
    """

    endpoint: ReplicaEndpoint
    pool: str
    shared: SharedLink | None = None
    stream: FrameStream | None = None
    connected_s: float = 0.0
    idle_frames: int = 0


class DataLinks:
    """All data links of this gateway process."""

    def __init__(  # noqa: PLR0913 - the collaborators of one gateway process
        self,
        worker: str,
        dispatcher: Dispatcher,
        slabs: SlabPool,
        tasks: Tasks,
        perform: Callable[[list[Command]], None],
        on_link_lost: Callable[[str], None],
        on_answered: Callable[[str, HeldCall | None, Outcome | None], None],
    ) -> None:
        """Create the links.

        `perform` executes the dispatcher's commands. `on_link_lost(pool)` is called for every link
        that ends. `on_answered(pool, call, outcome)` is called for every final frame: `call` is
        None if the client has disconnected, `outcome` is None if the replica cancelled the request.
        """
        self._worker = worker
        self._dispatcher = dispatcher
        self._slabs = slabs
        self._tasks = tasks
        self._perform = perform
        self._on_link_lost = on_link_lost
        self._on_answered = on_answered
        self._peers: dict[str, _Peer] = {}
        self._listed: dict[str, set[str]] = {}
        """Ids of the replicas that the manager lists, by pool."""

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
                peer.endpoint = endpoint
                continue
            self._peers[endpoint.id] = _Peer(endpoint, pool)
            self._tasks.spawn(f"connect {endpoint.id}", self._connect(endpoint.id))

    def send(self, link: str, id: int, call: Call) -> None:
        """Send a call as request `id`."""
        peer = self._peers[link]
        stream, meta, body = peer.stream, call.meta, call.body
        assert stream is not None
        assert isinstance(call, HeldCall)
        flags = _ALONE if call.alone else 0
        if call.slot is not None:
            assert peer.shared is not None
            body, slab = peer.shared.send(id, call.slot, body)
            flags |= slab
        if meta.traceparent:
            flags |= _TRACE
            packed = pack_request(meta)
        else:
            packed = pack_known_request(meta)
        timeout_ms = round(call.timeout_s * 1000)
        stream.send(pack(Kind.REQUEST, id, body, meta=packed, flags=flags, aux=timeout_ms))

    def recall(self, link: str, id: int) -> None:
        """Send CANCEL: the client of request `id` has disconnected."""
        stream = self._peers[link].stream
        assert stream is not None
        stream.send(pack(Kind.CANCEL, id))

    def abort(self, link: str, reason: str) -> None:
        """Close the link of a replica that violated the protocol.

        A replica that is still listed gets a new link.
        """
        stream = self._peers[link].stream
        assert stream is not None
        stream.abort(reason)

    def close(self) -> None:
        """Close every link; none is re-established."""
        self._listed.clear()
        for peer in self._peers.values():
            if peer.stream is not None:
                peer.stream.abort(CLOSING)

    async def _connect(self, id: str) -> None:
        """Connect to a replica: up to CONNECT_TRIES attempts, while the manager lists it."""
        peer = self._peers[id]
        for attempt in range(CONNECT_TRIES):
            if attempt:
                await asyncio.sleep(CONNECT_RETRY_S)
            if id not in self._listed.get(peer.pool, ()):
                break
            try:
                await self._open(id, peer)
            except OSError as error:
                log.info("a replica cannot be reached", replica=id, reason=str(error))
                continue
            return
        self._peers.pop(id, None)

    async def _open(self, id: str, peer: _Peer) -> None:
        """Connect once and send HELLO. Raises OSError."""
        stream = FrameStream(
            partial(self._on_frame, id, peer),
            lambda reason: self._on_stream_lost(id, reason),
            f"data {id}",
            ANSWER_MAX,
        )
        shared = SharedLink(id, peer.pool, self._slabs, stream.abort)
        hello = pack(Kind.HELLO, body=json.dumps({"worker": self._worker}).encode(), aux=VERSION)
        peer.stream, peer.shared = stream, shared
        try:
            await connect(stream, peer.endpoint.path, Greeting(hello, shared.descriptors))
        except BaseException:
            peer.stream = peer.shared = None
            shared.close()
            raise
        shared.hello_sent()

    def _on_stream_lost(self, id: str, reason: str) -> None:
        peer = self._peers.pop(id, None)
        # Expected when a replica sleeps or stops, and when this gateway shuts down.
        say = log.debug if reason in (CLOSED, CLOSING) else log.info
        say("a data link ended", replica=id, reason=reason)
        if peer is not None and peer.shared is not None:
            peer.shared.on_link_lost()
        self._perform(self._dispatcher.on_link_lost(id, monotonic()))
        if peer is not None:
            self._on_link_lost(peer.pool)
        if peer is not None and id in self._listed.get(peer.pool, ()):
            self._peers[id] = _Peer(peer.endpoint, peer.pool)
            self._tasks.spawn(f"connect {id}", self._reconnect(id))

    async def _reconnect(self, id: str) -> None:
        await asyncio.sleep(CONNECT_RETRY_S)
        await self._connect(id)

    def _on_frame(self, id: str, peer: _Peer, frame: Frame) -> None:
        now = monotonic()
        kind, flags, request, json_length, packed, body = frame
        if kind is not _RESPONSE or not peer.connected_s:
            self._on_other_frame(id, peer, frame, now)
            return
        # Parse the whole frame before the call is removed from the link: a malformed answer closes
        # the link, and the calls that are still on it are retried.
        meta, endpoint = unpack_answer(packed), peer.endpoint
        if flags & _SLAB:
            body = self._copy_answer(peer, frame)
        if json_length > len(body):
            raise LinkError("the JSON part is longer than the answer")
        is_first, device, since_s = flags & _FIRST != 0, endpoint.device, peer.connected_s
        answer = (meta, json_length, body, is_first, id, device, since_s, endpoint.phases)
        self._on_final(id, peer, request, _delivered(answer), now)

    def _on_other_frame(self, id: str, peer: _Peer, frame: Frame, now: float) -> None:
        """Handle any frame but an answer."""
        kind = frame.kind
        if kind is Kind.HELLO:
            self._on_hello(id, frame, now)
            return
        if not peer.connected_s:
            raise LinkError("a frame before HELLO")
        peer.idle_frames += 1
        if peer.idle_frames > IDLE_FRAMES_MAX:
            raise LinkError(f"{IDLE_FRAMES_MAX} frames without an answer")
        if kind is Kind.FAILED:
            self._on_final(id, peer, frame.id, _request_error(frame), now)
        elif kind is Kind.CANCELLED:
            self._on_final(id, peer, frame.id, None, now)
        elif kind is Kind.STARTED:
            self._dispatcher.on_started(id, _ids(frame), now)
        elif kind is Kind.NOT_STARTED:
            self._on_not_started(id, frame, now)
        elif kind is Kind.GOAWAY:
            self._perform(self._dispatcher.on_goaway(id, frame.aux, now))
        elif kind is Kind.WINDOW and frame.id == 0:
            self._perform(self._dispatcher.on_window(id, now))
        else:
            raise LinkError(f"unexpected {kind.name} on a data link")

    def _on_hello(self, id: str, frame: Frame, now: float) -> None:
        peer = self._peers[id]
        if frame.aux != VERSION or id in self._dispatcher.links:
            raise LinkError(f"unexpected HELLO of link version {frame.aux}")
        assert peer.shared is not None
        peer.shared.on_hello(frame.body)
        peer.connected_s = now
        endpoint = peer.endpoint
        link = Link(id, peer.pool, endpoint.limit, endpoint.marks_started)
        self._perform(self._dispatcher.on_link_up(link, now))

    def _on_not_started(self, id: str, frame: Frame, now: float) -> None:
        try:
            commands = self._dispatcher.on_not_started(id, frame.id, frame.aux, now)
        except KeyError:
            raise LinkError(f"unknown request id {frame.id}") from None
        if (shared := self._peers[id].shared) is not None:
            shared.release(frame.id)
        self._perform(commands)

    def _on_final(
        self, id: str, peer: _Peer, request: int, outcome: Outcome | None, now: float
    ) -> None:
        """Handle the last frame of a request."""
        try:
            call, commands = self._dispatcher.on_ended(id, request, now)
        except KeyError:
            raise LinkError(f"unknown request id {request}") from None
        assert call is None or isinstance(call, HeldCall)
        if call is None or call.slot is not None:
            assert peer.shared is not None
            peer.shared.release(request)
        if commands:
            self._perform(commands)
        peer.idle_frames = 0
        self._on_answered(peer.pool, call, outcome)

    @staticmethod
    def _copy_answer(peer: _Peer, frame: Frame) -> bytes:
        """Copy an answer from the replica's slab; FREED lets the replica reuse that memory."""
        assert peer.stream is not None
        assert peer.shared is not None
        body = peer.shared.read_answer(frame.body)
        peer.stream.send(pack(Kind.FREED, body=frame.body))
        return body


def _ids(frame: Frame) -> list[int]:
    if len(frame.body) % 4 or len(frame.body) > STARTED_MAX:
        raise LinkError("malformed STARTED")
    return list(struct.unpack(f"<{len(frame.body) // 4}I", frame.body))


def _request_error(frame: Frame) -> RequestError:
    try:
        if len(frame.body) > FAILED_MAX:
            raise ValueError(f"{len(frame.body)} bytes")
        data = json.loads(frame.body)
        if not isinstance(data, dict):
            raise TypeError("not an object")
    except (ValueError, TypeError, RecursionError) as error:
        raise LinkError(f"malformed FAILED: {error}") from error
    return RequestError.from_json(data)
