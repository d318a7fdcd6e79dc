"""Exchanges through both client sides: what clients and servers get, and what is left."""

from __future__ import annotations

import asyncio
import json
import re
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from pathlib import Path

import pytest

from gateway.http import exchange_client
from gateway.metrics.counters import TEXT
from gateway.settings import GatewaySettings
from registry.model.functions import ExchangeLimits, Limits
from registry.model.parks import ENGINES, ParkSettings
from registry.model.servers import PathRules
from tests.support.proxied import KEY, Gate, gate, quiet, until, warm

HOST = b"Host: 127.0.0.1\r\n"
GET = b"GET /fn/web/x HTTP/1.1\r\n" + HOST + b"\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
ACCEPT_KEY = b"dGhlIHNhbXBsZSBub25jZQ=="
HANDSHAKE = (
    b"GET /fn/web/ws HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + ACCEPT_KEY + b"\r\n\r\n"
)
SWITCHED = (
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
)
KEYS = {"fn_key-of-a-caller": ("invoke:web",), "fn_key-of-another": ("invoke:digits",)}


async def head_of(reader: Reader) -> bytes:
    """Return the next head that the server gets."""
    return await reader.readuntil(b"\r\n\r\n")


async def body_of(head: bytes, reader: Reader) -> bytes:
    """Return the body of a request with a length or with chunks."""
    length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
    if length:
        return await reader.readexactly(int(length[1]))
    if b"chunked" not in head:
        return b""
    body = b""
    while size := int((await reader.readuntil(b"\r\n")).strip(), 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")
    return body


async def echo(reader: Reader, writer: Writer) -> None:
    """Answer each request with its first line and its body."""
    while True:
        head = await head_of(reader)
        body = await body_of(head, reader)
        text = head.partition(b"\r\n")[0] + b"|" + body
        if head.startswith(b"HEAD"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n")
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text))


def problem(answer: bytes) -> dict[str, object]:
    """Return the problem document of an answer."""
    found: dict[str, object] = json.loads(answer.partition(b"\r\n\r\n")[2])
    return found


async def test_a_request_and_its_answer(tmp_path: Path, is_fast: bool) -> None:
    """Path, query and body arrive as sent, and the answer names the replica and its times."""
    async with gate(tmp_path, echo, is_fast=is_fast) as one:
        answer = await one.ask(
            b"POST /fn/web/a%2Fb/./c?x=%00 HTTP/1.1\r\n"
            + HOST
            + b"Connection: close\r\nContent-Length: 3\r\n\r\nabc"
        )
        head, _, body = answer.partition(b"\r\n\r\n")
        assert body == b"POST /a%2Fb/./c?x=%00 HTTP/1.1|abc"
        assert b'Server-Timing: replica;desc="web", queue;dur=' in head
        assert b", first_byte;dur=" in head
        assert b"\r\nFn-Revision: web@1" in head
        assert b"\r\nX-Request-Id: " in head
        assert b"\r\nConnection: close" in head
        await one.settled()


async def test_the_bare_name_is_the_root_except_for_reading(tmp_path: Path, is_fast: bool) -> None:
    """POST on the name goes to `/`, GET on it is the description, a page is redirected (relatively:
    a proxy may stand before the path)."""
    async with gate(tmp_path, echo, is_fast=is_fast) as one:
        close = HOST + b"Connection: close\r\n"
        post = b"POST /fn/web HTTP/1.1\r\n" + close + b"Content-Length: 2\r\n\r\nab"
        assert (await one.ask(post)).endswith(b"POST / HTTP/1.1|ab")
        described = await one.ask(b"GET /fn/web HTTP/1.1\r\n" + close + b"\r\n")
        assert problem(described)["kind"] == "http"
        assert b"/fn/web/" in str(problem(described)["example"]).encode()
        page = b"GET /fn/web HTTP/1.1\r\n" + close + b"Accept: text/html,*/*;q=0.8\r\n\r\n"
        moved = await one.ask(page)
        assert moved.startswith(b"HTTP/1.1 308 ")
        assert b"Location: web/\r\n" in moved


async def test_a_server_has_the_path_of_its_document(tmp_path: Path, is_fast: bool) -> None:
    """A server function answers at NAME/openapi.json itself; of a model the gateway does."""
    async with gate(tmp_path, echo, is_fast=is_fast) as one:
        rest = b"/openapi.json HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
        assert (await one.ask(b"GET /fn/web" + rest)).endswith(b"GET /openapi.json HTTP/1.1|")
        assert problem(await one.ask(b"GET /fn/digits" + rest))["openapi"] == "3.1.1"
        assert (await one.ask(b"GET /fn/nobody" + rest)).startswith(b"HTTP/1.1 404 ")
        assert (await one.ask(b"PUT /fn/digits" + rest)).startswith(b"HTTP/1.1 404 ")
        await one.settled()


async def test_a_model_has_no_paths(tmp_path: Path, is_fast: bool) -> None:
    """A path below a model, and one below an unknown function, are 404."""
    async with gate(tmp_path, echo, is_fast=is_fast) as one:
        for name in (b"digits", b"nobody"):
            asked = b"GET /fn/" + name + b"/x HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
            assert (await one.ask(asked)).startswith(b"HTTP/1.1 404 ")
        await one.settled()


async def test_connections_are_reused_on_both_sides(tmp_path: Path) -> None:
    """Requests in turns, also pipelined ones, share the client's and the server's connection."""
    async with gate(tmp_path, echo) as one:
        wire = await one.connect()
        for number in (b"1", b"2"):
            wire.send(b"GET /fn/web/" + number + b" HTTP/1.1\r\n" + HOST + b"\r\n")
            assert (await wire.answer())[1] == b"GET /" + number + b" HTTP/1.1|"
        post = b"POST /fn/web/p HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\n\r\n"
        wire.send(post + b"a" + post + b"b" + GET)
        bodies = [(await wire.answer())[1][-2:] for _ in range(3)]
        assert bodies == [b"|a", b"|b", b"1|"]
        assert one.fast is not None
        assert not one.handed_over
        wire.close()
        await one.settled()
        opened = [frame for frame in one.sidecar.got if frame.kind.name == "OPEN"]
        assert sum(not frame.flags for frame in opened) == 1


async def test_a_request_behind_a_refused_one_is_answered(tmp_path: Path) -> None:
    """Pipelined requests are answered in turn, also if the first one is denied."""
    async with gate(tmp_path, echo, paths=PathRules(deny=("/x",))) as one:
        wire = await one.connect()
        for _ in range(3):
            wire.send(GET + GET.replace(b"/x", b"/y") + GET)
            statuses = [(await wire.answer())[0][9:12] for _ in range(3)]
            assert statuses == [b"403", b"200", b"403"]
        wire.close()
        await one.settled()


async def test_heads_in_pieces_stay_on_the_fast_side(tmp_path: Path) -> None:
    """A head that arrives byte by byte after its first line is read by the fast side."""
    async with gate(tmp_path, echo) as one:
        wire = await one.connect()
        line, rest = GET.split(b"\r\n", 1)
        wire.send(line + b"\r\n")
        for byte in rest:
            await asyncio.sleep(0)
            wire.send(bytes([byte]))
        assert (await wire.answer())[1] == b"GET /x HTTP/1.1|"
        assert not one.handed_over
        wire.close()


async def test_heads_are_bounded_in_size_and_time(tmp_path: Path) -> None:
    """A head beyond 32 KiB gets 431, a slow one 408."""
    settings = GatewaySettings(port=0, head_read_s=1)
    async with gate(tmp_path, echo, settings=settings) as one:
        long = b"GET /fn/web/x HTTP/1.1\r\n" + b"X: " + b"y" * 40_000
        assert (await one.ask(long)).startswith(b"HTTP/1.1 431 ")
        wire = await one.connect()
        wire.send(GET[:-2])
        assert one.fast is not None
        await until(lambda: one.delivery.held.bytes > 0)
        one.sweep()
        one.sweep()
        assert (await wire.rest()).startswith(b"HTTP/1.1 408 ")
        wire.close()
        await one.settled()


async def test_chunked_bodies_pass_both_ways(tmp_path: Path, is_fast: bool) -> None:
    """A chunked request and a chunked answer arrive whole; HTTP/1.0 gets the content alone."""

    async def serve(reader: Reader, writer: Writer) -> None:
        head = await head_of(reader)
        body = await body_of(head, reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for piece in (body[:2], body[2:]):
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        writer.write(b"0\r\n\r\n")

    async with gate(tmp_path, serve, is_fast=is_fast) as one:
        sent = b"POST /fn/web/ HTTP/1.1\r\n" + HOST + b"Connection: close\r\n"
        chunks = b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
        answer = await one.ask(sent + chunks)
        assert answer.endswith(b"\r\n\r\n2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n")
        old = b"POST /fn/web/ HTTP/1.0\r\n" + HOST + b"Content-Length: 5\r\n\r\nabcde"
        answer = await one.ask(old)
        assert answer.endswith(b"\r\n\r\nabcde")
        assert b"chunked" not in answer
        await one.settled()


async def test_head_204_and_304_have_no_body(tmp_path: Path) -> None:
    """Answers without a body end with their head, and the connection serves the next request."""
    statuses = iter([b"204 No Content", b"304 Not Modified"])

    async def serve(reader: Reader, writer: Writer) -> None:
        while True:
            head = await head_of(reader)
            if head.startswith(b"HEAD"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 700\r\n\r\n")
            else:
                writer.write(b"HTTP/1.1 " + next(statuses) + b"\r\nETag: x\r\n\r\n")

    async with gate(tmp_path, serve) as one:
        wire = await one.connect()
        wire.send(GET.replace(b"GET", b"HEAD", 1))
        assert b"Content-Length: 700" in await wire.head()
        for status in (b"204", b"304"):
            wire.send(GET)
            assert (await wire.head()).startswith(b"HTTP/1.1 " + status)
        wire.close()
        await one.settled()


async def test_interim_answers_and_expectations(tmp_path: Path, is_fast: bool) -> None:
    """100 and 103 of the server reach the client before the answer."""

    async def serve(reader: Reader, writer: Writer) -> None:
        head = await head_of(reader)
        assert b"Expect: 100-continue" in head
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await body_of(head, reader)
        writer.write(OK)

    async with gate(tmp_path, serve, is_fast=is_fast) as one:
        wire = await one.connect()
        wire.send(
            b"POST /fn/web/ HTTP/1.1\r\n"
            + HOST
            + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n"
        )
        assert (await wire.head()).startswith(b"HTTP/1.1 103 ")
        assert (await wire.head()).startswith(b"HTTP/1.1 100 ")
        wire.send(b"abc")
        assert (await wire.answer())[1] == b"ok"
        wire.close()
        await one.settled()


async def test_events_arrive_one_by_one(tmp_path: Path, is_fast: bool) -> None:
    """Each event of a stream reaches the client before the server sends the next."""
    step = asyncio.Semaphore(0)

    async def serve(reader: Reader, writer: Writer) -> None:
        await head_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        for number in range(3):
            writer.write(b"data: %d\n\n" % number)
            await step.acquire()

    async with gate(tmp_path, serve, is_fast=is_fast) as one:
        wire = await one.connect()
        wire.send(GET)
        await wire.head()
        for number in range(3):
            assert await wire.exactly(9) == b"data: %d\n\n" % number
            step.release()
        assert await wire.rest() == b""
        wire.close()
        await one.settled()


async def test_a_held_request_is_sent_when_the_replica_is_there(
    tmp_path: Path, is_fast: bool
) -> None:
    """A cold function's request waits with its body, and the answer tells of the cold start."""
    async with gate(tmp_path, echo, is_fast=is_fast, is_cold=True) as one:
        wire = await one.connect()
        wire.send(b"POST /fn/web/c HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nabc")
        await until(lambda: one.delivery.held.bytes >= 3)
        assert one.delivery.loads()[KEY].queued == 1
        await warm(one)
        head, body = await wire.answer()
        assert body == b"POST /c HTTP/1.1|abc"
        assert b'cold;desc="web@1 on cpu:0", load;dur=5.000' in head
        wire.close()
        await one.settled()


async def test_a_held_request_keeps_no_more_than_its_prefix(tmp_path: Path, is_fast: bool) -> None:
    """While a request is held, reading its body stops at a mebibyte; then all of it arrives."""
    got = asyncio.get_running_loop().create_future()

    async def serve(reader: Reader, writer: Writer) -> None:
        head = await head_of(reader)
        got.set_result(await body_of(head, reader))
        writer.write(OK)

    size = 24 * 2**20
    async with gate(tmp_path, serve, is_fast=is_fast, is_cold=True) as one:
        wire = await one.connect()
        wire.send(b"POST /fn/web/ HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % size)
        wire.send(bytes(size))
        await until(lambda: one.delivery.held.bytes >= 2**20)
        assert await quiet(lambda: one.delivery.held.bytes) < 2**20 + 512 * 1024
        await warm(one)
        assert (await wire.answer())[1] == b"ok"
        assert await got == bytes(size)
        wire.close()
        await one.settled()


async def test_a_client_that_leaves_while_held_leaves_the_queue(
    tmp_path: Path, is_fast: bool
) -> None:
    """A held request of a client that left is cancelled and logged as such."""
    async with gate(tmp_path, echo, is_fast=is_fast, is_cold=True) as one:
        wire = await one.connect()
        wire.send(GET)
        await until(lambda: KEY in one.delivery.loads())
        wire.close()
        await one.settled()
        assert one.delivery.balance().ended["cancelled"] == 1


async def test_a_client_that_leaves_ends_the_servers_work(tmp_path: Path, is_fast: bool) -> None:
    """The server of a silent stream sees the end of its connection when the client leaves."""
    ended = asyncio.Event()

    async def serve(reader: Reader, writer: Writer) -> None:
        await head_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nfirst")
        try:
            await reader.read()
        finally:
            ended.set()

    async with gate(tmp_path, serve, is_fast=is_fast) as one:
        wire = await one.connect()
        wire.send(GET)
        await wire.head()
        wire.close()
        await asyncio.wait_for(ended.wait(), 60)
        await one.settled()
        assert one.delivery.balance().ended["cancelled"] == 1


async def test_a_slow_reader_stops_the_server(tmp_path: Path, is_fast: bool) -> None:
    """An answer that nobody reads stops being read from the server: memory stays flat."""
    written = 0

    async def serve(reader: Reader, writer: Writer) -> None:
        nonlocal written
        await head_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while written < 200 * 2**20:
            writer.write(bytes(2**20))
            written += 2**20
            await writer.drain()

    async with gate(tmp_path, serve, is_fast=is_fast) as one:
        wire = await one.connect()
        wire.send(GET)
        await wire.head()
        await quiet(lambda: written)
        assert written < 60 * 2**20  # the sockets' buffers on both sides
        got = 0
        while got < 200 * 2**20:
            got += len(await asyncio.wait_for(wire.reader.read(2**20), 60))
        wire.close()
        await one.settled()


async def test_a_websocket_is_a_tunnel(tmp_path: Path, is_fast: bool) -> None:
    """After a right 101 bytes pass both ways, also those sent too early, and half-closing works."""

    async def serve(reader: Reader, writer: Writer) -> None:
        await head_of(reader)
        writer.write(SWITCHED + b"hello")
        while data := await reader.read(100):
            writer.write(data.upper())
        writer.write(b"bye")

    async with gate(tmp_path, serve, is_fast=is_fast) as one:
        wire = await one.connect()
        wire.send(HANDSHAKE + b"early")
        assert (await wire.head()).startswith(b"HTTP/1.1 101 ")
        assert sorted(await wire.exactly(10)) == sorted(b"helloEARLY")
        wire.send(b"more")
        assert await wire.exactly(4) == b"MORE"
        wire.writer.write_eof()
        assert await wire.rest() == b"bye"
        wire.close()
        await one.settled()


async def test_a_websocket_moves_much_in_both_directions(tmp_path: Path, is_fast: bool) -> None:
    """A tunnel passes megabytes both ways at once, in order."""
    size = 4 * 2**20

    async def serve(reader: Reader, writer: Writer) -> None:
        await head_of(reader)
        writer.write(SWITCHED)
        left = size
        while left:
            data = await reader.read(2**16)
            left -= len(data)
            writer.write(data)
            await writer.drain()
        await reader.read()

    async with gate(tmp_path, serve, is_fast=is_fast) as one:
        wire = await one.connect()
        wire.send(HANDSHAKE)
        await wire.head()
        sent = bytes(range(256)) * (size // 256)
        wire.send(sent)
        assert await wire.exactly(size) == sent
        wire.close()
        await one.settled()


async def test_time_limits(tmp_path: Path, is_fast: bool) -> None:
    """No first byte gives 504; `max_s` and `stall_s` end a stream so that the client sees it
    incomplete. Each has the server probed."""

    async def serve(reader: Reader, writer: Writer) -> None:
        head = await head_of(reader)
        if b"/stream" in head:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nx")
        await reader.read()

    limits = ExchangeLimits(first_byte_s=0.0, max_s=600)
    async with gate(tmp_path, serve, is_fast=is_fast, exchange=limits) as one:
        wire = await one.connect()
        wire.send(b"GET /fn/web/x HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")
        await _opened(one)
        one.sweep()
        assert problem(await wire.rest())["code"] == "upstream_timeout"
        wire.close()
        await one.settled()
        assert one.sidecar.kinds().count("UNANSWERED") == 1
    for number, limits in enumerate((ExchangeLimits(max_s=0.05), ExchangeLimits(stall_s=0.05))):
        path = tmp_path / str(number)
        async with gate(path, serve, is_fast=is_fast, exchange=limits) as one:
            wire = await one.connect()
            wire.send(GET.replace(b"/x", b"/stream"))
            await wire.head()
            await until(lambda: one.sweep() or not one.exchanges.all())
            assert await wire.rest() == b"x"
            wire.close()
            await one.settled()
            assert one.sidecar.kinds().count("UNANSWERED") == 1


@pytest.mark.parametrize(
    "sent", [b"Content-Length: 100\r\n\r\nx", b"Transfer-Encoding: chunked\r\n\r\n!\r\n"]
)
async def test_a_server_that_breaks_off_its_answer_is_probed(
    tmp_path: Path, is_fast: bool, sent: bytes
) -> None:
    """It closes the connection, or writes what is no HTTP. The client gets no clean end."""

    async def serve(reader: Reader, writer: Writer) -> None:
        await head_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n" + sent)
        writer.close()

    async with gate(tmp_path, serve, is_fast=is_fast) as one:
        wire = await one.connect()
        wire.send(GET)
        await wire.head()
        assert not (await wire.rest()).endswith(b"0\r\n\r\n")
        wire.close()
        await one.settled()
        assert one.sidecar.kinds().count("UNANSWERED") == 1


async def _opened(one: Gate) -> None:
    """Wait until an exchange has its connection."""
    await until(lambda: any(each.state.value == "open" for each in one.exchanges.all()))


async def test_keys(tmp_path: Path, is_fast: bool) -> None:
    """A key counts in either header, and only a foreign Authorization reaches the server."""
    seen: list[bytes] = []

    async def serve(reader: Reader, writer: Writer) -> None:
        while True:
            seen.append(await head_of(reader))
            writer.write(OK)

    async with gate(tmp_path, serve, is_fast=is_fast, keys=KEYS) as one:

        async def ask(*lines: bytes) -> bytes:
            head = b"GET /fn/web/x HTTP/1.1\r\n" + HOST + b"Connection: close\r\n"
            return (await one.ask(head + b"".join(line + b"\r\n" for line in lines) + b"\r\n"))[
                9:12
            ]

        assert await ask() == b"401"
        assert await ask(b"Authorization: Bearer fn_unknown") == b"401"
        assert await ask(b"Authorization: Bearer fn_key-of-another") == b"403"
        assert not seen
        assert await ask(b"Authorization: Bearer fn_key-of-a-caller") == b"200"
        assert await ask(b"Fn-Key: fn_key-of-a-caller", b"Authorization: Basic eDp5") == b"200"
        assert b"uthorization" not in seen[0]
        assert b"Authorization: Basic eDp5" in seen[1]
        assert b"fn_key" not in seen[0] + seen[1]
        await one.settled()


@pytest.mark.parametrize(
    ("scopes", "near"), [(("invoke",), ["web"]), (("invoke:wed", "invoke:x"), [])]
)
async def test_a_wrong_name_proposes_only_what_the_caller_may_call(
    tmp_path: Path, is_fast: bool, scopes: tuple[str, ...], near: list[str]
) -> None:
    """On every path below the name, and in its description."""
    async with gate(tmp_path, echo, is_fast=is_fast, keys={"fn_key-of-a-caller": scopes}) as one:
        for path in (b"/fn/wed/x", b"/fn/wed"):
            key = b"Connection: close\r\nAuthorization: Bearer fn_key-of-a-caller\r\n\r\n"
            found = problem(await one.ask(b"GET " + path + b" HTTP/1.1\r\n" + HOST + key))
            assert (found["code"], found["nearest"]) == ("unknown_function", near)
        await one.settled()


async def test_hosts_and_origins(tmp_path: Path, is_fast: bool) -> None:
    """A foreign Host gets 421, a foreign page 403, as for models."""
    async with gate(tmp_path, echo, is_fast=is_fast) as one:
        rest = b"Connection: close\r\n\r\n"
        foreign = await one.ask(b"GET /fn/web/x HTTP/1.1\r\nHost: example.org\r\n" + rest)
        assert problem(foreign)["code"] == "foreign_host"
        page = await one.ask(
            b"GET /fn/web/x HTTP/1.1\r\n" + HOST + b"Origin: http://example.org\r\n" + rest
        )
        assert problem(page)["code"] == "foreign_origin"
        await one.settled()


async def test_paths_that_never_wake_are_named(tmp_path: Path, is_fast: bool) -> None:
    """Without `wake` a refusal names the few paths that wake nothing, and the one asked for."""
    async with gate(tmp_path, echo, is_fast=is_fast, is_cold=True, ready="/health") as one:
        for path in ("/robots.txt", "/health"):
            head = (
                f"GET /fn/web{path}?x HTTP/1.1\r\n".encode() + HOST + b"Connection: close\r\n\r\n"
            )

            assert problem(await one.ask(head))["detail"] == (
                f"the function is asleep, and {path} only probes it: to wake it, expected another"
                " path than /favicon.ico, /robots.txt, /health, which only probe it;"
                " `fnctl warm web` starts it, too"
            )


async def test_path_rules(tmp_path: Path, is_fast: bool) -> None:
    """Denied paths get 403; paths that do not wake get 503 while the function sleeps."""
    paths = PathRules(wake=("/api/*",), free=("/static/*",), deny=("/admin/*",))
    async with gate(tmp_path, echo, is_fast=is_fast, paths=paths, is_cold=True) as one:

        async def ask(path: bytes) -> bytes:
            head = b"GET /fn/web" + path + b" HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
            return await one.ask(head)

        assert problem(await ask(b"/admin/x"))["code"] == "path_denied"
        asleep = await ask(b"/favicon.ico")
        assert problem(asleep)["code"] == "asleep"
        assert problem(asleep)["detail"].endswith(
            "/favicon.ico only probes it: to wake it, expected one of /api/*; `fnctl warm web`"
            " starts it, too"
        )
        assert b"Retry-After" not in asleep
        assert "this request does not wake it" in problem(await ask(b"/static/x"))["detail"]
        assert not one.delivery.loads().get(KEY)
        await warm(one)
        assert (await ask(b"/static/x")).startswith(b"HTTP/1.1 200 ")
        assert (await ask(b"/favicon.ico")).startswith(b"HTTP/1.1 200 ")
        assert (await ask(b"/api/x")).startswith(b"HTTP/1.1 200 ")
        opens = [frame.flags for frame in one.sidecar.got if frame.kind.name == "OPEN"]
        assert [bool(flags) for flags in opens] == [True, True, False]
        await one.settled()


async def test_control_calls_of_an_engine_that_sleeps_are_denied(
    tmp_path: Path, is_fast: bool
) -> None:
    """A caller could put it to sleep, or run code in it."""
    known = ENGINES["vllm"]
    park = ParkSettings("vllm", known.sleep, known.wake, known.check)
    async with gate(tmp_path, echo, is_fast=is_fast, park=park) as one:

        async def ask(path: bytes) -> bytes:
            head = b"POST /fn/web" + path + b" HTTP/1.1\r\n" + HOST
            return await one.ask(head + b"Content-Length: 0\r\nConnection: close\r\n\r\n")

        for path in (b"/sleep?level=2", b"/Wake_Up/", b"/v1/%63ollective_rpc", b"/is_sleeping;a"):
            assert problem(await ask(path))["code"] == "path_denied", path
        assert problem(await ask(b"/a/..%2fsleep"))["code"] == "bad_request"
        assert (await ask(b"/v1/completions")).startswith(b"HTTP/1.1 200 ")
        await one.settled()


async def test_the_wait_budget(tmp_path: Path, is_fast: bool) -> None:
    """`Prefer: wait=0` on a cold function is refused, and the answer tells when to retry."""
    async with gate(tmp_path, echo, is_fast=is_fast, is_cold=True, limits=Limits()) as one:
        head = b"GET /fn/web/x HTTP/1.1\r\n" + HOST + b"Connection: close\r\nPrefer: wait=0\r\n\r\n"
        assert problem(await one.ask(head))["code"] == "wait_budget_over"
        await one.settled()


async def test_metrics_and_the_access_log(tmp_path: Path, is_fast: bool) -> None:
    """An exchange is counted by outcome, bytes and first byte, and logged with its times."""
    async with gate(tmp_path, echo, is_fast=is_fast) as one:
        await one.ask(
            b"POST /fn/web/x HTTP/1.1\r\n"
            + HOST
            + b"Connection: close\r\nContent-Length: 3\r\n\r\nabc"
        )
        await one.settled()
        metrics = one.gateway.invoker.metrics
        page = TEXT.encode(metrics).decode()
        labels = 'function="web",namespace="default"'
        assert f'fngate_requests_total{{{labels},outcome="ok",reason=""}} 1.0' in page
        assert f"fngate_exchanges_open{{{labels}}} 0.0" in page
        assert f"fngate_first_byte_seconds_count{{{labels}}} 1.0" in page
        assert 'fngate_exchange_bytes_total{direction="in",' + labels + "} 3.0" in page
        log = one.gateway.invoker.access_log
        assert log is not None
        log.flush()
        log.close()
        (event,) = one.events
        assert (event.method, event.status, event.outcome) == ("POST", 200, "ok")
        assert (event.bytes_in, event.bytes_out, event.sends) == (3, 20, 1)
        assert event.first_byte_ms is not None
        assert 0 < event.first_byte_ms <= event.ms


async def test_what_is_read_ahead_is_bounded(tmp_path: Path) -> None:
    """Reading stops when the bytes of later requests reach their limit."""
    release = asyncio.Event()

    async def serve(reader: Reader, writer: Writer) -> None:
        while True:
            await head_of(reader)
            await release.wait()
            writer.write(OK)

    async with gate(tmp_path, serve) as one:
        wire = await one.connect()
        count = 40_000
        wire.send(GET * count)
        assert await quiet(lambda: one.delivery.held.bytes) < exchange_client.AHEAD_MAX + 512 * 1024
        release.set()
        for _ in range(100):
            assert (await wire.answer())[1] == b"ok"
        wire.close()
        await one.settled()
