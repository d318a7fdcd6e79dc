"""Property tests of the follower of WebSocket frames, against a reader of whole streams."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.proxy.websocket import FrameFollower

OPCODES = st.sampled_from([0, 1, 2, 3, 7, 8, 9, 10, 11, 15])


@st.composite
def frames(draw: st.DrawFn) -> tuple[bytes, list[int], set[int]]:
    """Return a stream, the ends of its frames, and the places of bytes that show data: the last
    byte of a head, and all of the content."""
    stream, ends, shown = b"", [], set()
    for _ in range(draw(st.integers(0, 12))):
        opcode, is_masked = draw(OPCODES), draw(st.booleans())
        is_control = opcode >= 8
        final = 0x80 if is_control or draw(st.booleans()) else 0
        reserved = draw(st.sampled_from([0, 0x40, 0x10]))
        size = draw(st.integers(0, 125) if is_control else st.sampled_from([0, 3, 125, 126, 400]))
        wide = not is_control and draw(st.sampled_from([0, 2, 8]))
        wide = wide or (2 if size > 125 else 0)
        short = {0: size, 2: 126, 8: 127}[wide]
        head = bytes([final | reserved | opcode, (0x80 if is_masked else 0) | short])
        head += size.to_bytes(wide) if wide else b""
        head += b"mask" if is_masked else b""
        begin = len(stream)
        stream += head + b"\x89" * size
        if opcode not in (8, 9, 10):
            shown |= set(range(begin + len(head) - 1, len(stream)))
        ends.append(len(stream))
    return stream, ends, shown


@given(frames(), st.data())
def test_pieces_cut_anywhere(made: tuple[bytes, list[int], set[int]], data: st.DataObject) -> None:
    """Borders and data are known after each piece, however the stream is cut."""
    stream, ends, shown = made
    cuts = data.draw(st.sets(st.integers(0, len(stream)), max_size=30))
    follower, at = FrameFollower(), 0
    for cut in sorted({*cuts, len(stream)}):
        before = follower.data_moved
        follower.feed(stream[at:cut])

        assert follower.is_between is (cut in {0, *ends}), cut
        assert (follower.data_moved > before) is bool(shown & set(range(at, cut))), cut
        assert len(follower._begun) < 14
        at = cut


@given(st.lists(st.binary(max_size=80), max_size=40))
def test_any_bytes_are_followed(pieces: list[bytes]) -> None:
    """Whatever arrives, nothing is raised, the state stays small, and cuts make no difference."""
    follower, whole = FrameFollower(), FrameFollower()
    for piece in pieces:
        follower.feed(piece)
        assert len(follower._begun) < 14
    whole.feed(b"".join(pieces))

    assert follower.is_between is whole.is_between
    assert follower.is_closed is whole.is_closed
