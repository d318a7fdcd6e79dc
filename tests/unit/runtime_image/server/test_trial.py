"""What a trial asks a server besides its samples."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from runtime_image.contract.server import DESCRIPTION, DESCRIPTION_MAX, ServerSpec
from runtime_image.server import trial
from runtime_image.server.connecting import Server
from runtime_image.server.trial import describe_calls

SPEC = ServerSpec("words@1", ("python",), description=DESCRIPTION)


@contextmanager
def answering(*pieces: bytes, ends: bool = True) -> Iterator[Server]:
    """A server that sends these pieces to one client."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(65536)
                for piece in pieces:
                    peer.sendall(piece)
                if not ends:
                    peer.recv(1)  # until the client gives up

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield Server(listener.getsockname()[1], None, is_shared=False)
        finally:
            thread.join()


def head(length: int, status: str = "200 OK") -> bytes:
    """Return the head of an answer."""
    return f"HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n".encode()


def test_a_description_is_a_text() -> None:
    """Nobody has read it; bytes that are no text are replaced."""
    with answering(head(5), b"{\xff}\x00 ") as server:
        assert describe_calls(SPEC, server) == {"description": "{\ufffd}\x00 "}


@pytest.mark.parametrize(
    ("pieces", "told"),
    [
        ((head(0, "404 Not Found"),), "expected 200, got 404 Not Found"),
        ((head(DESCRIPTION_MAX + 1), b"x" * (DESCRIPTION_MAX + 1)), "at most 65536 bytes"),
        ((b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 200_000), "at most 65536 bytes"),
        ((head(10), b"x"), "expected 9 more bytes"),
        ((b"nonsense\r\n\r\n",), "expected an answer, got"),
        ((), "expected an answer, got"),
    ],
)
def test_a_missing_description_has_a_reason(pieces: tuple[bytes, ...], told: str) -> None:
    """The trial goes on."""
    with answering(*pieces) as server:
        found = describe_calls(SPEC, server)

    assert [*found] == ["no_description"]
    assert told in found["no_description"]


def test_a_description_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a time of its own."""
    monkeypatch.setattr(trial, "DESCRIPTION_S", 0.2)
    with answering(head(10), b"x", ends=False) as server:
        assert "no_description" in describe_calls(SPEC, server)


def test_other_servers_are_not_asked() -> None:
    """They have no such path."""
    assert describe_calls(ServerSpec("web@1", ("serve",)), Server(1, None, is_shared=False)) == {}
