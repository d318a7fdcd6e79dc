"""Bodies in shared memory: over real links to a serving engine, and the parts alone."""

from __future__ import annotations

import io
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime_image.contract.link import SLAB_BODY_MIN, SLAB_NOTICE, VERSION, Flag, Kind, NotStarted
from runtime_image.contract.model import ModelSpec
from runtime_image.engines.loading import load_engine
from runtime_image.link.allocator import BLOCK
from runtime_image.link.frames import Frame, LinkError, pack
from runtime_image.link.meta import RequestMeta, pack_request
from runtime_image.link.shared_memory import SideChannel, SlabRange, unpack_range
from runtime_image.replica.shared_memory import (
    ANSWER_SLAB,
    KEPT_BYTES,
    REST_S,
    SLABS_MAX,
    AnswerSlab,
    LinkBodies,
)
from tests.support import models
from tests.support.blocking import BlockingLink, turning
from tests.support.side import GatewaySide
from tests.unit.runtime_image.replica.test_serving import Gated, Rig

NPY = pack_request(RequestMeta("application/x-npy", "application/x-npy", -1, ""))
MIB = 2**20
SPEC = ModelSpec("digits@1", model="add_one.onnx", batch_max=1)


def npy(value: float) -> bytes:
    """Return an npy file of one array of 1 MiB."""
    file = io.BytesIO()
    np.save(file, np.full((MIB // 16, 4), value, np.float32))
    return file.getvalue()


class Shared:
    """A gateway's link to a rig, with its side channel."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.side = GatewaySide()
        self.link: BlockingLink = rig.link()
        hello = b"".join(pack(Kind.HELLO, aux=VERSION))
        socket.send_fds(self.link.sock, [hello], [self.side.theirs.fileno()])
        self.side.theirs.close()
        assert b'"slabs": true' in self.link.next(Kind.HELLO).body

    def request(self, id: int, place: SlabRange) -> None:
        """Send a request whose body lies at `place`."""
        self.link.send(Kind.REQUEST, id, place.pack(), meta=NPY, flags=Flag.SLAB, aux=60_000)

    def settled(self) -> Frame:
        """Return the next frame except STARTED."""
        while (frame := self.link.next()).kind is Kind.STARTED:
            pass
        return frame

    def answer(self) -> bytes:
        """Return the next answer, read from the replica's slab."""
        frame = self.settled()
        assert (frame.kind, frame.flags & Flag.SLAB) == (Kind.RESPONSE, Flag.SLAB)
        self.side.hear()
        body = self.side.read(unpack_range(frame.body))
        self.link.send(Kind.FREED, body=bytes(frame.body))
        return body

    def ended(self) -> bool:
        """Wait until the replica has released everything of this link; return whether it has."""
        self.side.channel.sock.settimeout(10)
        while self.side.channel.sock.recv(100):
            pass
        return True

    def close(self) -> None:
        """Close link and side channel."""
        self.link.close()
        self.side.close()


def serve(folder: Path, engine: Any) -> Iterator[Shared]:
    rig = Rig(folder, engine, SPEC)
    with turning(rig.loop, rig.worker):
        shared = Shared(rig)
        yield shared
        if isinstance(engine, Gated):
            engine.gate.release(100)
        shared.close()
    # Close what the loop had no turn left for.
    for bodies in rig.serving._shared._bodies.values():
        bodies._requests.clear()
        bodies._answers.close()
        bodies.channel.close()
    rig.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    models.add_one(tmp_path)
    return tmp_path


@pytest.fixture
def shared(folder: Path) -> Iterator[Shared]:
    yield from serve(folder, load_engine(SPEC, folder, device_kind="cpu", threads=1))


@pytest.fixture
def gated(folder: Path) -> Iterator[Shared]:
    """A rig whose runs wait until the test opens the gate."""
    yield from serve(folder, Gated(folder))


def test_bodies_go_through_shared_memory_both_ways(shared: Shared) -> None:
    """Several requests, more than the answer slab holds at once, all get their right answers."""
    shared.side.announce(1, 8 * MIB)
    for number in range(70):
        shared.request(number + 1, shared.side.put(1, npy(number), number % 4 * 2 * MIB))

        assert shared.answer() == npy(number + 1)


def test_an_answer_that_finds_no_room_goes_in_a_frame(shared: Shared) -> None:
    """If the gateway frees nothing, answers go in frames."""
    shared.side.announce(1, 8 * MIB)
    place = shared.side.put(1, npy(1))
    flags = []
    for number in range(70):
        shared.request(number + 1, place)
        frame = shared.settled()
        flags.append(frame.flags & Flag.SLAB)
    assert set(flags[:60]) == {Flag.SLAB}
    assert flags[-1] == 0
    assert frame.body == npy(2)


def test_a_link_without_a_side_channel_has_all_in_frames(shared: Shared) -> None:
    """A gateway without a side channel (an earlier version) uses frames only; naming a slab is a
    protocol violation."""
    link = shared.rig.link()
    assert "slabs" not in link.hello()
    link.send(Kind.REQUEST, 1, npy(1), meta=NPY, aux=60_000)
    assert link.next(Kind.STARTED)
    assert link.next(Kind.RESPONSE).body == npy(2)

    for breach in (
        {"kind": Kind.REQUEST, "id": 2, "meta": NPY, "flags": Flag.SLAB},
        {"kind": Kind.FREED},
    ):
        other = shared.rig.link()
        other.hello()
        other.send(body=SlabRange(1, 0, 1).pack(), **breach)  # type: ignore[arg-type]  # a dict's values
        with pytest.raises(EOFError):
            other.next()


def test_a_descriptor_other_than_a_socket_breaks_the_protocol(shared: Shared) -> None:
    """A descriptor with HELLO that is no socket is a protocol violation; other links are
    unaffected."""
    link = shared.rig.link()
    null = os.open(os.devnull, os.O_RDONLY)
    socket.send_fds(link.sock, [b"".join(pack(Kind.HELLO, aux=VERSION))], [null])
    os.close(null)

    with pytest.raises(EOFError):
        link.next()
    assert shared.rig.link().hello()


def test_a_broken_notice_ends_the_link(shared: Shared) -> None:
    """A malformed notice ends the link, because the gateway's requests would stay unanswered."""
    shared.side.channel.sock.send(SLAB_NOTICE.pack(1, 4096))

    with pytest.raises(EOFError):
        shared.link.next()
    assert shared.ended()


def test_a_side_channel_that_ends_leaves_the_link(shared: Shared) -> None:
    """If only the side channel ends, answers continue over the link."""
    shared.side.announce(1, 8 * MIB)
    shared.request(1, shared.side.put(1, npy(1)))
    assert shared.answer() == npy(2)
    shared.side.channel.close()
    shared.link.send(Kind.REQUEST, 2, npy(2), meta=NPY, aux=60_000)

    assert shared.settled().kind is Kind.RESPONSE


def test_a_request_that_is_turned_away_is_let_go(gated: Shared) -> None:
    """A refused request releases its slab; the channel ends with the two accepted ones."""
    gated.side.announce(1, 8 * MIB)
    place = gated.side.put(1, npy(1))
    for id in (1, 2, 3):
        gated.request(id, place)
    refused = gated.settled()
    assert (refused.kind, refused.id, refused.aux) == (Kind.NOT_STARTED, 3, NotStarted.FULL)
    engine = gated.rig.engine
    assert engine.began.acquire(timeout=10)
    gated.link.close()
    engine.gate.release(2)

    assert gated.ended()


def test_a_lost_link_is_kept_while_its_request_runs(gated: Shared) -> None:
    """The side channel of a lost link ends only once the engine has released the body."""
    gated.side.announce(1, 8 * MIB)
    gated.request(1, gated.side.put(1, npy(1)))
    engine = gated.rig.engine
    assert engine.began.acquire(timeout=10)
    gated.link.close()
    # The loop knows of the loss once it answers a later link.
    assert gated.rig.link().hello()
    gated.side.channel.sock.setblocking(False)
    with pytest.raises(BlockingIOError):
        gated.side.channel.sock.recv(1)
    engine.gate.release()

    assert gated.ended()


def test_a_request_that_is_cancelled_is_let_go_when_its_run_ends(gated: Shared) -> None:
    """CANCELLED is sent after the run, because the run reads the body until then."""
    gated.side.announce(1, 8 * MIB)
    for id in (1, 2):
        gated.request(id, gated.side.put(1, npy(id), id * 2 * MIB))
    engine = gated.rig.engine
    assert engine.began.acquire(timeout=10)
    for id in (2, 1):
        gated.link.send(Kind.CANCEL, id)
    assert (gated.settled().kind, gated.rig.serving.intake.owed.keys()) == (
        Kind.CANCELLED,
        {(1, 1)},
    )
    engine.gate.release()

    last = gated.settled()

    assert (last.kind, last.id) == (Kind.CANCELLED, 1)
    gated.link.close()
    assert gated.ended()


SIZE = 2 * KEPT_BYTES


@pytest.fixture
def slab(side: GatewaySide, timers: Any) -> Iterator[AnswerSlab]:
    """An answer slab of twice the size that it keeps while idle."""
    made = AnswerSlab(SideChannel(side.theirs), timers.after, SIZE)
    yield made
    made.close()


def put(slab: AnswerSlab, body: bytes) -> SlabRange:
    place = slab.put(body)
    assert place is not None
    return place


def test_an_answer_lies_where_its_place_says(slab: AnswerSlab, side: GatewaySide) -> None:
    """The slab is announced once, before the first answer in it."""
    bodies = [bytes([number]) * (BLOCK + number) for number in range(3)]
    places = [put(slab, body) for body in bodies]

    notice = side.hear()
    assert notice is not None
    assert (notice.number, notice.size) == (ANSWER_SLAB, SIZE)
    assert [side.read(place) for place in places] == bodies
    assert side.hear() is None


def test_a_place_is_used_again_once_it_was_read(slab: AnswerSlab, side: GatewaySide) -> None:
    """A place is reused only after the gateway freed it, even if no other is left."""
    first = put(slab, b"1" * (SIZE - BLOCK))
    assert slab.put(b"2" * 2 * BLOCK) is None
    slab.free(first)

    assert put(slab, b"2" * 2 * BLOCK).offset == 0


@pytest.mark.parametrize(
    "place", [SlabRange(1, BLOCK, 5), SlabRange(1, 0, 4), SlabRange(1, 2**60, 5)]
)
def test_only_announced_places_can_be_freed(slab: AnswerSlab, place: SlabRange) -> None:
    """Freeing an unknown place, or one place twice, is a protocol violation."""
    first = put(slab, b"12345")

    with pytest.raises(LinkError, match="nothing to free"):
        slab.free(place)
    slab.free(first)
    with pytest.raises(LinkError, match="nothing to free"):
        slab.free(first)


def test_memory_is_given_back_after_a_rest(
    slab: AnswerSlab, side: GatewaySide, timers: Any
) -> None:
    """After an idle period the slab's memory is released, except a small part; the slab stays
    usable."""
    first = put(slab, b"1" * SIZE)
    side.hear()
    slab.free(first)
    assert side.in_memory(ANSWER_SLAB) == slab._parts.touched == SIZE
    assert timers.due[0][0] == REST_S
    timers.ring()

    assert side.in_memory(ANSWER_SLAB) == slab._parts.touched == KEPT_BYTES
    assert side.read(put(slab, b"2" * SIZE)) == b"2" * SIZE


def test_there_is_no_rest_while_answers_come(slab: AnswerSlab, timers: Any) -> None:
    """Each answer that is read restarts the idle period; an unread one stops it."""
    slab.free(put(slab, b"1" * SIZE))
    slab.free(put(slab, b"2"))
    timers.ring()
    assert slab._parts.touched == SIZE
    third = put(slab, b"3")
    timers.ring()
    assert (slab._parts.touched, timers.due) == (SIZE, [])

    slab.free(third)
    timers.ring()

    assert slab._parts.touched == KEPT_BYTES


def test_a_little_is_kept(slab: AnswerSlab, timers: Any) -> None:
    """A slab within the part to keep starts no idle period."""
    slab.free(put(slab, b"1" * KEPT_BYTES))

    assert timers.due == []


def test_a_closed_slab_takes_nothing(slab: AnswerSlab, timers: Any) -> None:
    """A closed slab refuses answers, and its pending timer does nothing."""
    slab.free(put(slab, b"1" * SIZE))
    slab.close()
    timers.ring()

    assert slab.put(b"2") is None


def test_without_a_gateway_there_is_no_slab(slab: AnswerSlab, side: GatewaySide) -> None:
    """Without a gateway the slab cannot be announced: answers go in frames, and it is not
    retried."""
    side.channel.close()

    assert slab.put(b"1") is None
    assert slab.put(b"2") is None


def test_a_slab_that_cannot_be_made_is_done_without(side: GatewaySide, timers: Any) -> None:
    """If no slab can be created (e.g. no memory), answers go in frames."""
    assert AnswerSlab(SideChannel(side.theirs), timers.after, 2**62).put(b"1") is None


@pytest.fixture
def bodies(side: GatewaySide, timers: Any) -> Iterator[LinkBodies]:
    """The shared bodies of a link to `side`."""
    made = LinkBodies(SideChannel(side.theirs), timers.after)
    yield made
    made.drop()
    made.channel.close()


def test_a_request_is_read_where_it_lies(side: GatewaySide, bodies: LinkBodies) -> None:
    """A pending notice is processed when a request names its slab. The body is not copied: later
    writes are visible."""
    side.announce(1)
    body = bodies.request_body(side.put(1, b"abc", 70).pack())
    assert body == b"abc"
    side.put(1, b"xyz", 70)

    assert body == b"xyz"
    assert body.readonly
    bodies.release()


@pytest.mark.parametrize(
    "place",
    [
        SlabRange(2, 0, 1),
        SlabRange(1, MIB, 1),
        SlabRange(1, 0, MIB + 1),
        SlabRange(1, 2**63, 2**63),
        SlabRange(1, MIB - 1, 2),
    ],
)
def test_a_place_outside_of_every_slab_breaks_the_protocol(
    side: GatewaySide, bodies: LinkBodies, place: SlabRange
) -> None:
    """Offset and length are validated against the slab."""
    side.announce(1)

    with pytest.raises(LinkError, match=r"not announced|outside of its slab"):
        bodies.request_body(place.pack())


def test_a_slab_that_is_used_no_more_is_unmapped(side: GatewaySide, bodies: LinkBodies) -> None:
    """A withdrawn slab is unmapped after its last reader; no later request can name it."""
    side.announce(1)
    body = bodies.request_body(side.put(1, b"abc").pack())
    side.channel.retire(1)
    bodies.read_notices()

    assert body == b"abc"
    with pytest.raises(LinkError, match="was not announced"):
        bodies.request_body(SlabRange(1, 0, 1).pack())


def test_the_number_of_slabs_is_bounded(side: GatewaySide, bodies: LinkBodies) -> None:
    """More than SLABS_MAX slabs are a protocol violation."""
    for number in range(SLABS_MAX):
        side.announce(number)
    bodies.read_notices()
    side.announce(SLABS_MAX)

    with pytest.raises(LinkError, match="one too many"):
        bodies.read_notices()


def test_a_slab_of_another_size_is_refused(side: GatewaySide, bodies: LinkBodies) -> None:
    """A slab whose size differs from its notice is refused: a read past its end would kill this
    process."""
    null = os.open(os.devnull, os.O_RDONLY)
    side.channel.announce(1, MIB, null)
    os.close(null)

    with pytest.raises(LinkError, match="expected a memfd"):
        bodies.read_notices()


def test_a_small_answer_goes_in_a_frame(side: GatewaySide, bodies: LinkBodies) -> None:
    """A small answer goes in a frame, where it costs less; a large one lies in the slab until it is
    freed."""
    assert bodies.put_answer(b"x" * (SLAB_BODY_MIN - 1)) is None
    packed = bodies.put_answer(b"x" * SLAB_BODY_MIN)
    assert packed is not None
    side.hear()

    assert side.read(unpack_range(packed)) == b"x" * SLAB_BODY_MIN
    bodies.on_freed(packed)
    with pytest.raises(LinkError, match="nothing to free"):
        bodies.on_freed(packed)


def test_the_side_channel_ends_with_the_last_request(side: GatewaySide, bodies: LinkBodies) -> None:
    """The end of the side channel tells the gateway that no body is being read any more."""
    side.announce(1)
    for _ in range(2):
        bodies.request_body(side.put(1, b"abc").pack())
    bodies.release()
    bodies.drop()
    assert not bodies.is_closed
    assert side.hear() is None
    assert bodies.put_answer(b"x" * SLAB_BODY_MIN) is None

    bodies.release()

    assert bodies.is_closed
    with pytest.raises(EOFError):
        side.hear()


def test_a_gateway_that_is_gone_is_noticed(side: GatewaySide, bodies: LinkBodies) -> None:
    """A lost gateway is noticed as an end while waiting for notices, and as a protocol violation by
    a request that names a slab."""
    side.channel.close()

    with pytest.raises(EOFError):
        bodies.read_notices()
    with pytest.raises(LinkError, match="has ended"):
        bodies.request_body(SlabRange(1, 0, 1).pack())
