"""Connections without a process: what takes time, and clients that leave."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from python_runner import connections
from python_runner.calls import refuse
from python_runner.connections import Application, Connection, Request, Server

HEAD = b"POST / HTTP/1.1\r\nHost: a\r\n"


@asynccontextmanager
async def connected(
    answer: Application,
) -> AsyncIterator[tuple[Server, asyncio.StreamReader, asyncio.StreamWriter]]:
    """Yield a server and a client's ends of one connection."""
    server = Server(answer, refuse, 100)
    ours, theirs = socket.socketpair()
    await asyncio.get_running_loop().connect_accepted_socket(lambda: Connection(server), ours)
    reader, writer = await asyncio.open_connection(sock=theirs)
    try:
        yield server, reader, writer
    finally:
        writer.close()
        await writer.wait_closed()
        server.drain()
        await server.drained.wait()


async def echo(request: Request, connection: Connection) -> None:
    """Answer with the body."""
    connection.send(200, {}, request.body)


@pytest.mark.parametrize(
    "begun",
    [b"P", HEAD, HEAD + b"Content-Length: 5\r\n\r\n", HEAD + b"Content-Length: 5\r\n\r\nhel"],
)
async def test_a_request_that_stops_in_its_middle_ends(
    begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its head, before its body or in it, with a problem."""
    monkeypatch.setattr(connections, "READ_S", 0.01)
    async with connected(echo) as (_, reader, writer):
        writer.write(begun)
        answer = await reader.read()

    assert answer.startswith(b"HTTP/1.1 408 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "body_timeout"


async def test_an_idle_connection_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time is counted between requests."""
    monkeypatch.setattr(connections, "READ_S", 0.0)
    async with connected(echo) as (server, reader, writer):
        for _ in range(2):
            writer.write(HEAD + b"Content-Length: 2\r\n\r\nhi")
            assert (await reader.readuntil(b"hi")).startswith(b"HTTP/1.1 200 OK")
        assert [one.is_idle for one in server.connections] == [True]


async def test_a_client_that_leaves_cancels_the_answer_once() -> None:
    """What cleans up after it is not cancelled again when the connection ends."""
    begun, cleaned = asyncio.Event(), asyncio.Event()

    async def wait(_request: Request, _connection: Connection) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            cleaned.set()

    async with connected(wait) as (_, _reader, writer):
        writer.write(HEAD + b"Content-Length: 0\r\n\r\n")
        await begun.wait()
        writer.close()
        await cleaned.wait()


async def test_bytes_ahead_of_an_answer_are_bounded() -> None:
    """Reading stops behind 64 KiB, and goes on with the next request."""
    go_on = asyncio.Event()

    async def wait(_request: Request, connection: Connection) -> None:
        await go_on.wait()
        connection.send(200, {}, b"x")

    async with connected(wait) as (server, reader, writer):
        request = HEAD + b"Content-Length: 50\r\n\r\n" + b"y" * 50
        writer.write(request * 8000)
        for _ in range(100):
            await asyncio.sleep(0)
        (ours,) = server.connections
        read = len(ours._buffer)
        go_on.set()
        for _ in range(8000):
            await reader.readuntil(b"\r\n\r\nx")
    assert read <= connections.PIPELINED_MAX + 256 * 1024  # what asyncio reads at once


async def test_a_client_that_does_not_read_its_answers_is_not_read_either() -> None:
    """Of thousands of requests only those are answered whose answers leave; the rest waits."""
    served = 0

    def serve(_request: Request, connection: Connection) -> None:
        nonlocal served
        served += 1
        connection.answer(200, {}, b"x" * 100_000)

    async with connected(serve) as (server, reader, writer):
        writer.write(HEAD + b"Content-Length: 0\r\n\r\n")
        writer.write((HEAD + b"Content-Length: 0\r\n\r\n") * 20_000)
        writer.transport.pause_reading()
        for _ in range(1000):
            await asyncio.sleep(0)
        (ours,) = server.connections
        waiting = ours._transport.get_write_buffer_size()
        before = served
        assert 0 < before < 100
        assert waiting <= 100_000 + 200
        writer.transport.resume_reading()
        while served < before + 20:
            await reader.read(1 << 20)
        writer.transport.abort()


async def test_thousands_of_requests_at_once_are_answered_in_turns() -> None:
    """Without recursion, in order, each in a turn of its own: others get theirs between."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def serve(request: Request, connection: Connection) -> None:
        connection.answer(200, {}, request.body)

    async with connected(serve) as (_, reader, writer):
        others = asyncio.create_task(count())
        writer.write(b"".join(HEAD + b"Content-Length: 4\r\n\r\n%04d" % at for at in range(3000)))
        for at in range(3000):
            assert (await reader.readuntil(b"\r\n\r\n%04d" % at)).startswith(b"HTTP/1.1 200 OK")
        others.cancel()
    assert turns >= 3000


async def test_a_client_that_leaves_is_told_to_who_answers_later() -> None:
    """Once, and not if the answer was finished before."""
    left, begun = asyncio.Event(), asyncio.Event()

    def leaving() -> bool:
        left.set()
        return True

    def serve(request: Request, connection: Connection) -> None:
        connection.leaving = leaving
        if request.body:
            connection.answer(200, {}, b"done")
        begun.set()

    async with connected(serve) as (_, reader, writer):
        writer.write(HEAD + b"Content-Length: 1\r\n\r\nx")
        await reader.readuntil(b"done")
        writer.close()
        await writer.wait_closed()
        assert not left.is_set()
    begun.clear()
    async with connected(serve) as (_, _reader, writer):
        writer.write(HEAD + b"Content-Length: 0\r\n\r\n")
        await begun.wait()
        writer.close()
        await left.wait()
