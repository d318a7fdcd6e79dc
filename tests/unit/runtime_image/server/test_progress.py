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

    assert (progress.moved, progress.given) == (1000, 0)


def test_the_beginning_of_an_answer_counts_with_what_follows(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """A hung server may send the head of each stream; the next bytes show that it works."""
    ours, theirs = pair
    progress = Progress()
    moved = []
    ask(ours, theirs)
    for sent in (b"head", b"", b"one", b"two"):
        theirs.sendall(sent)
        assert ours.recv(10) == sent if sent else True
        progress.read([(KEY, ours)])
        moved.append(progress.moved)

    assert moved == [0, 0, 7, 10]
    assert progress.given == 10
    progress.ended(KEY, ours)
    assert progress.moved == 10


@pytest.mark.parametrize("is_read_before", [True, False])
def test_the_beginning_of_a_failed_answer_does_not_count(
    pair: tuple[socket.socket, socket.socket], is_read_before: bool
) -> None:
    """Of an exchange that broke off, or was cut by a limit of time; that of the next one does."""
    ours, theirs = pair
    progress = Progress()
    ask(ours, theirs)
    theirs.sendall(b"head")
    assert ours.recv(4) == b"head"
    if is_read_before:
        progress.read([(KEY, ours)])
    progress.failed(KEY)
    theirs.close()
    progress.ended(KEY, ours)

    assert (progress.moved, progress.given) == (0, 0)
    progress.ended(KEY, ours)
    assert (progress.moved, progress.given) == (4, 4)


def test_a_kept_connection_begins_anew(pair: tuple[socket.socket, socket.socket]) -> None:
    """Its next answer is another one. The end of each whole answer is progress."""
    ours, theirs = pair
    other = Key(1, 2)
    progress = Progress()
    for key, old in ((KEY, None), (other, KEY)):
        if old is not None:
            progress.rename(old, key)
        theirs.sendall(b"head")
        assert ours.recv(4) == b"head"
        progress.read([(key, ours)])
        assert progress.given == (4 if key is other else 0)
        progress.kept(key)
    progress.ended(other, ours)

    assert (progress.moved, progress.given) == (10, 8)
