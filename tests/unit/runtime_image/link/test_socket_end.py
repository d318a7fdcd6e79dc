"""The replica's end of a link."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from runtime_image.contract.link import Kind
from runtime_image.link.frames import LARGE, Frame, FrameReader, LinkError, pack
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
    """Frames wait for a flush, and a socket without data is not an end of stream."""
    pair[0].send(pack(Kind.PING))

    before = pair[1].receive()
    flushed = pair[0].flush()
    after = pair[1].receive()

    assert before == []
    assert flushed
    assert after is not None
    assert [frame.kind for frame in after] == [Kind.PING]


def test_many_frames_leave_in_order(pair: Pair) -> None:
    """Frames that need several writes arrive complete and in order."""
    for id in range(3 * IOV_MAX):
        pair[0].send(pack(Kind.CANCEL, id))

    assert pair[0].flush()
    frames = pair[1].receive()

    assert frames is not None
    assert [frame.id for frame in frames] == list(range(3 * IOV_MAX))


def test_large_bodies_keep_their_place(pair: Pair) -> None:
    """Small frames are joined in one write, large bodies are not copied, and the order is kept."""
    sizes = [1, LARGE, 2, 3, LARGE, LARGE, 0]
    for id, size in enumerate(sizes):
        pair[0].send(pack(Kind.RESPONSE, id, bytes([id]) * size))

    frames: list[Frame] = []
    while len(frames) < len(sizes):
        pair[0].flush()
        frames += pair[1].receive() or []

    assert [(frame.id, frame.body) for frame in frames] == [
        (id, bytes([id]) * size) for id, size in enumerate(sizes)
    ]


def test_frames_of_two_threads_leave_whole(pair: Pair) -> None:
    """Frames from two threads arrive whole, whichever thread flushes."""
    body = bytes(1000)

    def send(first: int) -> None:
        for id in range(first, first + 100):
            pair[0].send(pack(Kind.RESPONSE, id, body))
            pair[0].flush()

    threads = [threading.Thread(target=send, args=(first,)) for first in (0, 100)]
    for thread in threads:
        thread.start()
    frames: list[Frame] = []
    while len(frames) < 200:
        frames += pair[1].receive() or []
        pair[0].flush()
    for thread in threads:
        thread.join()

    assert sorted(frame.id for frame in frames) == list(range(200))


def test_a_full_socket_keeps_the_rest(pair: Pair) -> None:
    """Bytes that the socket does not accept are kept and sent by later flushes."""
    body = bytes(range(256)) * 20_000
    pair[0].send(pack(Kind.RESPONSE, 1, body))

    assert pair[0].waiting_bytes > len(body)
    done, flushes = False, 0
    frames: list[Frame] = []
    while not frames:
        done = pair[0].flush()
        frames = pair[1].receive() or []
        flushes += 1

    assert done
    assert pair[0].waiting_bytes == 0
    assert flushes > 1
    assert frames[0].body == body


def test_the_end_of_the_stream_is_reported(pair: Pair) -> None:
    """None marks the end, whether the peer closed or the connection broke."""
    pair[1].close()

    assert pair[0].receive() is None


def test_a_broken_connection_is_an_end(pair: Pair) -> None:
    """A reset while receiving counts as an end."""
    pair[0].send(pack(Kind.PING))
    pair[0].flush()
    pair[1].close()  # with a frame unread: the kernel resets the connection

    assert pair[0].receive() is None


def test_writing_to_a_closed_connection_is_an_error(pair: Pair) -> None:
    """A flush to a closed connection raises and drops the pending frames."""
    pair[1].close()
    pair[0].send(pack(Kind.PING))

    with pytest.raises(LinkError, match="cannot write"):
        pair[0].flush()
    assert pair[0].flush()


def test_a_greeting_hands_its_reader_on() -> None:
    """A partial frame read during the handshake is completed by later bytes."""
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
    """Bytes that are not a frame raise instead of waiting for more."""
    pair[1].sock.send(b"\xff" * 16)

    with pytest.raises(LinkError):
        pair[0].receive()


def greeted(takes_descriptor: bool, descriptors: int) -> int | None:
    """Return the descriptors that an end has kept with HELLO; the leak check finds the rest."""
    ours, other = socket.socketpair()
    end = SocketEnd(ours, takes_descriptor=takes_descriptor)
    try:
        socket.send_fds(other, pack(Kind.HELLO), [0] * descriptors)  # type: ignore[list-item]  # small frames are one piece of bytes
        assert end.receive()
        return end.take_descriptor()
    finally:
        end.close()
        other.close()


def test_a_descriptor_beside_the_first_bytes_is_kept() -> None:
    """One descriptor is kept for the owner if the end expects one."""
    descriptor = greeted(True, 1)

    assert descriptor is not None
    assert os.path.samestat(os.fstat(descriptor), os.fstat(0))
    os.close(descriptor)
    assert greeted(True, 0) is None
    assert greeted(False, 1) is None


def test_of_more_descriptors_than_one_the_kernel_closes_the_rest() -> None:
    """Of several descriptors one is kept; the kernel closes the rest."""
    descriptor = greeted(True, 3)

    assert descriptor is not None
    os.close(descriptor)


def test_an_unclaimed_descriptor_is_closed_with_its_end() -> None:
    """An unclaimed descriptor is closed with its end."""
    ours, other = socket.socketpair()
    end = SocketEnd(ours, takes_descriptor=True)
    socket.send_fds(other, [b"x"], [0])

    assert end.receive() == []
    end.close()
    other.close()
