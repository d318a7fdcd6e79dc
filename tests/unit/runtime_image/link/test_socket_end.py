"""The replica's end of a link."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from runtime_image.contract.link import Kind
from runtime_image.link.frames import Frame, FrameReader, LinkError, pack
from runtime_image.link.socket_end import IOV_MAX, SocketEnd

Pair = tuple[SocketEnd, SocketEnd]


@pytest.fixture
def pair() -> Iterator[Pair]:
    one, other = socket.socketpair()
    ends = SocketEnd(one), SocketEnd(other)
    yield ends
    for end in ends:
        end.close()


def test_nothing_is_sent_before_a_flush(pair: Pair) -> None:
    """Frames wait for the owner's word, and an empty socket is no end."""
    pair[0].send(pack(Kind.PING))

    before = pair[1].receive()
    flushed = pair[0].flush()
    after = pair[1].receive()

    assert before == []
    assert flushed
    assert after is not None
    assert [frame.kind for frame in after] == [Kind.PING]


def test_many_frames_leave_in_order(pair: Pair) -> None:
    """More pieces than one write takes arrive complete and in order."""
    for id in range(3 * IOV_MAX):
        pair[0].send(pack(Kind.CANCEL, id))

    assert pair[0].flush()
    frames = pair[1].receive()

    assert frames is not None
    assert [frame.id for frame in frames] == list(range(3 * IOV_MAX))


def test_a_full_socket_keeps_the_rest(pair: Pair) -> None:
    """What the socket does not take is kept to the byte and leaves with later flushes."""
    body = bytes(range(256)) * 20_000
    pair[0].send(pack(Kind.RESPONSE, 1, body))

    done, flushes = False, 0
    frames: list[Frame] = []
    while not frames:
        done = pair[0].flush()
        frames = pair[1].receive() or []
        flushes += 1

    assert done
    assert flushes > 1
    assert frames[0].body == body


def test_the_end_of_the_stream_is_told(pair: Pair) -> None:
    """None is the end, whether the other side closed or the connection broke."""
    pair[1].close()

    assert pair[0].receive() is None


def test_a_broken_connection_is_an_end(pair: Pair) -> None:
    """A reset while receiving is an end like any other."""
    pair[0].send(pack(Kind.PING))
    pair[0].flush()
    pair[1].close()  # with a frame unread: the kernel resets the connection

    assert pair[0].receive() is None


def test_writing_to_nobody_is_an_error(pair: Pair) -> None:
    """A flush to a closed connection says so and drops what waited."""
    pair[1].close()
    pair[0].send(pack(Kind.PING))

    with pytest.raises(LinkError, match="cannot write"):
        pair[0].flush()
    assert pair[0].flush()


def test_a_greeting_hands_its_reader_on() -> None:
    """Half a frame that a greeting has read already is completed by what comes next."""
    reader = FrameReader()
    [ping] = pack(Kind.PING, aux=5)
    reader.buffer()[:10] = ping[:10]
    reader.received(10)
    one, other = socket.socketpair()
    end = SocketEnd(one, reader)

    other.send(ping[10:])
    frames = end.receive()
    end.close()
    other.close()

    assert frames is not None
    assert [(frame.kind, frame.aux) for frame in frames] == [(Kind.PING, 5)]


def test_broken_frames_are_an_error(pair: Pair) -> None:
    """Bytes that are no frame raise instead of waiting for more."""
    pair[1].sock.send(b"\xff" * 16)

    with pytest.raises(LinkError):
        pair[0].receive()
