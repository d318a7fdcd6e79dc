"""Tests of the progress that the kernel's counts show, with real sockets."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from runtime_image.server.progress import Progress
from runtime_image.server.slots import Key

REQUEST = b"GET / HTTP/1.1\r\n\r\n"
KEY = Key(1, 1)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a TCP connection: the gateway's, and the server's."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ours = socket.create_connection(listening.getsockname())
        theirs, _ = listening.accept()
    with ours, theirs:
        yield ours, theirs


def ask(ours: socket.socket, theirs: socket.socket, data: bytes = REQUEST) -> None:
    """Send a request; the server reads it."""
    ours.sendall(data)
    left = len(data)
    while left:
        left -= len(theirs.recv(left))


@pytest.mark.parametrize("is_read_before", [True, False])
def test_a_request_is_no_progress(
    pair: tuple[socket.socket, socket.socket], is_read_before: bool
) -> None:
    """A server that closes each connection without an answer never moves, whether a reading falls
    between the connection and its request or not."""
    ours, theirs = pair
    progress = Progress()
    if is_read_before:
        progress.read([(KEY, ours)])
    ask(ours, theirs)
    progress.read([(KEY, ours)])
    theirs.close()
    ours.recv(1)
    progress.ended(KEY, ours)

    assert (progress.moved, progress.given) == (0, 0)


def test_an_answer_is_progress(pair: tuple[socket.socket, socket.socket]) -> None:
    """Its bytes count, also if the exchange was never read before its end."""
    ours, theirs = pair
    progress = Progress()
    ask(ours, theirs)
    theirs.sendall(b"answer")
    assert ours.recv(6) == b"answer"
    progress.ended(KEY, ours)

    assert (progress.moved, progress.given) == (6, 6)


def test_the_rest_of_an_upload_is_progress(pair: tuple[socket.socket, socket.socket]) -> None:
    """What the server takes after the first bytes of a request counts."""
    ours, theirs = pair
    progress = Progress()
    progress.read([(KEY, ours)])
    ask(ours, theirs)
    progress.read([(KEY, ours)])
    ask(ours, theirs, b"a" * 1000)
    # The answer carries the acknowledgement of what was taken.
    theirs.sendall(b"ok")
    assert ours.recv(2) == b"ok"
    progress.read([(KEY, ours)])

    assert (progress.moved, progress.given) == (1002, 2)
