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
    """Answer the body's length, or the problem of reading it."""
    try:
        body = await read_body(request, MOST, 0.5)
    except FnError as error:
        return problems.response_of(problems.reply(error))
    return problems.json_answer({"length": len(body)})


@pytest.fixture
async def server() -> AsyncIterator[TestServer]:
    """Server that reads bodies of at most MOST bytes within half a second."""
    app = web.Application()
    app.router.add_post("/", length)
    server = TestServer(app)
    await server.start_server(auto_decompress=False)
    async with server:
        yield server


async def post(server: TestServer, body: Any, **headers: str) -> tuple[int, str]:
    """Send a body; return the status, and the length read or the problem's detail."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with (
        ClientSession() as session,
        session.post(server.make_url("/"), data=body, headers=named) as response,
    ):
        document = await response.json(content_type=None)
        return response.status, str(document.get("length", document.get("detail")))


async def raw(server: TestServer, *sent: bytes) -> bytes:
    """Send raw bytes in separate reads; return the answer up to the end of its JSON."""
    reader, writer = await asyncio.open_connection(server.host, server.port)
    try:
        for part in sent:
            writer.write(part)
            await writer.drain()
            await post(server, b"")  # a round trip, so that the server reads each part separately
        return await reader.readuntil(b"}")
    finally:
        writer.close()
        await writer.wait_closed()


async def chunks(*sizes: int) -> AsyncIterator[bytes]:
    """Yield a body in chunks of these sizes, without a Content-Length."""
    for size in sizes:
        yield b"x" * size


@pytest.mark.parametrize("size", [0, 1, MOST])
async def test_a_body_within_the_limit_is_read_whole(server: TestServer, size: int) -> None:
    """A body up to the limit is read, with Content-Length or chunked."""
    assert await post(server, b"x" * size) == (200, str(size))
    assert await post(server, chunks(size // 2, size - size // 2)) == (200, str(size))


async def test_a_body_that_comes_in_parts_is_read_whole(server: TestServer) -> None:
    """Chunks that arrive one by one form one body."""
    answer = await raw(server, CHUNKED, b"3\r\nabc\r\n", b"2\r\nde\r\n", b"0\r\n\r\n")

    assert b'{"length":5}' in answer


async def test_a_body_over_the_limit_is_refused(server: TestServer) -> None:
    """One byte over the limit is refused, with Content-Length or in any number of chunks."""
    expected = f"expected at most {MOST} bytes, got {MOST + 1} or more"

    assert await post(server, b"x" * (MOST + 1)) == (413, expected)
    assert await post(server, chunks(MOST + 1)) == (413, expected)
    answer = await raw(server, CHUNKED, b"1f4\r\n" + b"x" * 500 + b"\r\n", b"3e8\r\n" + b"x" * 999)
    assert answer.startswith(b"HTTP/1.1 413 ")


async def test_an_announced_body_is_refused_before_it_is_sent(server: TestServer) -> None:
    """A Content-Length over the limit is refused before the body is sent."""
    answer = await raw(server, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 413 ")


async def test_a_body_that_does_not_arrive_is_given_up(server: TestServer) -> None:
    """The 408 names the time limit, whether no byte or a part of the body arrived."""
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n"

    for part in (b"", b"12345"):
        answer = await raw(server, head + part)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"the body did not arrive within 0.5 s" in answer


async def test_a_compressed_body_counts_decompressed(server: TestServer) -> None:
    """A compressed body is refused if its decompressed size is over the limit."""
    small, large = gzip.compress(b"x" * 10), gzip.compress(b"x" * 10_000_000)

    assert len(large) > MOST  # over the limit by its Content-Length already
    for encoding, packed in (("gzip", small), ("Deflate", zlib.compress(b"x" * 10))):
        assert await post(server, packed, Content_Encoding=encoding) == (200, "10")
    status, _ = await post(server, gzip.compress(b"x" * 100_000), Content_Encoding="gzip")
    assert status == 413


@pytest.mark.parametrize("packed", [b"no gzip..", gzip.compress(b"abc", mtime=0)[:-1]])
async def test_a_broken_encoding_is_a_bad_request(server: TestServer, packed: bytes) -> None:
    """The 400 names the cause, and the server keeps serving."""
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
    answer = await raw(server, head % len(packed), packed)

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"the body cannot be read: it" in answer
    assert await post(server, b"x") == (200, "1")


async def test_an_unknown_encoding_is_refused(server: TestServer) -> None:
    """The 415 lists the accepted encodings; "identity" means none."""
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Encoding: %s\r\nContent-Length: 1\r\n\r\nx"

    for named in (b"foo", b"br", b"gzip, gzip", b"x-gzip"):
        answer = await raw(server, head % named)
        assert answer.startswith(b"HTTP/1.1 415 ")
        assert b"Accept-Encoding: gzip, deflate\r\n" in answer
    assert (await raw(server, head % b"identity")).startswith(b"HTTP/1.1 200 ")


def test_a_receiver_fills_its_view_and_releases_it() -> None:
    """A body arrives in any number of pieces; no byte beyond it is received."""
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

    # The last piece is not counted: from then on the call accounts for the whole body.
    assert (bytes(body), ends, counts) == (b"abcde", ["received"], [2])
    assert len(upload.get_buffer(0)) == 0


def test_a_lost_connection_ends_the_upload() -> None:
    """The error is passed on, and the view is released."""
    ends: list[object] = []
    upload = BodyReceiver(
        memoryview(bytearray(5)), ends.append, lambda: ends.append(0), ends.append
    )
    error = ConnectionResetError()
    upload.connection_lost(error)

    assert ends == [error]
    assert len(upload.get_buffer(0)) == 0


def test_an_upload_that_was_replaced_holds_no_memory() -> None:
    """A transport may keep the protocol that was replaced: its memory is free nevertheless."""
    body = bytearray(5)
    upload = BodyReceiver(memoryview(body), print, print, print)
    with pytest.raises(BufferError):
        body.clear()
    upload.drop()
    body.clear()


def test_large_reads_are_counted_ahead() -> None:
    """The count is never below the bytes received and never above the body's size; small reads are
    counted one by one."""
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
