"""Ends of answers are found wherever the network cuts them; other bytes are never an answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from admin.cli.bench.connection import HEAD_MAX, Connection
from tests.support.load_target import answer, problem

REQUEST = b"POST / HTTP/1.1\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
INTERIM = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"


class Server:
    """The server's end of a connection, and what the connection has reported."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.reports: list[int | str] = []

    async def send(self, data: bytes) -> int | str | None:
        """Send bytes; return what the connection reports of them."""
        before = len(self.reports)
        self.sock.sendall(data)
        return await self._reported(before)

    async def end(self) -> int | str | None:
        """Close this end; return what the connection reports of that."""
        before = len(self.reports)
        self.sock.close()
        return await self._reported(before)

    async def _reported(self, before: int) -> int | str | None:
        for _ in range(4):  # turns of the loop: bytes are here at once
            await asyncio.sleep(0)
        return self.reports[-1] if len(self.reports) > before else None


@asynccontextmanager
async def connected(
    request: bytes = REQUEST, *, is_head: bool = False
) -> AsyncIterator[tuple[Connection, Server]]:
    """A connection that has sent its request, and the server's end, which has read it."""
    ours, theirs = socket.socketpair()
    server = Server(theirs)

    def report(_: Connection, what: int | str) -> None:
        server.reports.append(what)

    _, connection = await asyncio.get_running_loop().create_connection(
        lambda: Connection(report, report, is_head=is_head), sock=ours
    )
    connection.send(request)
    assert request.startswith(theirs.recv(len(REQUEST)))
    with theirs:
        yield connection, server
    connection.close()
    await asyncio.sleep(0)


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(
    ("data", "status"), [(answer(), 200), (CHUNKED, 200), (INTERIM + answer(404), 404)]
)
async def test_an_answer_ends_with_its_last_byte(data: bytes, status: int, size: int) -> None:
    """Lengths, chunks and interim answers are understood; the connection serves a second call."""
    async with connected() as (connection, server):
        for _ in range(2):
            for at in range(0, len(data) - 1, size):
                assert await server.send(data[at : min(at + size, len(data) - 1)]) is None
            assert await server.send(data[-1:]) == status
            assert connection.is_reusable
            connection.send(REQUEST)
            server.sock.recv(1000)


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize("interim", [b"", INTERIM])
async def test_an_answer_may_end_with_its_connection(interim: bytes, size: int) -> None:
    """Without a length the end of the connection is the end of the answer (RFC 9112, 6.3); what its
    body has is none."""
    data = interim + b"HTTP/1.1 200 OK\r\n\r\npart\r\nContent-Length: 1\r\n"
    async with connected() as (connection, server):
        for at in range(0, len(data), size):
            assert await server.send(data[at : at + size]) is None
        await server.end()
        assert server.reports[0] == 200
        assert not connection.is_reusable


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("data", [answer(), CHUNKED, INTERIM + answer()])
async def test_an_answer_with_a_length_does_not_end_before(data: bytes, size: int) -> None:
    """Also where the field arrives after the first read: a part of an answer must not count as an
    answer."""
    async with connected() as (_, server):
        for at in range(0, len(data) - 1, size):
            assert await server.send(data[at : min(at + size, len(data) - 1)]) is None
        await server.end()
        assert server.reports == ["connection lost"]


async def test_a_head_has_a_limit() -> None:
    """A server that never ends it fills no memory."""
    async with connected() as (_, server):
        assert await server.send(b"HTTP/1.1 200 OK\r\n") is None
        for _ in range(HEAD_MAX // 60_000):
            assert await server.send(b"X-Long: " + b"x" * 59_990 + b"\r\n") is None
        assert await server.send(b"X-Long: " + b"x" * 60_000 + b"\r\n") == "bad answer"


async def test_an_idle_connection_that_ends_takes_no_call() -> None:
    """The generator hears of it at once, and not after a call that could not be sent."""
    async with connected() as (_, server):
        assert await server.send(answer()) == 200
        await server.end()
        assert server.reports == [200, "connection lost"]


async def test_an_answer_to_head_has_no_body() -> None:
    """The length of such an answer announces nothing."""
    async with connected(is_head=True) as (connection, server):
        assert await server.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n") == 200
        assert not connection.is_reusable


async def test_a_server_may_close_after_its_answer() -> None:
    """Such a connection takes no further call."""
    async with connected() as (connection, server):
        assert await server.send(answer(200, b"", "Connection: close")) == 200
        assert not connection.is_reusable


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", "connection lost"),
        (answer()[:-1], "connection lost"),
        (b"HTTP/1.1 2", "connection lost"),
        (b"SSH-2.0\r\n\r\n", "bad answer"),
    ],
)
async def test_a_part_of_an_answer_is_none(data: bytes, kind: str) -> None:
    """A connection that ends too early, or says something else, is broken."""
    async with connected() as (_, server):
        await server.send(data)
        await server.end()
        assert server.reports[0] == kind


async def test_bytes_without_a_call_break_the_connection() -> None:
    """An answer without a request must not end the next call."""
    async with connected() as (_, server):
        assert await server.send(answer()) == 200
        assert await server.send(answer()) == "bad answer"


async def test_a_closed_connection_reports_nothing() -> None:
    """Its call has an end by then, as by a time limit."""
    async with connected() as (connection, server):
        connection.close()
        assert await server.send(b"") is None
        assert connection.is_over


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (problem(429, "queue_full"), "429 queue_full"),
        (answer(503, b'{"code":"mine"}'), "503"),
        (answer(500), "500"),
    ],
)
async def test_errors_are_named_by_status_and_code(data: bytes, kind: str) -> None:
    """Only fngate's own problem documents have a code that counts."""
    async with connected() as (connection, server):
        status = await server.send(data)
        assert isinstance(status, int)
        assert connection.kind(status) == kind


async def test_a_large_request_is_sent_in_parts() -> None:
    """What the socket does not take at once is sent later, unchanged; an answer before its end is
    one, after which no call can follow."""
    request = REQUEST + bytes(range(256)) * 20_000
    async with connected(request) as (connection, server):
        assert await server.send(problem(429, "queue_full")) == 429
        assert not connection.is_reusable
        received, loop = bytearray(REQUEST), asyncio.get_running_loop()
        server.sock.setblocking(False)
        while len(received) < len(request):
            received += await loop.sock_recv(server.sock, 1_000_000)
        assert received == request


async def test_a_refusal_of_an_unread_request_is_its_answer() -> None:
    """The server has closed the connection by then, so that the rest cannot be sent."""
    async with connected(REQUEST + bytes(5_000_000)) as (_, server):
        server.sock.sendall(problem(429, "queue_full"))
        await server.end()
        assert server.reports[0] == 429
