"""Tests of reading request bodies."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from gateway import problems
from gateway.http.bodies import LARGE_READ, BodyReceiver, read_body
from registry.errors import FnError

MOST = 1000
CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


async def length(request: web.Request) -> web.Response:
    """The body's length, or why it was not read."""
    try:
        body = await read_body(request, MOST, 0.5)
    except FnError as error:
        return problems.answer(error)
    return problems.json_answer({"length": len(body)})


@pytest.fixture
async def server() -> AsyncIterator[TestServer]:
    """Reads bodies of at most MOST bytes within half a second."""
    app = web.Application()
    app.router.add_post("/", length)
    server = TestServer(app)
    await server.start_server(auto_decompress=False)
    async with server:
        yield server


async def post(server: TestServer, body: Any, **headers: str) -> tuple[int, str]:
    """Send a body: the status, and the length read or the problem's detail."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with (
        ClientSession() as session,
        session.post(server.make_url("/"), data=body, headers=named) as response,
    ):
        document = await response.json(content_type=None)
        return response.status, str(document.get("length", document.get("detail")))


async def raw(server: TestServer, *sent: bytes) -> bytes:
    """Send these bytes as they are; the answer up to the end of its JSON."""
    reader, writer = await asyncio.open_connection(server.host, server.port)
    try:
        for part in sent:
            writer.write(part)
            await writer.drain()
            await post(server, b"")  # a round trip: each part is read on its own
        return await reader.readuntil(b"}")
    finally:
        writer.close()
        await writer.wait_closed()


async def chunks(*sizes: int) -> AsyncIterator[bytes]:
    """A body in chunks of these sizes, its length unannounced."""
    for size in sizes:
        yield b"x" * size


@pytest.mark.parametrize("size", [0, 1, MOST])
async def test_a_body_within_the_limit_is_read_whole(server: TestServer, size: int) -> None:
    """Announced or chunked, every byte up to the limit is taken."""
    assert await post(server, b"x" * size) == (200, str(size))
    assert await post(server, chunks(size // 2, size - size // 2)) == (200, str(size))


async def test_a_body_that_comes_in_parts_is_read_whole(server: TestServer) -> None:
    """Chunks that arrive one by one make one body."""
    answer = await raw(server, CHUNKED, b"3\r\nabc\r\n", b"2\r\nde\r\n", b"0\r\n\r\n")

    assert b'{"length":5}' in answer


async def test_a_body_over_the_limit_is_refused(server: TestServer) -> None:
    """Announced or chunked, in one chunk or many, one byte more is too much."""
    expected = f"expected at most {MOST} bytes, got {MOST + 1} or more"

    assert await post(server, b"x" * (MOST + 1)) == (413, expected)
    assert await post(server, chunks(MOST + 1)) == (413, expected)
    answer = await raw(server, CHUNKED, b"1f4\r\n" + b"x" * 500 + b"\r\n", b"3e8\r\n" + b"x" * 999)
    assert answer.startswith(b"HTTP/1.1 413 ")


async def test_an_announced_body_is_refused_before_it_is_sent(server: TestServer) -> None:
    """Nobody has to send a gigabyte to learn that it is too much."""
    answer = await raw(server, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 413 ")


async def test_a_body_that_does_not_come_is_given_up(server: TestServer) -> None:
    """408 names the seconds, whether nothing came or a part of it."""
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n"

    for part in (b"", b"12345"):
        answer = await raw(server, head + part)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"the body did not arrive within 0.5 s" in answer


async def test_a_compressed_body_counts_as_what_it_becomes(server: TestServer) -> None:
    """A small body that unpacks to a large one is too large, with its length told or not."""
    small, large = gzip.compress(b"x" * 10), gzip.compress(b"x" * 10_000_000)

    assert len(large) > MOST  # so that its announced length refuses it, too
    for encoding, packed in (("gzip", small), ("Deflate", zlib.compress(b"x" * 10))):
        assert await post(server, packed, Content_Encoding=encoding) == (200, "10")
    status, _ = await post(server, gzip.compress(b"x" * 100_000), Content_Encoding="gzip")
    assert status == 413


@pytest.mark.parametrize("packed", [b"no gzip..", gzip.compress(b"abc", mtime=0)[:-1]])
async def test_a_broken_encoding_is_a_bad_request(server: TestServer, packed: bytes) -> None:
    """400 names what cannot be unpacked, and the server lives on."""
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
    answer = await raw(server, head % len(packed), packed)

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"the body cannot be read: it" in answer
    assert await post(server, b"x") == (200, "1")


async def test_an_unknown_encoding_is_refused(server: TestServer) -> None:
    """415 names those that are accepted; "identity" is none at all."""
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Encoding: %s\r\nContent-Length: 1\r\n\r\nx"

    for named in (b"foo", b"br", b"gzip, gzip", b"x-gzip"):
        answer = await raw(server, head % named)
        assert answer.startswith(b"HTTP/1.1 415 ")
        assert b"Accept-Encoding: gzip, deflate\r\n" in answer
    assert (await raw(server, head % b"identity")).startswith(b"HTTP/1.1 200 ")


def test_a_view_is_filled_and_then_let_go() -> None:
    """In as many pieces as come; nothing is received beyond it."""
    body, ends, counts = bytearray(5), [], []
    upload = BodyReceiver(
        memoryview(body), counts.append, lambda: ends.append("received"), ends.append
    )
    for piece in (b"ab", b"cde"):
        buffer = upload.get_buffer(0)
        assert len(buffer) == 5 - body.rstrip(b"\0").__len__()
        buffer[: len(piece)] = piece
        buffer.release()
        upload.buffer_updated(len(piece))

    # The last piece needs no counting: the whole body is a call's from then on.
    assert (bytes(body), ends, counts) == (b"abcde", ["received"], [2])
    assert len(upload.get_buffer(0)) == 0


def test_a_client_that_leaves_before_is_told_of() -> None:
    """With the error, and the view is let go."""
    ends: list[object] = []
    upload = BodyReceiver(
        memoryview(bytearray(5)), ends.append, lambda: ends.append(0), ends.append
    )
    error = ConnectionResetError()
    upload.connection_lost(error)

    assert ends == [error]
    assert len(upload.get_buffer(0)) == 0


def test_large_reads_are_counted_ahead() -> None:
    """Never less than has come, never more than the body; small reads are counted as they come."""
    size = 40 * LARGE_READ
    body, counts = bytearray(size), []
    upload = BodyReceiver(memoryview(body), counts.append, lambda: None, lambda _error: None)
    come = 0
    for read in (1, 2, *[LARGE_READ] * 36, LARGE_READ, LARGE_READ):
        upload.buffer_updated(read)
        come += read
        assert come <= sum(counts) <= size

    assert counts[:2] == [1, 2]
    assert len(counts) < 12
