"""Data links: one connection per replica carries requests out and answers back, as frames.

`DataLinks` sends the requests that the dispatcher assigns. Every received frame is validated. A
frame that violates the protocol raises LinkError, which closes the link.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, NamedTuple

from gateway.dispatch.call import Call, Command, Link
from gateway.dispatch.dispatcher import Dispatcher
from gateway.dispatch.pool import LARGE_ANSWER
from gateway.hosts.bodies import FramedBodies
from gateway.hosts.connections import HostConnections
from gateway.hosts.data_link import LinkEvents, RemoteDataLink
from gateway.links import Opening, Peer, ReplicaLinks
from gateway.shared_memory import BodySlot, SharedLink, SlabPool
from registry.errors import FnError
from registry.tasks import Tasks
from runtime_image.contract.errors import RequestError
from runtime_image.contract.link import ANSWER_MAX, FAILED_MAX, STARTED_MAX, Flag, Kind
from runtime_image.link.frames import Frame, LinkError, Piece, pack
from runtime_image.link.meta import AnswerMeta, pack_request, unpack_answer
from runtime_image.link.stream import FrameStream

# Module constants: every answer would otherwise repeat these attribute look-ups.
_RESPONSE, _SLAB, _FIRST = Kind.RESPONSE, int(Flag.SLAB), int(Flag.FIRST)
_ALONE, _TRACE = int(Flag.ALONE), int(Flag.TRACE)


class Delivered(NamedTuple):
    """A replica's answer, with facts about the replica.

    `json_length` is 0 unless the answer is binary with a JSON head. `is_first`: this is the answer
    of the replica's first run. `devices`: ids of its devices. `connected_s`: when the link was
    established (monotonic seconds). `phases`: the phases of the replica's cold start, in
    milliseconds. `host`: its host, "" for this machine.
    """

    meta: AnswerMeta
    json_length: int
    body: bytes | bytearray
    is_first: bool
    replica: str
    devices: tuple[str, ...]
    connected_s: float
    phases: dict[str, float]
    host: str = ""


Outcome = Delivered | RequestError | FnError
_delivered: Callable[[tuple[Any, ...]], Delivered] = partial(tuple.__new__, Delivered)
"""Construct a Delivered without the Python frame of the named tuple's own constructor."""


@dataclass(slots=True, eq=False)
class HeldCall(Call):
    """A call and the callback for its outcome.

    `done` is called exactly once, unless the client disconnects first. `slot`: the body's place in
    shared memory, None for a body outside of it. The creator of the call releases that reference.
    `packed`: `meta` as the frame has it, b"" if it is packed when the call is sent.
    """

    done: Callable[[Outcome], None] = lambda _outcome: None
    slot: BodySlot | None = None
    packed: bytes = b""


Bodies = SharedLink | FramedBodies
"""Side channel of a link: shared memory, or for another host only slots that are held."""


class DataLinks(ReplicaLinks[Bodies]):
    """All data links of this gateway process."""

    body_max = ANSWER_MAX

    def __init__(  # noqa: PLR0913 - the collaborators of one gateway process
        self,
        worker: str,
        dispatcher: Dispatcher,
        slabs: SlabPool,
        tasks: Tasks,
        perform: Callable[[list[Command]], None],
        on_link_lost: Callable[[str], None],
        on_answered: Callable[[str, HeldCall | None, Outcome | None], None],
        hosts: HostConnections,
    ) -> None:
        """Create the links; see `ReplicaLinks`.

        `on_answered(pool, call, outcome)` is called for every final frame: `call` is None if the
        client has disconnected, `outcome` is None if the replica cancelled the request.
        """
        super().__init__(worker, dispatcher, tasks, perform, on_link_lost, hosts)
        self._slabs = slabs
        self._on_answered = on_answered

    def send(self, link: str, id: int, call: Call) -> None:
        """Send a call as request `id`."""
        peer = self._peers[link]
        stream, meta, body = peer.stream, call.meta, call.body
        assert stream is not None
        assert isinstance(call, HeldCall)
        flags = _ALONE if call.alone else 0
        if call.slot is not None:
            assert peer.side is not None
            body, slab = peer.side.send(id, call.slot, body)
            flags |= slab
        if meta.traceparent:
            flags |= _TRACE
        packed = call.packed or pack_request(meta)
        timeout_ms = round(call.timeout_s * 1000)
        stream.send(pack(Kind.REQUEST, id, body, meta=packed, flags=flags, aux=timeout_ms))

    def recall(self, link: str, id: int) -> None:
        """Send CANCEL: the client of request `id` has disconnected."""
        stream = self._peers[link].stream
        assert stream is not None
        stream.send(pack(Kind.CANCEL, id))

    def _make_side(self, id: str, peer: Peer[Bodies], stream: FrameStream) -> Bodies:
        return SharedLink(id, peer.pool, self._slabs, stream.abort)

    def _make_link(self, id: str, peer: Peer[Bodies]) -> Link:
        return Link(id, peer.pool, peer.endpoint.limit, peer.endpoint.marks_started)

    def _make_remote(self, id: str, peer: Peer[Bodies], hello: list[Piece]) -> Opening[Bodies]:
        host = peer.endpoint.host
        events = LinkEvents(
            partial(self._on_frame, id, peer),
            partial(self._on_remote_goaway, id, peer),
            partial(self._on_channel_lost, id, peer),
            lambda reason, is_broken: self._on_stream_lost(id, reason, is_broken=is_broken),
        )
        link = RemoteDataLink(
            peer.endpoint,
            hello,
            lambda: self._hosts.route(host),
            self._tasks,
            events,
            self.body_max,
        )
        return link, FramedBodies(), link.open()

    def _on_remote_goaway(
        self, id: str, peer: Peer[Bodies], last_id: int, ids: Collection[int]
    ) -> None:
        peer.count_idle("an answer")
        self._perform(self._dispatcher.on_goaway(id, last_id, monotonic(), ids))

    def _on_channel_lost(
        self,
        id: str,
        peer: Peer[Bodies],
        ids: Collection[int],
        is_broken: bool,
    ) -> None:
        """Handle the end of one of two channels: its requests fail over, the other one serves."""
        assert isinstance(peer.side, FramedBodies)
        peer.side.release_all(ids)
        dispatcher = self._dispatcher
        self._perform(dispatcher.on_channel_lost(id, ids, monotonic(), is_broken=is_broken))

    def _on_frame(self, id: str, peer: Peer[Bodies], frame: Frame) -> None:
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
        is_first, devices, since_s = flags & _FIRST != 0, endpoint.devices, peer.connected_s
        phases, host = endpoint.phases, endpoint.host
        answer = (meta, json_length, body, is_first, id, devices, since_s, phases, host)
        self._on_final(id, peer, request, _delivered(answer), now)

    def _on_other_frame(self, id: str, peer: Peer[Bodies], frame: Frame, now: float) -> None:
        """Handle any frame but an answer."""
        kind = frame.kind
        if kind is Kind.HELLO:
            self._on_hello(id, frame, now)
            return
        if not peer.connected_s:
            raise LinkError("a frame before HELLO")
        peer.count_idle("an answer")
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

    def _on_not_started(self, id: str, frame: Frame, now: float) -> None:
        try:
            commands = self._dispatcher.on_not_started(id, frame.id, frame.aux, now)
        except KeyError:
            raise LinkError(f"unknown request id {frame.id}") from None
        if (side := self._peers[id].side) is not None:
            side.release(frame.id)
        self._perform(commands)

    def _on_final(
        self, id: str, peer: Peer[Bodies], request: int, outcome: Outcome | None, now: float
    ) -> None:
        """Handle the last frame of a request."""
        size = len(outcome.body) if isinstance(outcome, Delivered) else 0
        try:
            call, commands = self._dispatcher.on_ended(id, request, now, size)
        except KeyError:
            raise LinkError(f"unknown request id {request}") from None
        assert call is None or isinstance(call, HeldCall)
        if call is None or call.slot is not None:
            assert peer.side is not None
            peer.side.release(request)
        if commands:
            self._perform(commands)
        peer.idle_frames = 0
        self._on_answered(peer.pool, call, outcome)
        if size >= LARGE_ANSWER:
            self._perform(self._dispatcher.on_delivered(peer.pool, now))

    @staticmethod
    def _copy_answer(peer: Peer[Bodies], frame: Frame) -> bytes:
        """Copy an answer from the replica's slab; FREED lets the replica reuse that memory."""
        assert peer.stream is not None
        assert peer.side is not None
        body = peer.side.read_answer(frame.body)
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
