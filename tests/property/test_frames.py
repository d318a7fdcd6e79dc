"""Property tests of frames: any split is read correctly, and noise raises only LinkError."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from runtime_image.contract.link import HEADER, ID_MAX, Flag, Kind
from runtime_image.link.frames import LARGE, SCRATCH_SIZE, Frame, FrameReader, LinkError, pack

sizes = st.one_of(
    st.integers(0, 40),
    st.sampled_from([LARGE - 1, LARGE, LARGE + 1, SCRATCH_SIZE - HEADER.size, 2 * SCRATCH_SIZE]),
)
frames = st.builds(
    Frame,
    st.sampled_from(Kind),
    st.integers(0, 255),
    st.integers(0, ID_MAX),
    st.integers(0, 2**32 - 1),
    st.binary(max_size=50),
    st.builds(lambda size, seed: bytes([seed]) * size, sizes, st.integers(0, 255)),
)


def packed(frame: Frame) -> bytes:
    return b"".join(
        pack(frame.kind, frame.id, frame.body, meta=frame.meta, flags=frame.flags, aux=frame.aux)
    )


def feed(reader: FrameReader, data: bytes) -> list[Frame]:
    got: list[Frame] = []
    while data:
        room = reader.buffer()
        assert len(room) > 0
        count = min(len(room), len(data))
        room[:count] = data[:count]
        data = data[count:]
        got += reader.received(count)
    return got


@settings(max_examples=60, deadline=None)
@given(st.lists(frames, max_size=6), st.data())
def test_frames_survive_any_split(sent: list[Frame], draw: st.DataObject) -> None:
    """Whatever the boundaries of the reads, the same frames are read."""
    data = b"".join(map(packed, sent))
    cuts = draw.draw(st.lists(st.integers(0, len(data)), max_size=8).map(sorted))
    reader = FrameReader()

    got = [
        frame
        for start, stop in pairwise([0, *cuts, len(data)])
        for frame in feed(reader, data[start:stop])
    ]

    assert got == sent


@settings(max_examples=30, deadline=None)
@given(st.lists(frames, min_size=1, max_size=3))
def test_a_frame_is_delivered_with_its_last_byte(sent: list[Frame]) -> None:
    """A frame does not wait for the first byte of the next one."""
    reader = FrameReader()

    for frame in sent:
        data = packed(frame)
        assert feed(reader, data[:-1]) == []
        assert feed(reader, data[-1:]) == [frame]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=200), max_size=10))
def test_noise_only_raises_link_errors(pieces: list[bytes]) -> None:
    """Random bytes are frames, incomplete, or raise LinkError."""
    reader = FrameReader(body_max=10_000)

    try:
        for piece in pieces:
            for frame in feed(reader, piece):
                assert isinstance(frame.kind, Kind)
    except LinkError:
        pass


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 255).filter(lambda kind: kind not in set(Kind)),
    st.binary(max_size=30),
    st.binary(max_size=30),
)
def test_unknown_optional_frames_leave_no_trace(kind: int, meta: bytes, body: bytes) -> None:
    """An unknown frame with the flag OPTIONAL does not affect the frames around it."""
    unknown = HEADER.pack(len(body), 0, kind, Flag.OPTIONAL, len(meta), 0) + meta + body
    ping = b"".join(pack(Kind.PING))

    assert [frame.kind for frame in feed(FrameReader(), ping + unknown + ping)] == [Kind.PING] * 2
