"""Ends of answers are found wherever the network cuts them; other bytes are never an answer."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from admin.cli.bench.connection import Broken, Connection
from tests.support.load_target import answer, problem

REQUEST = b"POST / HTTP/1.1\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
INTERIM = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"


@contextmanager
def connected(*, is_head: bool = False) -> Iterator[tuple[Connection, socket.socket]]:
    """A connection that has sent its request, and the server's end."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = Connection(ours, REQUEST, is_head=is_head, calls=0)
        assert connection.send()
        assert theirs.recv(1000) == REQUEST
        yield connection, theirs


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(
    ("data", "status"), [(answer(), 200), (CHUNKED, 200), (INTERIM + answer(404), 404)]
)
def test_an_answer_ends_with_its_last_byte(data: bytes, status: int, size: int) -> None:
    """Lengths, chunks and interim answers are understood; the connection serves a second call."""
    with connected() as (connection, server):
        for _ in range(2):
            for at in range(0, len(data) - 1, size):
                server.sendall(data[at : min(at + size, len(data) - 1)])
                assert connection.receive() == 0
            server.sendall(data[-1:])
            assert connection.receive() == status
            assert connection.is_reusable
            connection.send()
            server.recv(1000)
        assert connection.calls == 2


def test_an_answer_may_end_with_its_connection() -> None:
    """Without a length the end of the connection is the end of the answer (RFC 9112, 6.3)."""
    with connected() as (connection, server):
        server.sendall(b"HTTP/1.1 200 OK\r\n\r\npart")
        assert connection.receive() == 0
        server.close()
        assert connection.receive() == 200
        assert not connection.is_reusable


def test_an_answer_to_head_has_no_body() -> None:
    """The length of such an answer announces nothing."""
    with connected(is_head=True) as (connection, server):
        server.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
        assert connection.receive() == 200
        assert not connection.is_reusable


def test_a_server_may_close_after_its_answer() -> None:
    """Such a connection takes no further call."""
    with connected() as (connection, server):
        server.sendall(answer(200, b"", "Connection: close"))
        assert connection.receive() == 200
        assert not connection.is_reusable


@pytest.mark.parametrize("data", [b"", answer()[:-1], b"HTTP/1.1 2", b"SSH-2.0\r\n\r\n"])
def test_a_part_of_an_answer_is_none(data: bytes) -> None:
    """A connection that ends too early, or says something else, is broken."""
    with connected() as (connection, server):
        server.sendall(data)
        server.close()
        with pytest.raises(Broken, match=r"connection lost|bad answer"):
            sum(iter(connection.receive, None))


def test_bytes_without_a_call_break_the_connection() -> None:
    """An answer without a request must not end the next call."""
    with connected() as (connection, server):
        server.sendall(answer())
        connection.receive()
        server.sendall(answer())
        with pytest.raises(Broken, match="bad answer"):
            connection.receive()


def test_errors_are_named_by_status_and_code() -> None:
    """Only fngate's own problem documents have a code that counts."""
    shown = []
    for data in (problem(429, "queue_full"), answer(503, b'{"code":"mine"}'), answer(500)):
        with connected() as (connection, server):
            server.sendall(data)
            shown.append(connection.kind(connection.receive()))
    assert shown == ["429 queue_full", "503", "500"]


def test_a_large_request_is_sent_in_parts() -> None:
    """What the socket does not take at once is sent later, unchanged."""
    ours, theirs = socket.socketpair()
    body = bytes(range(256)) * 20_000
    with ours, theirs:
        connection = Connection(ours, body, is_head=False, calls=0)
        is_sent, received = connection.send(), bytearray()
        assert not is_sent
        while not is_sent:
            received += theirs.recv(1_000_000)
            is_sent = connection.send_rest()
        while len(received) < len(body):
            received += theirs.recv(1_000_000)
        assert received == body
