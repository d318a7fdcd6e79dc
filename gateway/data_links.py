"""One connection per replica: requests out as frames, answers back to their calls.

What becomes of a call, as its client's side sees it.
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
from gateway.shared_memory import BodySlot, SlabPool
from gateway.shared_memory_links import SharedLink
from registry.errors import FnError
from registry.exchange import ReplicaEndpoint
from registry.tasks import Tasks
from runtime_image.contract.errors import RequestError
from runtime_image.contract.link import ANSWER_MAX, FAILED_MAX, STARTED_MAX, VERSION, Flag, Kind
from runtime_image.link.frames import Frame, LinkError, pack
from runtime_image.link.meta import AnswerMeta, pack_known_request, pack_request, unpack_answer
from runtime_image.link.stream import CLOSED, FrameStream, Greeting, connect


class Delivered(NamedTuple):
    """A replica's answer, and what is known of that replica. `up_s`: connected since (monotonic).

    `json_length` is 0 unless the answer is binary with a JSON head. `is_first`: of the replica's
    first run.
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


@dataclass(slots=True, eq=False)
class HeldCall(Call):
    """A call with whoever waits for it. `done` is called once, unless the client left first.

    `slot`: where its body lies in shared memory; whoever made the call drops that reference when
    it is over.
    """

    done: Callable[[Outcome], None] = lambda _outcome: None
    slot: BodySlot | None = None


log = structlog.get_logger()

CLOSING: Final = "the gateway closes"
"""The reason with which links are given up at the end of this process."""

CONNECT_TRIES = 5
CONNECT_RETRY_S = 0.2
# Looked up once: each is needed for every answer.
_RESPONSE, _SLAB, _FIRST = Kind.RESPONSE, int(Flag.SLAB), int(Flag.FIRST)
_ALONE, _TRACE = int(Flag.ALONE), int(Flag.TRACE)
# Without the Python function that a named tuple's own constructor is.
_delivered: Callable[[tuple[Any, ...]], Delivered] = partial(tuple.__new__, Delivered)
IDLE_FRAMES_MAX = 10_000
"""Frames a replica may send since its last answer: what is no answer costs it nothing and us some
time. Honest ones send a few per request."""


@dataclass(slots=True)
class _Peer:
    """A replica this process is connected to, or will be. `up_s`: since when (monotonic).

    `talk`: frames since the last that ended a request. `shared`: its bodies in shared memory.
    """

    endpoint: ReplicaEndpoint
    pool: str
    shared: SharedLink | None = None
    stream: FrameStream | None = None
    connected_s: float = 0.0
    idle_frames: int = 0


class DataLinks:
    """The links of this gateway process. Everything a replica sends is checked: it may lie."""

    def __init__(  # noqa: PLR0913 - what the gateway's parts are plugged into
        self,
        worker: str,
        dispatcher: Dispatcher,
        slabs: SlabPool,
        tasks: Tasks,
        perform: Callable[[list[Command]], None],
        lost: Callable[[str], None],
        answered: Callable[[str, HeldCall | None, Outcome | None], None],
    ) -> None:
        """`perform` does the dispatcher's commands, `lost(pool)` hears of every link that ends,
        `answered` of every request that does: its pool, the call if it is still wanted, and its
        outcome if the replica has one."""
        self._worker = worker
        self._dispatcher = dispatcher
        self._slabs = slabs
        self._tasks = tasks
        self._perform = perform
        self._on_link_lost = lost
        self._on_answered = answered
        self._peers: dict[str, _Peer] = {}
        self._listed: dict[str, set[str]] = {}

    def reconcile(self, pool: str, endpoints: list[ReplicaEndpoint]) -> None:
        """Connect to what is new. Links to what is no longer listed end by themselves: the
        replica drains, or dies."""
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
        """Send a request."""
        peer = self._peers[link]
        stream, shared = peer.stream, peer.shared
        assert stream is not None
        assert shared is not None
        assert isinstance(call, HeldCall)
        body, slab = shared.send(id, call.slot, call.body)
        flags = (_ALONE if call.alone else 0) | (_TRACE if call.meta.traceparent else 0)
        meta = (pack_request if flags & _TRACE else pack_known_request)(call.meta)
        timeout_ms = round(call.timeout_s * 1000)
        stream.send(pack(Kind.REQUEST, id, body, meta=meta, flags=flags | slab, aux=timeout_ms))

    def recall(self, link: str, id: int) -> None:
        """Tell the replica that a request is no longer wanted."""
        stream = self._peers[link].stream
        assert stream is not None
        stream.send(pack(Kind.CANCEL, id))

    def abort(self, link: str, reason: str) -> None:
        """End a link whose replica does not keep to it; a new one is made if it is still listed."""
        stream = self._peers[link].stream
        assert stream is not None
        stream.abort(reason)

    def close(self) -> None:
        """End every link for good."""
        self._listed.clear()
        for peer in self._peers.values():
            if peer.stream is not None:
                peer.stream.abort(CLOSING)

    async def _connect(self, id: str) -> None:
        """Connect while the manager lists the replica; a few tries, each after a pause."""
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
        """Connect and greet, once. Raises OSError."""
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
        # A replica that sleeps or is stopped ends its links, and so does a gateway that closes.
        say = log.debug if reason in (CLOSED, CLOSING) else log.info
        say("a data link ended", replica=id, reason=reason)
        if peer is not None and peer.shared is not None:
            peer.shared.on_link_lost()
        self._perform(self._dispatcher.link_lost(id, monotonic()))
        if peer is not None:
            self._on_link_lost(peer.pool)
        if peer is not None and id in self._listed.get(peer.pool, ()):
            self._peers[id] = _Peer(peer.endpoint, peer.pool)
            self._tasks.spawn(f"connect {id}", self._reconnect(id))

    async def _reconnect(self, id: str) -> None:
        await asyncio.sleep(CONNECT_RETRY_S)
        await self._connect(id)

    def _on_frame(self, id: str, peer: _Peer, frame: Frame) -> None:
        now, kind = monotonic(), frame.kind
        if kind is _RESPONSE and peer.connected_s:
            self._on_final(id, peer, frame, now)
        elif kind is Kind.HELLO:
            self._on_hello(id, frame, now)
        elif not peer.connected_s:
            raise LinkError("a frame before HELLO")
        else:
            self._bound_talk(peer)
            self._on_control_frame(id, peer, frame, now)

    def _on_control_frame(self, id: str, peer: _Peer, frame: Frame, now: float) -> None:
        """What is no answer."""
        kind = frame.kind
        if kind is Kind.FAILED or kind is Kind.CANCELLED:
            self._on_final(id, peer, frame, now)
        elif kind is Kind.STARTED:
            self._dispatcher.started(id, _ids(frame), now)
        elif frame.kind is Kind.NOT_STARTED:
            self._on_not_started(id, frame, now)
        elif frame.kind is Kind.GOAWAY:
            self._perform(self._dispatcher.goaway(id, frame.aux, now))
        elif frame.kind is Kind.WINDOW and frame.id == 0:
            self._perform(self._dispatcher.window(id, now))
        else:
            raise LinkError(f"unexpected {frame.kind.name} on a data link")

    @staticmethod
    def _bound_talk(peer: _Peer) -> None:
        peer.idle_frames += 1
        if peer.idle_frames > IDLE_FRAMES_MAX:
            raise LinkError(f"{IDLE_FRAMES_MAX} frames without an answer")

    def _on_not_started(self, id: str, frame: Frame, now: float) -> None:
        try:
            commands = self._dispatcher.not_started(id, frame.id, frame.aux, now)
        except KeyError:
            raise LinkError(f"unknown request id {frame.id}") from None
        if (shared := self._peers[id].shared) is not None:
            shared.release(frame.id)
        self._perform(commands)

    def _on_hello(self, id: str, frame: Frame, now: float) -> None:
        peer = self._peers[id]
        if frame.aux != VERSION or id in self._dispatcher.links:
            raise LinkError(f"unexpected HELLO of link version {frame.aux}")
        assert peer.shared is not None
        peer.shared.on_hello(frame.body)
        peer.connected_s = now
        endpoint = peer.endpoint
        link = Link(id, peer.pool, endpoint.limit, endpoint.marks_started)
        self._perform(self._dispatcher.link_up(link, now))

    def _on_final(self, id: str, peer: _Peer, frame: Frame, now: float) -> None:
        # What the frame says is read before the call is taken off the link: a malformed answer
        # ends the link with its call still on it, and the call is retried.
        outcome = self._read_outcome(id, peer, frame)
        try:
            call, commands = self._dispatcher.ended(id, frame.id, now)
        except KeyError:
            raise LinkError(f"unknown request id {frame.id}") from None
        assert peer.shared is not None
        peer.shared.release(frame.id)
        if commands:
            self._perform(commands)
        peer.idle_frames = 0
        assert call is None or isinstance(call, HeldCall)
        self._on_answered(peer.pool, call, outcome)

    def _read_outcome(self, id: str, peer: _Peer, frame: Frame) -> Outcome | None:
        kind, flags, _, json_length, packed, body = frame
        if kind is Kind.CANCELLED:
            return None
        if kind is Kind.FAILED:
            return _request_error(frame)
        meta, endpoint = unpack_answer(packed), peer.endpoint
        if flags & _SLAB:
            body = self._copy_answer(peer, frame)
        if json_length > len(body):
            raise LinkError("the JSON part is longer than the answer")
        is_first, device = flags & _FIRST != 0, endpoint.device
        return Delivered(
            meta, json_length, body, is_first, id, device, peer.connected_s, endpoint.phases
        )

    @staticmethod
    def _copy_answer(peer: _Peer, frame: Frame) -> bytes:
        """An answer out of the replica's memory, which it may use again from now on."""
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
