"""Servers that break the protocol or the connection: each is one clear problem, memory is flat."""

from __future__ import annotations

import asyncio
import json
import re
import tracemalloc
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from pathlib import Path

import pytest

from registry.model.functions import ExchangeLimits
from tests.support.proxied import gate, quiet, until

HOST = b"Host: 127.0.0.1\r\n"
GET = b"GET /fn/web/x HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def code(answer: bytes) -> str:
    """Return the code of a problem document, checked to be a complete answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    found = re.search(rb"(?i)content-length: (\d+)", head)
    assert found is not None
    assert int(found[1]) == len(body)
    return str(json.loads(body)["code"])


def reset(writer: Writer) -> None:
    """Reset the connection."""
    writer.transport.abort()


BAD_HEADS = {
    "no http": b"SSH-2.0-OpenSSH_9\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
    "length and chunks": OK.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n"),
    "folded": b"HTTP/1.1 200 OK\r\nX: y\r\n z\r\n\r\n",
    "101 unasked": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n",
    "no class": OK.replace(b"200", b"903"),
    "no class, interim": b"HTTP/1.1 100 Continue\r\n\r\n" + OK.replace(b"200", b"600"),
    "endless interims": b"HTTP/1.1 100 Continue\r\n\r\n" * 1001,
    "half a head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "nothing": b"",
}


@pytest.mark.parametrize("what", BAD_HEADS)
async def test_no_valid_head(tmp_path: Path, is_fast: bool, what: str) -> None:
    """Bytes that are no valid head, or end too early, are `upstream_failed`."""
    count = 0

    async def serve(reader: Reader, writer: Writer) -> None:
        nonlocal count
        count += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(BAD_HEADS[what])
        await writer.drain()

    async with gate(tmp_path, serve, is_fast=is_fast) as one:
        answer = await one.ask(GET)
        assert answer.startswith(b"HTTP/1.1 502 ")
        assert code(answer) == "upstream_failed"
        assert count == (2 if what == "nothing" else 1)  # GET may be sent twice
        await one.settled()
        assert one.delivery.balance().ended["failed"] == 1


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (OK.replace(b"\r\n", b"\n"), "bare CR or LF"),
        (OK.replace(b"\r\n", b"\r"), "bare CR or LF"),
        (OK.replace(b"\r\n\r\n", b"\n\nHTTP/1.1 200 OK\r\n\r\n"), "bare CR or LF"),
        (b"SSH-2.0-OpenSSH_9\r\n", "a status line"),
        (OK.replace(b"200", b"903"), "a status from 100 to 599, got 903"),
    ],
)
async def test_a_bad_head_is_not_waited_for(
    tmp_path: Path, is_fast: bool, answer: bytes, reason: str
) -> None:
    """A server that has said everything, and waits for the next request, is refused at once: line
    ends other than CRLF would mean another message to another recipient."""
    count = 0

    async def serve(reader: Reader, writer: Writer) -> None:
        nonlocal count
        count += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await reader.read()

    async with gate(tmp_path, serve, is_fast=is_fast) as one:
        got = await one.ask(GET)
        assert got.startswith(b"HTTP/1.1 502 ")
        assert code(got) == "upstream_failed"
        assert reason in str(json.loads(got.partition(b"\r\n\r\n")[2])["detail"])
        assert count == 1
        await one.settled()


@pytest.mark.parametrize(
    "request_",
    [
        GET.replace(b"\r\n", b"\n"),
        GET.replace(b"1.1\r\n", b"1.1\n"),
        GET.replace(b"127.0.0.1\r\n", b"127.0.0.1\n"),
        GET.replace(b"\r\n\r\n", b"\n\n"),
        GET.replace(b"\r\n\r\n", b"\r\n\n"),
        GET.replace(b"\r\n\r\n", b"\n\nGET /fn/web/smuggled HTTP/1.1\r\n" + HOST + b"\r\n"),
    ],
)
@pytest.mark.parametrize("is_split", [True, False])
async def test_a_request_with_other_line_ends_is_refused_at_once(
    tmp_path: Path, is_fast: bool, request_: bytes, is_split: bool
) -> None:
    """Neither is its end waited for, nor is a part of it taken for a request."""
    bare = re.search(rb"(?<!\r)\n", request_)
    assert bare is not None
    count, first = 0, bare.start()

    async def serve(reader: Reader, writer: Writer) -> None:
        nonlocal count
        count += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)

    async with gate(tmp_path, serve, is_fast=is_fast) as one:
        wire = await one.connect()
        if is_split:
            wire.send(request_[:first])
            await quiet(lambda: 0, 20)
        wire.send(request_[first if is_split else 0 :])
        got = await wire.rest()
        assert got.startswith((b"HTTP/1.1 400 ", b"HTTP/1.0 400 "))
        assert got.count(b"HTTP/1.") == 1
        assert count == 0
        wire.close()
        await one.settled()


async def test_an_endless_head_costs_nothing(tmp_path: Path, is_fast: bool) -> None:
    """A server may try to send a gigabyte of header: it is cut off after 64 KiB."""
    written = 0

    async def serve(reader: Reader, writer: Writer) -> None:
        nonlocal written
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while written < 2**30:
            writer.write(b"X: " + b"y" * 65_000 + b"\r\n")
            written += 65_000
            await writer.drain()

    async with gate(tmp_path, serve, is_fast=is_fast) as one:
        tracemalloc.start()
        try:
            answer = await one.ask(GET)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert code(answer) == "upstream_failed"
        assert written < 32 * 2**20  # what the sockets' buffers hold
        assert peak < 4 * 2**20
        await one.settled()


CUTS = {
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nsome",
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nsome\r\n",
    "bad chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nsomeXX",
}


@pytest.mark.parametrize("what", CUTS)
@pytest.mark.parametrize("how", ["close", "reset"])
async def test_an_end_in_the_middle_is_a_cut(
    tmp_path: Path, is_fast: bool, what: str, how: str
) -> None:
    """A client never sees a clean end of an answer that the server did not finish."""
    seen = asyncio.Event()

    async def serve(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(CUTS[what])
        await seen.wait()
        if how == "reset":
            reset(writer)

    async with gate(tmp_path, serve, is_fast=is_fast) as one:
        wire = await one.connect()
        wire.send(GET)
        head = await wire.head()
        seen.set()
        try:
            body = await wire.rest()
        except ConnectionError:
            body = b""
        assert b"0\r\n\r\n" not in body
        assert b"Content-Length: 100" in head or b"chunked" in head
        wire.close()
        await one.settled()
        assert one.delivery.balance().ended["failed"] == 1


async def test_a_reset_of_an_unframed_answer_is_a_reset(tmp_path: Path, is_fast: bool) -> None:
    """Where the end of the connection would be the end of the answer, the client is reset."""
    seen = asyncio.Event()

    async def serve(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nsome")
        await seen.wait()
        writer.transport.get_extra_info("socket").setsockopt(1, 13, b"\1\0\0\0\0\0\0\0")
        reset(writer)

    async with gate(tmp_path, serve, is_fast=is_fast) as one:
        wire = await one.connect()
        wire.send(GET)
        await wire.head()
        seen.set()
        with pytest.raises(ConnectionError):
            await wire.rest()
        wire.close()
        await one.settled()


async def test_surplus_bytes_reach_nobody(tmp_path: Path) -> None:
    """Bytes after a complete answer end the server's connection; the next client gets its own."""
    count = 0

    async def serve(reader: Reader, writer: Writer) -> None:
        nonlocal count
        while True:
            await reader.readuntil(b"\r\n\r\n")
            count += 1
            answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%d" % count
            writer.write(answer + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")

    async with gate(tmp_path, serve) as one:
        wire = await one.connect()
        for number in (1, 2, 3):
            wire.send(GET.replace(b"Connection: close\r\n", b""))
            assert (await wire.answer())[1] == b"%d" % number
        wire.close()
        await one.settled()
        assert not any(frame.flags for frame in one.sidecar.got if frame.kind.name == "END")


async def test_bytes_on_an_idle_connection_end_it(tmp_path: Path) -> None:
    """Bytes that arrive between two requests are never an answer, read by then or not."""
    late = asyncio.Event()
    done = asyncio.Event()

    async def serve(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        if not late.is_set():
            await late.wait()
            writer.write(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 4\r\n\r\nevil")
            await writer.drain()
            done.set()
        await reader.read()

    async with gate(tmp_path, serve) as one:
        wire = await one.connect()
        wire.send(GET.replace(b"Connection: close\r\n", b""))
        assert (await wire.answer())[1] == b"ok"
        late.set()
        await done.wait()
        wire.send(GET)  # the late bytes are at the gateway, perhaps unread
        assert (await wire.answer())[1] == b"ok"
        wire.close()
        await one.settled()


async def test_an_idle_connection_that_closed_is_replaced(tmp_path: Path, is_fast: bool) -> None:
    """A POST on a connection that the server closes at that moment is sent again once."""
    count = 0

    async def serve(reader: Reader, writer: Writer) -> None:
        nonlocal count
        count += 1
        await reader.readuntil(b"\r\n\r\na")
        writer.write(OK)
        if count == 1:
            await reader.readuntil(b"\r\n\r\na")  # the next request, which it drops
        else:
            await reader.read()

    post = b"POST /fn/web/x HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\n"
    async with gate(tmp_path, serve, is_fast=is_fast) as one:
        for _ in range(2):
            answer = await one.ask(post + b"Connection: close\r\n\r\na")
            assert answer.endswith(b"ok")
        await one.settled()
        assert count == 2


async def test_a_post_on_a_fresh_connection_is_not_sent_twice(
    tmp_path: Path, is_fast: bool
) -> None:
    """A server that closes without an answer may have run a POST: 502, and no second run."""
    count = 0

    async def serve(reader: Reader, writer: Writer) -> None:
        nonlocal count
        count += 1
        await reader.readuntil(b"\r\n\r\na")

    post = (
        b"POST /fn/web/x HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nConnection: close\r\n\r\na"
    )
    async with gate(tmp_path, serve, is_fast=is_fast) as one:
        assert code(await one.ask(post)) == "upstream_failed"
        assert count == 1
        await one.settled()


async def test_the_end_of_a_dead_server_is_no_end_of_an_answer(
    tmp_path: Path, is_fast: bool
) -> None:
    """An unframed answer whose replica dies is reset, although its connection ended normally."""
    seen = asyncio.Event()

    async def serve(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nsome")
        await seen.wait()
        writer.close()
        await writer.wait_closed()
        one.sidecar.hang_up()

    async with gate(tmp_path, serve, is_fast=is_fast) as one:
        wire = await one.connect()
        wire.send(GET)
        await wire.head()
        seen.set()
        with pytest.raises(ConnectionError):
            await wire.rest()
        wire.close()
        await one.settled()
        assert one.delivery.balance().ended["failed"] == 1


async def test_the_end_of_a_server_beside_its_sidecar_is_no_end_of_an_answer(
    tmp_path: Path, is_fast: bool
) -> None:
    """An unframed answer is reset if the server listens no more, although its replica's link lives:
    the sidecar's container outlives the server's."""

    async def serve(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nsome")

    async with gate(tmp_path, serve, is_fast=is_fast) as one:
        one.sidecar.listens = False
        wire = await one.connect()
        wire.send(GET)
        await wire.head()
        with pytest.raises(ConnectionError):
            await wire.rest()
        wire.close()
        await one.settled()
        assert one.delivery.balance().ended["failed"] == 1


async def test_a_lost_replica_is_named(tmp_path: Path, is_fast: bool) -> None:
    """If the link to the replica is lost with the connection, the problem is `replica_died`."""
    asked = asyncio.Event()

    async def serve(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\na")
        asked.set()
        await reader.read()

    post = (
        b"POST /fn/web/x HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nConnection: close\r\n\r\na"
    )
    async with gate(tmp_path, serve, is_fast=is_fast) as one:
        wire = await one.connect()
        wire.send(post)
        await asked.wait()
        one.sidecar.hang_up()
        assert code(await wire.rest()) == "replica_died"
        wire.close()
        await one.settled()


async def test_an_early_answer_reaches_a_client_that_uploads(tmp_path: Path, is_fast: bool) -> None:
    """A server that refuses a large body without reading it: its answer arrives all the same."""

    async def serve(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\n\r\nbig")
        await writer.drain()

    size = 8 * 2**20
    async with gate(tmp_path, serve, is_fast=is_fast) as one:
        for _ in range(5):
            wire = await one.connect()
            wire.send(b"POST /fn/web/x HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % size)
            wire.send(bytes(size))
            head, body = await wire.answer()
            assert head.startswith(b"HTTP/1.1 413 ")
            assert b"Connection: close" in head
            assert body == b"big"
            wire.close()
        await one.settled()


async def test_a_server_that_never_reads_or_answers(tmp_path: Path, is_fast: bool) -> None:
    """The upload stops at the sockets' buffers, and the request ends with 504."""
    release = asyncio.Event()

    async def serve(reader: Reader, writer: Writer) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await release.wait()

    limits = ExchangeLimits(first_byte_s=0.0)
    async with gate(tmp_path, serve, is_fast=is_fast, exchange=limits) as one:
        wire = await one.connect()
        wire.send(b"POST /fn/web/x HTTP/1.1\r\n" + HOST + b"Content-Length: 1000000000\r\n\r\n")
        sending = asyncio.create_task(_send_much(wire.writer))
        await until(lambda: bool(one.exchanges.all()))
        await quiet(lambda: sum(each._request_bytes for each in one.exchanges.all()))
        assert one.delivery.held.bytes <= 2**20
        one.sweep()
        one.sweep()
        head, _ = await wire.answer()
        assert head.startswith(b"HTTP/1.1 504 ")
        release.set()
        sending.cancel()
        wire.close()
        await one.settled()


async def _send_much(writer: Writer) -> None:
    while True:
        writer.write(bytes(2**20))
        await writer.drain()


async def test_a_server_that_half_closes(tmp_path: Path, is_fast: bool) -> None:
    """A complete answer counts although the server ends its side; without an answer it is 502."""

    async def serve(reader: Reader, writer: Writer) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"/x" in head:
            writer.write(OK)
        writer.write_eof()
        await reader.read()

    async with gate(tmp_path, serve, is_fast=is_fast) as one:
        assert (await one.ask(GET)).endswith(b"ok")
        assert code(await one.ask(GET.replace(b"/x", b"/y"))) == "upstream_failed"
        await one.settled()


async def test_a_body_for_head_reaches_nobody(tmp_path: Path) -> None:
    """A server that sends a body to HEAD: the client gets none, the connection is not kept."""

    async def serve(reader: Reader, writer: Writer) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(OK)

    async with gate(tmp_path, serve) as one:
        wire = await one.connect()
        wire.send(b"HEAD /fn/web/x HTTP/1.1\r\n" + HOST + b"\r\n")
        await wire.head()
        wire.send(GET)
        assert (await wire.head()).startswith(b"HTTP/1.1 200 ")
        assert await wire.rest() == b"ok"
        wire.close()
        await one.settled()


async def test_a_server_that_speaks_first(tmp_path: Path, is_fast: bool) -> None:
    """A server of another protocol, which greets, is a clear problem or an unused connection."""

    async def serve(reader: Reader, writer: Writer) -> None:
        writer.write(b"220 mail.example ESMTP\r\n\r\n")
        await reader.read()

    async with gate(tmp_path, serve, is_fast=is_fast) as one:
        assert code(await one.ask(GET)) == "upstream_failed"
        await one.settled()


async def test_refused_handshakes(tmp_path: Path, is_fast: bool) -> None:
    """A WebSocket's handshake with a wrong accept is 502; an ordinary answer is passed on."""
    answers = iter(
        [
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Accept: AAAAAAAAAAAAAAAAAAAAAAAAAAA=\r\n\r\n",
            b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno",
        ]
    )

    async def serve(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(next(answers))
        await reader.read()

    handshake = (
        b"GET /fn/web/ws HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    async with gate(tmp_path, serve, is_fast=is_fast) as one:
        assert code(await one.ask(handshake)) == "upstream_failed"
        assert (await one.ask(handshake + b"frames")).endswith(b"no")
        await one.settled()
