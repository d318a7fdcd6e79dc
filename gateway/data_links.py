"""One connection per replica: requests out as frames, answers back to their calls."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

import structlog

from gateway.dispatch.call import Call, Command
from gateway.dispatch.dispatcher import Dispatcher
from gateway.dispatch.links import Link
from gateway.outcome import Delivered, HeldCall, Outcome
from registry.errors import ReplicaDied
from registry.exchange import ReplicaEndpoint
from registry.tasks import Tasks
from runtime_image.contract.errors import RequestError
from runtime_image.contract.link import (
    ANSWER_MAX,
    FAILED_MAX,
    STARTED_MAX,
    VERSION,
    Flag,
    Kind,
)
from runtime_image.link.frames import Frame, LinkError, pack
from runtime_image.link.meta import pack_request, unpack_answer
from runtime_image.link.stream import FrameStream, open_stream

log = structlog.get_logger()

CONNECT_TRIES = 5
CONNECT_RETRY_S = 0.2
IDLE_TALK_MAX = 10_000
"""Frames a replica may send since its last answer: what is no answer costs it nothing and us some
time. Honest ones send a few per request."""


@dataclass(slots=True)
class _Peer:
    """A replica this process is connected to, or will be. `up_s`: since when (monotonic).

    `talk`: frames since the last that ended a request.
    """

    endpoint: ReplicaEndpoint
    pool: str
    stream: FrameStream | None = None
    up_s: float = 0.0
    talk: int = 0


class DataLinks:
    """The links of this gateway process. Everything a replica sends is checked: it may lie."""

    def __init__(
        self,
        worker: str,
        dispatcher: Dispatcher,
        tasks: Tasks,
        perform: Callable[[list[Command]], None],
        lost: Callable[[str], None],
        answered: Callable[[str], None],
    ) -> None:
        """`perform` does the dispatcher's commands, `lost(pool)` hears of every link that ends,
        `answered(pool)` of every request that does."""
        self._worker = worker
        self._dispatcher = dispatcher
        self._tasks = tasks
        self._perform = perform
        self._lost = lost
        self._answered = answered
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
        stream = self._peers[link].stream
        assert stream is not None
        flags = (Flag.ALONE if call.alone else 0) | (Flag.TRACE if call.meta.traceparent else 0)
        meta = pack_request(call.meta)
        timeout_ms = round(call.timeout_s * 1000)
        stream.send(pack(Kind.REQUEST, id, call.body, meta=meta, flags=flags, aux=timeout_ms))

    def recall(self, link: str, id: int) -> None:
        """Tell the replica that a request is no longer wanted."""
        stream = self._peers[link].stream
        assert stream is not None
        stream.send(pack(Kind.CANCEL, id))

    def give_up(self, link: str, reason: str) -> None:
        """End a link whose replica does not keep to it; a new one is made if it is still listed."""
        stream = self._peers[link].stream
        assert stream is not None
        stream.abort(reason)

    def close(self) -> None:
        """End every link."""
        for peer in self._peers.values():
            if peer.stream is not None:
                peer.stream.abort("the gateway closes")

    async def _connect(self, id: str) -> None:
        """Connect while the manager lists the replica; a few tries, each after a pause."""
        peer = self._peers[id]
        for attempt in range(CONNECT_TRIES):
            if attempt:
                await asyncio.sleep(CONNECT_RETRY_S)
            if id not in self._listed.get(peer.pool, ()):
                break
            try:
                stream = await open_stream(
                    peer.endpoint.path,
                    lambda frame: self._on_frame(id, frame),
                    lambda reason: self._on_lost(id, reason),
                    f"data {id}",
                    ANSWER_MAX,
                )
            except OSError as error:
                log.info("a replica cannot be reached", replica=id, reason=str(error))
                continue
            peer.stream = stream
            body = json.dumps({"worker": self._worker}).encode()
            stream.send(pack(Kind.HELLO, body=body, aux=VERSION))
            return
        self._peers.pop(id, None)

    def _on_lost(self, id: str, reason: str) -> None:
        peer = self._peers.pop(id, None)
        log.info("a data link ended", replica=id, reason=reason)
        self._perform(self._dispatcher.link_lost(id, monotonic()))
        if peer is not None:
            self._lost(peer.pool)
        if peer is not None and id in self._listed.get(peer.pool, ()):
            self._peers[id] = _Peer(peer.endpoint, peer.pool)
            self._tasks.spawn(f"connect {id}", self._reconnect(id))

    async def _reconnect(self, id: str) -> None:
        await asyncio.sleep(CONNECT_RETRY_S)
        await self._connect(id)

    def _on_frame(self, id: str, frame: Frame) -> None:
        now = monotonic()
        if frame.kind is Kind.HELLO:
            self._up(id, frame, now)
            return
        if id not in self._dispatcher.links:
            raise LinkError("a frame before HELLO")
        self._bound_talk(self._peers[id])
        if frame.kind in (Kind.RESPONSE, Kind.FAILED, Kind.CANCELLED):
            self._ended(id, frame, now)
        elif frame.kind is Kind.STARTED:
            self._dispatcher.started(id, _ids(frame), now)
        elif frame.kind is Kind.NOT_STARTED:
            self._not_started(id, frame, now)
        elif frame.kind is Kind.GOAWAY:
            self._perform(self._dispatcher.goaway(id, frame.aux, now))
        elif frame.kind is Kind.WINDOW and frame.id == 0:
            self._perform(self._dispatcher.window(id, now))
        else:
            raise LinkError(f"unexpected {frame.kind.name} on a data link")

    @staticmethod
    def _bound_talk(peer: _Peer) -> None:
        peer.talk += 1
        if peer.talk > IDLE_TALK_MAX:
            raise LinkError(f"{IDLE_TALK_MAX} frames without an answer")

    def _not_started(self, id: str, frame: Frame, now: float) -> None:
        try:
            commands = self._dispatcher.not_started(id, frame.id, frame.aux, now)
        except KeyError:
            raise LinkError(f"unknown request id {frame.id}") from None
        self._perform(commands)

    def _up(self, id: str, frame: Frame, now: float) -> None:
        peer = self._peers[id]
        if frame.aux != VERSION or id in self._dispatcher.links:
            raise LinkError(f"unexpected HELLO of link version {frame.aux}")
        peer.up_s = now
        endpoint = peer.endpoint
        link = Link(id, peer.pool, endpoint.limit, endpoint.marks_started)
        self._perform(self._dispatcher.link_up(link, now))

    def _ended(self, id: str, frame: Frame, now: float) -> None:
        # What the frame says is read before the call is taken off the link: a malformed answer
        # ends the link with its call still on it, and the call is retried.
        outcome = self._outcome(id, frame)
        try:
            call, commands = self._dispatcher.ended(id, frame.id, now)
        except KeyError:
            raise LinkError(f"unknown request id {frame.id}") from None
        self._perform(commands)
        self._peers[id].talk = 0
        self._answered(self._peers[id].pool)
        if call is not None:
            assert isinstance(call, HeldCall)
            call.done(outcome or ReplicaDied("the replica gave the request up"))

    def _outcome(self, id: str, frame: Frame) -> Outcome | None:
        if frame.kind is Kind.CANCELLED:
            return None
        if frame.kind is Kind.FAILED:
            return _request_error(frame)
        if frame.aux > len(frame.body):
            raise LinkError("the JSON part is longer than the answer")
        peer = self._peers[id]
        return Delivered(
            unpack_answer(frame.meta),
            frame.aux,
            frame.body,
            bool(frame.flags & Flag.FIRST),
            id,
            peer.endpoint.device,
            peer.up_s,
            peer.endpoint.phases,
        )


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
