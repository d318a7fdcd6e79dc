"""Frame serialisation."""

from __future__ import annotations

import tracemalloc

import pytest

from runtime_image.contract.link import BODY_MAX, HEADER, Flag, Kind
from runtime_image.link.frames import (
    GROWTH,
    LARGE,
    SCRATCH_SIZE,
    SKIPPED_MAX,
    Frame,
    FrameReader,
    LinkError,
    pack,
)


def read(reader: FrameReader, data: bytes) -> list[Frame]:
    """Return all frames that `data` completes, fed in pieces as large as the reader accepts."""
    frames: list[Frame] = []
    while data:
        room = reader.buffer()
        count = min(len(room), len(data))
        room[:count] = data[:count]
        data = data[count:]
        frames += reader.received(count)
    return frames


def test_a_frame_keeps_every_field() -> None:
    """Kind, flags, id, aux, meta and body survive serialisation."""
    data = b"".join(pack(Kind.REQUEST, 7, b"body", meta=b"meta", flags=Flag.ALONE, aux=250))

    assert read(FrameReader(), data) == [Frame(Kind.REQUEST, Flag.ALONE, 7, 250, b"meta", b"body")]


def test_the_layout_is_the_published_one() -> None:
    """A header is 16 little-endian bytes: body length, id, kind, flags, meta length, aux."""
    [data] = pack(Kind.RESPONSE, 2, b"xyz", meta=b"m", flags=1, aux=3)

    assert data == bytes.fromhex("03000000 02000000 11 01 0100 03000000") + b"mxyz"


def test_a_large_body_is_not_copied_when_packed() -> None:
    """A body of 64 KiB or more is a separate piece: the very object that was passed."""
    body = bytes(LARGE)

    pieces = pack(Kind.REQUEST, 1, body)

    assert pieces[1] is body
    assert len(pack(Kind.REQUEST, 1, body[1:])) == 1


@pytest.mark.parametrize("size", [0, LARGE - 1, LARGE, SCRATCH_SIZE, 3 * GROWTH])
def test_bodies_of_every_size_arrive(size: int) -> None:
    """Bodies on both sides of each internal limit arrive whole, and so does the next frame."""
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    data = b"".join([*pack(Kind.REQUEST, 1, body, meta=b"a"), *pack(Kind.PING, aux=9)])

    first, second = read(FrameReader(), data)

    assert first == Frame(Kind.REQUEST, 0, 1, 0, b"a", body)
    assert second == Frame(Kind.PING, 0, 0, 9, b"", b"")


def test_the_longest_meta_fits() -> None:
    """Meta of 65,535 bytes with a body just under the large size does not stall the reader."""
    meta, body = b"m" * 65535, b"b" * (LARGE - 1)
    data = b"".join(pack(Kind.REQUEST, 1, body, meta=meta)) * 5

    frames = read(FrameReader(), data)

    assert [(len(frame.meta), len(frame.body)) for frame in frames] == [(65535, LARGE - 1)] * 5


def test_a_body_over_the_limit_is_refused_by_its_header() -> None:
    """The header of an oversized body ends the stream, before memory is reserved for it."""
    header = HEADER.pack(BODY_MAX + 1, 1, Kind.REQUEST, 0, 0, 0)

    with pytest.raises(LinkError, match=f"a body of {BODY_MAX + 1} bytes is over the limit"):
        read(FrameReader(), header)


def test_a_reader_may_have_a_smaller_limit() -> None:
    """A reader's own limit replaces the general one."""
    assert read(FrameReader(4), b"".join(pack(Kind.HELLO, body=b"1234"))) != []
    with pytest.raises(LinkError, match="a body of 5 bytes is over the limit of 4"):
        read(FrameReader(4), b"".join(pack(Kind.HELLO, body=b"12345")))


def test_an_unknown_kind_is_an_error() -> None:
    """An unknown kind ends the link."""
    with pytest.raises(LinkError, match="unknown frame kind 200"):
        read(FrameReader(), HEADER.pack(0, 0, 200, 0, 0, 0))


def test_an_unknown_optional_kind_is_skipped() -> None:
    """An unknown kind with the OPTIONAL flag is skipped with its body, and the next frame is
    read."""
    unknown = HEADER.pack(3, 0, 200, Flag.OPTIONAL, 1, 0) + b"mabc"

    frames = read(FrameReader(), unknown + b"".join(pack(Kind.PONG)))

    assert [frame.kind for frame in frames] == [Kind.PONG]


def test_unknown_optional_kinds_are_bounded() -> None:
    """Too many unknown optional frames end the link: they are free for the sender and cost the
    reader CPU."""
    unknown = HEADER.pack(0, 0, 200, Flag.OPTIONAL, 0, 0)
    reader = FrameReader()
    read(reader, unknown * SKIPPED_MAX)

    with pytest.raises(LinkError, match="more than 1000 frames of unknown kinds"):
        read(reader, unknown)


def test_a_header_alone_reserves_next_to_nothing() -> None:
    """Memory is reserved as bytes arrive, not as announced."""
    reader = FrameReader()
    tracemalloc.start()
    try:
        read(reader, HEADER.pack(BODY_MAX, 1, Kind.RESPONSE, 0, 0, 0) + b"x" * LARGE)
        reader.buffer()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 3 * GROWTH


def test_an_unknown_optional_kind_must_be_small() -> None:
    """A large unknown optional frame ends the link instead of being received and dropped."""
    with pytest.raises(LinkError, match="unknown frame kind 200"):
        read(FrameReader(), HEADER.pack(LARGE, 0, 200, Flag.OPTIONAL, 0, 0))


def test_frames_own_their_bytes() -> None:
    """Reading a later frame does not change an earlier one."""
    reader = FrameReader()

    [first] = read(reader, b"".join(pack(Kind.REQUEST, 1, b"first", meta=b"one")))
    read(reader, b"".join(pack(Kind.REQUEST, 2, b"other", meta=b"two")))

    assert (first.meta, first.body) == (b"one", b"first")


def test_a_large_body_is_its_receivers_alone() -> None:
    """The reader keeps no reference to a large body."""
    reader = FrameReader()
    sent = b"".join(bytes(piece) for piece in pack(Kind.RESPONSE, 1, b"x" * 2**20))
    frames: list[Frame] = []
    while sent:
        buffer = reader.buffer()
        count = min(len(buffer), len(sent))
        buffer[:count] = sent[:count]
        sent = sent[count:]
        frames += reader.received(count)
    body = frames[0].body
    assert isinstance(body, bytearray)
    del buffer
    body.append(0)  # raises BufferError while a view of it exists
