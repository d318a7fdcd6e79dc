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


def test_large_bodies_keep_their_place(pair: Pair) -> None:
    """Small frames are written as one piece, large bodies are not copied, and all stay in order."""
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
    """Who sends and who flushes does not matter."""
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


def greeted(takes_descriptor: bool, descriptors: int) -> int | None:
    """What an end has taken beside a HELLO; the leak check sees what it left open."""
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
    """One is the owner's to take, where the end was told to expect it."""
    descriptor = greeted(True, 1)

    assert descriptor is not None
    assert os.path.samestat(os.fstat(descriptor), os.fstat(0))
    os.close(descriptor)
    assert greeted(True, 0) is None
    assert greeted(False, 1) is None


def test_of_more_descriptors_than_one_the_kernel_closes_the_rest() -> None:
    """There is room for one."""
    descriptor = greeted(True, 3)

    assert descriptor is not None
    os.close(descriptor)


def test_a_descriptor_that_nobody_takes_is_closed_with_its_end() -> None:
    """A link may end before its owner looks; the leak check sees it otherwise."""
    ours, other = socket.socketpair()
    end = SocketEnd(ours, takes_descriptor=True)
    socket.send_fds(other, [b"x"], [0])

    assert end.receive() == []
    end.close()
    other.close()
