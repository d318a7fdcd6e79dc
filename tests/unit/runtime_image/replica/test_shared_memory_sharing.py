"""Shared memory of a replica's links, over real ones to a serving engine."""

from __future__ import annotations

import io
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime_image.contract.link import SLAB_NOTICE, VERSION, Flag, Kind, NotStarted
from runtime_image.contract.model import ModelSpec
from runtime_image.engines.loading import load_engine
from runtime_image.link.frames import Frame, pack
from runtime_image.link.meta import RequestMeta, pack_request
from runtime_image.link.shared_memory import SlabRange, unpack_range
from tests.support import models
from tests.support.blocking import BlockingLink, turning
from tests.support.side import GatewaySide
from tests.unit.runtime_image.replica.test_serving import Gated, Rig

NPY = pack_request(RequestMeta("application/x-npy", "application/x-npy", -1, ""))
MIB = 2**20
SPEC = ModelSpec("digits@1", model="add_one.onnx", batch_max=1)


def npy(value: float) -> bytes:
    """One array of a MiB."""
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
        """A request for what lies there."""
        self.link.send(Kind.REQUEST, id, place.pack(), meta=NPY, flags=Flag.SLAB, aux=60_000)

    def settled(self) -> Frame:
        """The next frame but STARTED."""
        while (frame := self.link.next()).kind is Kind.STARTED:
            pass
        return frame

    def answer(self) -> bytes:
        """The next answer, out of the replica's slab."""
        frame = self.settled()
        assert (frame.kind, frame.flags & Flag.SLAB) == (Kind.RESPONSE, Flag.SLAB)
        self.side.hear()
        body = self.side.read(unpack_range(frame.body))
        self.link.send(Kind.FREED, body=bytes(frame.body))
        return body

    def ended(self) -> bool:
        """Whether the replica has let go of everything of this link; waits until it has."""
        self.side.channel.sock.settimeout(10)
        while self.side.channel.sock.recv(100):
            pass
        return True

    def close(self) -> None:
        """End both."""
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
    # What the loop had no turn left for.
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
    """Each run waits until the test opens the gate."""
    yield from serve(folder, Gated(folder))


def test_bodies_go_through_shared_memory_both_ways(shared: Shared) -> None:
    """The right answer to each of several requests, more than the answers' slab holds at once."""
    shared.side.announce(1, 8 * MIB)
    for number in range(70):
        shared.request(number + 1, shared.side.put(1, npy(number), number % 4 * 2 * MIB))

        assert shared.answer() == npy(number + 1)


def test_an_answer_that_finds_no_room_goes_in_a_frame(shared: Shared) -> None:
    """A gateway that frees nothing is answered all the same."""
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
    """So it is with a gateway of before; to name a place there breaks the protocol."""
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


def test_what_is_no_socket_beside_hello_breaks_the_protocol(shared: Shared) -> None:
    """Nobody sends that who means well; other links go on."""
    link = shared.rig.link()
    null = os.open(os.devnull, os.O_RDONLY)
    socket.send_fds(link.sock, [b"".join(pack(Kind.HELLO, aux=VERSION))], [null])
    os.close(null)

    with pytest.raises(EOFError):
        link.next()
    assert shared.rig.link().hello()


def test_a_broken_notice_ends_the_link(shared: Shared) -> None:
    """The gateway would find its requests unanswered otherwise."""
    shared.side.channel.sock.send(SLAB_NOTICE.pack(1, 4096))

    with pytest.raises(EOFError):
        shared.link.next()
    assert shared.ended()


def test_a_side_channel_that_ends_leaves_the_link(shared: Shared) -> None:
    """Whoever closes only that is still answered over the link."""
    shared.side.announce(1, 8 * MIB)
    shared.request(1, shared.side.put(1, npy(1)))
    assert shared.answer() == npy(2)
    shared.side.channel.close()
    shared.link.send(Kind.REQUEST, 2, npy(2), meta=NPY, aux=60_000)

    assert shared.settled().kind is Kind.RESPONSE


def test_a_request_that_is_turned_away_is_let_go(gated: Shared) -> None:
    """Two are taken; the third comes back, and the channel ends with the two."""
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
    """The side channel says so: it ends only when the engine has let go of the body."""
    gated.side.announce(1, 8 * MIB)
    gated.request(1, gated.side.put(1, npy(1)))
    engine = gated.rig.engine
    assert engine.began.acquire(timeout=10)
    gated.link.close()
    # A later link is answered by a turn of the loop that knows of the loss.
    assert gated.rig.link().hello()
    gated.side.channel.sock.setblocking(False)
    with pytest.raises(BlockingIOError):
        gated.side.channel.sock.recv(1)
    engine.gate.release()

    assert gated.ended()


def test_a_request_that_is_cancelled_is_let_go_when_its_run_ends(gated: Shared) -> None:
    """CANCELLED comes after the run: until then its body is read."""
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
