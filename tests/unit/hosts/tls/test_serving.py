"""Tests of the files that a door sends."""

from __future__ import annotations

import asyncio
import hashlib
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from hosts.tls import serving
from hosts.tls.limits import Refusal
from runtime_image.contract.enrolment import FETCH_MAX, FETCHES_MAX
from runtime_image.contract.link import Kind
from runtime_image.contract.model import PART_MAX
from tests.support.far_host import until
from tests.support.link_door import Admitted, Peer, Scene, blocking

MIB = 2**20
CONTENT = bytes(range(256)) * (10 * MIB // 256) + b"and a rest"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def one(scene: Scene, tmp_path: Path) -> Admitted:
    """Return an admitted replica that may fetch one file."""
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    return scene.admit(files={SHA256: path})


def answered(peer: Peer, id: int) -> tuple[bytes, Kind, bytes]:
    """Return the bytes of all PARTs, and kind and body of the frame after them."""
    found = bytearray()
    while (frame := peer.frame()) is not None:
        assert frame.id == id
        if frame.kind is not Kind.PART:
            return bytes(found), frame.kind, bytes(frame.body)
        assert 0 < len(frame.body) <= PART_MAX
        found += frame.body
    raise AssertionError("the connection ended")


@pytest.mark.parametrize(
    ("offset", "length"),
    [
        (0, len(CONTENT)),
        (0, 1),
        (len(CONTENT) - 1, 1),
        (8 * MIB - 3, 2 * MIB),
        (7, serving.PART),
        (7, serving.PART + 1),
    ],
)
async def test_a_range_is_sent(scene: Scene, one: Admitted, offset: int, length: int) -> None:
    """A FETCH is answered by the bytes of its range in PARTs, then END; they are counted."""

    def replica() -> tuple[bytes, Kind, bytes]:
        with scene.replica() as peer:
            peer.fetch(SHA256, offset, length, id=9)
            return answered(peer, 9)

    expected = CONTENT[offset : offset + length]
    assert await blocking(replica) == (expected, Kind.END, b"")
    assert one.id == "r1"
    assert scene.door.served_bytes("r1") == length
    assert scene.door.served_bytes("r2") == 0


async def test_several_fetches_on_one_connection(scene: Scene, one: Admitted) -> None:
    """They are answered one after the other, also if they were sent at once; a refused one ends
    none of the others."""
    del one

    def replica() -> list[tuple[int, Kind]]:
        with scene.replica() as peer:
            peer.fetch(SHA256, 0, MIB, id=1)
            peer.fetch("0" * 64, 0, MIB, id=2)
            peer.fetch(SHA256, MIB, MIB, id=3)
            found = [answered(peer, id) for id in (1, 2, 3)]
            return [(len(data), kind) for data, kind, _ in found]

    expected = [(MIB, Kind.END), (0, Kind.FAILED), (MIB, Kind.END)]
    assert await blocking(replica) == expected


async def failed(scene: Scene, sha256: str, offset: int, length: int) -> tuple[int, str]:
    """Return how many bytes came, and why not more."""

    def replica() -> tuple[int, Kind, bytes]:
        with scene.replica() as peer:
            peer.fetch(sha256, offset, length)
            data, kind, body = answered(peer, 7)
            return len(data), kind, body

    count, kind, body = await blocking(replica)
    assert kind is Kind.FAILED
    return count, body.decode()


async def test_only_files_of_its_own_model(scene: Scene, one: Admitted) -> None:
    """A replica gets what its admission names, by no other name, and nothing after its end."""
    other = hashlib.sha256(b"another").hexdigest()
    text = f'{{"reason": "file {other}: expected one of the files of this replica\'s model"}}'
    assert await failed(scene, other, 0, 1) == (0, text)
    assert await failed(scene, SHA256.upper(), 0, 1) == (0, text.replace(other, SHA256.upper()))
    one.files.clear()
    assert await failed(scene, SHA256, 0, 1) == (0, text.replace(other, SHA256))


@pytest.mark.parametrize(
    ("offset", "length", "sent"),
    [(len(CONTENT), 1, 0), (len(CONTENT) - 5, 6, 5), (2**40, FETCH_MAX, 0)],
)
async def test_a_file_that_is_shorter(
    scene: Scene, one: Admitted, offset: int, length: int, sent: int
) -> None:
    """A range beyond the end fails after what there was."""
    del one
    count, reason = await failed(scene, SHA256, offset, length)
    assert count == sent
    expected = f"file {SHA256}: expected {offset + length} bytes or more, it has"
    assert reason.startswith(f'{{"reason": "{expected} ')


async def test_a_file_that_vanishes(scene: Scene, one: Admitted) -> None:
    """Half-way or before: the range fails, and the connection goes on."""
    path = one.files[SHA256]

    def replica() -> tuple[bytes, bytes, bytes]:
        with scene.replica() as peer:
            peer.sock.settimeout(60)
            peer.fetch(SHA256, 0, len(CONTENT), id=1)
            # The transport has far less than the file, so that the door waits for this peer.
            first = peer.frame()
            assert first is not None
            path.rename(path.with_name("gone"))
            _, kind, half_way = answered(peer, 1)
            assert kind is Kind.FAILED
            peer.fetch(SHA256, 0, 1, id=2)
            _, kind, before = answered(peer, 2)
            assert kind is Kind.FAILED
            path.with_name("gone").rename(path)
            peer.fetch(SHA256, 0, 1, id=3)
            return half_way, before, answered(peer, 3)[0]

    half_way, before, after = await blocking(replica)
    reason = f"file {SHA256} cannot be read: No such file or directory"
    assert half_way == before == f'{{"reason": "{reason}"}}'.encode()
    assert after == CONTENT[:1]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"[" * 4000,
        {"offset": 0, "length": 1},
        {"sha256": 5},
        {"sha256": "../../etc/passwd"},
        {"sha256": "é" * 64},
        {"offset": -1},
        {"offset": 2**63},
        {"offset": True},
        {"offset": 1.5},
        {"length": 0},
        {"length": FETCH_MAX + 1},
        {"length": None},
    ],
)
async def test_malformed_fetches_end_the_connection(scene: Scene, one: Admitted, body: Any) -> None:
    """Whoever breaks the protocol is cut off, as the first frame and as a later one."""
    del one
    good = {"sha256": SHA256, "offset": 0, "length": 1}
    if isinstance(body, dict) and "sha256" not in body and len(body) == 1:
        body = {**good, **body}

    def replica() -> None:
        for frames in ([body], [good, body]):
            with scene.replica() as peer:
                for number, each in enumerate(frames, 1):
                    peer.send(Kind.FETCH, each, id=number)
                if len(frames) == 2:
                    answered(peer, 1)
                assert peer.frame() is None

    await blocking(replica)


async def test_another_frame_ends_the_connection(scene: Scene, one: Admitted) -> None:
    """A connection for files is for files alone. A replica that repeats it does not fill the
    log."""
    del one

    def replica() -> None:
        with scene.replica() as peer:
            peer.fetch(SHA256)
            answered(peer, 7)
            peer.send(Kind.HELLO, {})
            assert peer.frame() is None

    with capture_logs() as lines:
        for _ in range(5):
            await blocking(replica)
        await until(lambda: scene.door.refusals()[Refusal.PROTOCOL] == 5)
    assert [line["count"] for line in lines] == [1, 2, 4]
    assert lines[0]["why"] == "expected FETCH, got HELLO"


async def test_the_newest_connections_win(scene: Scene, one: Admitted) -> None:
    """Of more connections than a replica may have, the oldest is closed."""
    del one

    def replica() -> None:
        with ExitStack() as stack:
            peers = [stack.enter_context(scene.replica()) for _ in range(FETCHES_MAX + 1)]
            for peer in peers:
                peer.fetch(SHA256)
                answered(peer, 7)
            assert peers[0].frame() is None
            for peer in peers[1:]:
                peer.fetch(SHA256)
                assert answered(peer, 7)[1] is Kind.END

    await blocking(replica)


async def test_idle_connections_and_slow_readers_are_cut(
    scene: Scene, one: Admitted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection without a FETCH ends after a while, and so does one whose peer receives
    nothing; what was not received is not counted for ever."""
    del one
    monkeypatch.setattr(serving, "IDLE_S", 0.2)
    monkeypatch.setattr(serving, "TURN_S", 0.2)

    def idle() -> None:
        with scene.replica() as peer:
            peer.fetch(SHA256)
            answered(peer, 7)
            assert peer.frame() is None

    await blocking(idle)
    with await blocking(scene.replica) as peer:
        peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        peer.fetch(SHA256, 0, len(CONTENT))
        await blocking(peer.frame)
        entry = scene.door._table.find("r1")
        assert entry is not None
        await until(lambda: not entry._connections[Kind.FETCH])
    assert scene.door.served_bytes("r1") < len(CONTENT)


async def test_slow_readers_hold_no_turns(
    scene: Scene, one: Admitted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replicas that do not read what they fetch give their turns to one that waits."""
    monkeypatch.setattr(serving, "TURN_S", 0.5)
    with ExitStack() as stack:
        for number in range(serving.SENDING_MAX):
            if not number % FETCHES_MAX:
                scene.admit(f"s{number}", files=one.files)
            peer = stack.enter_context(scene.replica(f"s{number - number % FETCHES_MAX}"))
            peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            peer.fetch(SHA256, 0, len(CONTENT))
        good = stack.enter_context(scene.replica())
        good.fetch(SHA256, 0, MIB)
        got = await blocking(lambda: answered(good, 7))

    assert len(got[0]) == MIB


async def test_turns_are_given_in_order(scene: Scene, one: Admitted) -> None:
    """More FETCHes than are sent at the same time wait; all are answered, and control links go on
    meanwhile."""
    for number in range(2, 12):
        scene.admit(f"r{number}", files=one.files)

    def replica(id: str) -> int:
        count = 0
        for _ in range(2):
            with scene.replica(id) as peer:
                peer.fetch(SHA256, 0, MIB)
                count += len(answered(peer, 7)[0])
        return count

    calls = [blocking(lambda one=number: replica(f"r{one}")) for number in range(1, 12)]
    assert await asyncio.gather(*calls) == [2 * MIB] * 11


async def test_a_forgotten_replica_is_cut_off(scene: Scene, one: Admitted) -> None:
    """Its connections end in the middle of a file."""
    del one
    with await blocking(scene.replica) as peer:
        peer.fetch(SHA256, 0, len(CONTENT))
        assert await blocking(peer.frame) is not None
        scene.door.forget("r1")

        def drain() -> None:
            while peer.frame() is not None:
                pass

        await blocking(drain)
