"""Tests of aiohttp's connections: slow and large heads, half-closed clients, invalid HTTP."""

from __future__ import annotations

import asyncio
import gzip
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic

import pytest
from aiohttp import web

from gateway.http.connections import ConnectionLimit
from gateway.http.handler import HEAD_MAX, HandlerFactory
from registry.errors import BodyEvicted
from tests.integration.test_front_under_fire import Held, bodies, nothing_left, post
from tests.support.fronts.client import Client
from tests.support.fronts.exchange import answers, rest
from tests.support.fronts.sites import Served, connect, listening, serving

HEAD = b"POST /fn/digits HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(params=["fast", "plain"])
async def served(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Served]:
    """Gateway that requires no keys."""
    async with serving(tmp_path, is_fast=request.param == "fast") as served:
        yield served


async def sent(served: Served, *pieces: bytes) -> Client:
    """Return a client that has sent these pieces, each read separately by the server."""
    client = await connect(served)
    for piece in pieces:
        client.write(piece)
        await rest(served, client)
    return client


def only(client: Client) -> tuple[bytes, bytes, bytes]:
    """Return status, content type and body of the only answer."""
    [answer] = answers(bytes(client.received))
    return answer.start.split()[1], dict(answer.headers).get(b"content-type", b""), answer.body


async def test_half_a_head_is_given_up(served: Served) -> None:
    """A head that is incomplete after head_read_s gets a 408 problem, even if bytes keep coming; a
    silent connection is closed without one."""
    seconds = int(served.gateway.invoker.settings.head_read_s)
    client = await sent(served, HEAD)
    silent = await sent(served)
    for number in range(seconds):
        served.sweep()
        client.write(b"X-%d: drip\r\n" % number)
        await rest(served, client, silent)
    assert (client.received, client.is_ended, silent.is_ended) == (b"", False, False)
    served.sweep()
    served.sweep()
    await rest(served, client, silent)
    status, kind, body = only(client)
    assert (status, kind) == (b"408", b"application/problem+json")
    assert b"the head did not arrive within 15 s" in body
    assert (client.is_ended, silent.is_ended, silent.received) == (True, True, b"")
    client.leave()
    await nothing_left(served)


async def test_idle_connections_stay_after_their_request(served: Served) -> None:
    """The time limit of a head starts with its first byte."""
    client = await sent(served, post(b"1"), b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    for _ in range(100):
        served.sweep()
    client.write(post(b"2"))
    await rest(served, client)
    assert bodies(client) == [b"=1", b'{"status":"ok"}', b"=2"]
    client.leave()
    await nothing_left(served)


async def test_an_endless_head_is_refused(served: Served) -> None:
    """The size of all header lines is bounded; their bytes are counted like those of bodies."""
    client = await sent(served, HEAD)
    line = b"X: " + b"x" * 1000 + b"\r\n"
    for _ in range(HEAD_MAX // len(line)):
        client.write(line)
        await rest(served, client)
    assert served.delivery.held.bytes > HEAD_MAX // 2
    client.write(line)
    await rest(served, client)
    assert only(client)[:2] == (b"431", b"application/problem+json")
    client.leave()
    await nothing_left(served)


@pytest.mark.parametrize(
    "data",
    [
        *(b"\x16\x03\x01\r\n\r\n", HEAD + b"fn_secret\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"),
        b"GET /fn_secret\x00 HTTP/1.1\r\n\r\n",
    ],
)
async def test_invalid_http_gets_a_problem(served: Served, data: bytes) -> None:
    """The 400 names the cause without quoting the received bytes."""
    client = await sent(served, data)
    status, kind, body = only(client)
    assert (status, kind, client.is_ended) == (b"400", b"application/problem+json", True)
    assert b"the request is not HTTP: " in body
    assert b"fn_secret" not in body
    client.leave()
    await nothing_left(served)


async def test_a_line_beyond_a_head_is_refused(served: Served) -> None:
    """Nor does this 431 quote it."""
    client = await sent(served, HEAD + b"X: " + b"fn_secret" * (HEAD_MAX // 9 + 1))
    status, kind, body = only(client)
    assert (status, kind, client.is_ended) == (b"431", b"application/problem+json", True)
    assert b"expected a head of at most 32768 bytes, got a longer line" in body
    assert b"fn_secret" not in body
    client.leave()
    await nothing_left(served)


@pytest.mark.parametrize("chunks", [b"zz\r\n", b"3\r\nabcX"])
async def test_broken_chunks_are_answered_at_once(served: Served, chunks: bytes) -> None:
    """Invalid chunks get 400 at once, not at the end of the body's time limit."""
    client = await sent(served, HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", chunks)
    assert only(client)[0] == b"400"
    assert client.is_ended
    client.leave()
    await nothing_left(served)


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", b"400"),
        (b"Content-Encoding: foo\r\nContent-Length: 1\r\n\r\nx", b"415"),
        (b"Expect: a miracle\r\nContent-Length: 1\r\n\r\nx", b"417"),
        (b"Expect: 100-continue\r\nContent-Length: 999999999\r\n\r\n", b"413"),
        (b"Prefer: wait=soon\r\nContent-Length: 1\r\n\r\nx", b"200"),
    ],
)
async def test_heads_are_checked_before_the_body_is_read(
    served: Served, lines: bytes, status: bytes
) -> None:
    """A refusal comes without 100 Continue."""
    client = await sent(served, HEAD + lines)
    assert only(client)[0] == status
    client.leave()
    await nothing_left(served)


async def test_100_continue_follows_the_checks(served: Served) -> None:
    """An accepted head gets 100, then the answer; a refused one gets no 100, and its connection
    closes."""
    expecting = b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    client = await sent(served, HEAD + expecting)
    assert client.received == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.write(b"ab")
    await rest(served, client)
    assert [answer.body for answer in answers(bytes(client.received))] == [b"", b"=ab"]
    for head in (HEAD.replace(b"digits", b"nobody"), HEAD.replace(b"POST /fn/digits", b"PUT /x")):
        refused = await sent(served, head + expecting)
        assert only(refused)[0] == b"404"
        assert b"Connection: close" in bytes(refused.received)
        refused.leave()
    client.leave()
    await nothing_left(served)


@pytest.mark.parametrize("last", [1, HEAD_MAX + 1])
async def test_the_rest_of_a_refused_body_is_dropped(served: Served, last: int) -> None:
    """The rest is not counted as a head, however long the read that completes it is.

    The next request gets its own answer.
    """
    size = 3 * HEAD_MAX
    refused = HEAD.replace(b"digits", b"nobody") + b"Content-Length: %d\r\n\r\n" % size
    rest_of_body = (b"x" * (size - last), b"x" * last)
    client = await sent(served, refused, *rest_of_body, refused.replace(b"POST", b"GET"))
    starts = [answer.start.split()[1] for answer in answers(bytes(client.received))]
    assert starts == [b"404", b"404"]
    client.leave()
    await nothing_left(served)


async def test_a_half_closed_client_gets_its_answers(served: Served) -> None:
    """Requests sent before EOF are answered, pipelined ones too; then the connection is closed."""
    held = Held(served)
    async with listening(served):
        client = await sent(served, post(b"1"), post(b"2"))
        assert client.transport is not None
        client.transport.write_eof()
        await rest(served, client)
        assert (len(held.frames), client.is_ended) == (1, False)
        held.release()
        while not client.is_ended:  # noqa: ASYNC110 - over TCP the number of turns is not fixed
            await asyncio.sleep(0)
        found = answers(bytes(client.received))
        assert [answer.body for answer in found] == [b"=1", b"=2"]
        client.leave()
    await nothing_left(served)


@pytest.mark.parametrize(
    "line",
    [
        b"POST /fn/digits HTTP/1.1\r\n",
        b"POST /fn/digits HTTP/1.1\r\nConnection: close\r\n",
        b"POST /fn/digits HTTP/1.1\r\nConnection: keep-alive\r\nX: a\r\nX: b\r\n",
        b"POST /fn/digits HTTP/1.0\r\n",
        b"POST /fn/digits HTTP/1.0\r\nConnection: keep-alive\r\n",
    ],
)
async def test_a_half_closed_client_gets_its_answer_and_nothing_else(
    served: Served, line: bytes
) -> None:
    """Whatever its version of HTTP, and whichever reader has the connection: the bytes are those of
    a client that did not end its sending."""
    request = line + b"Host: localhost\r\nX-Request-Id: r\r\nContent-Length: 1\r\n\r\n1"
    async with listening(served):
        received = []
        for ends in (False, True):
            held = Held(served)
            client = await sent(served, request)
            assert client.transport is not None
            while not held.frames:  # noqa: ASYNC110 - over TCP the number of turns is not fixed
                await asyncio.sleep(0)
            if ends:
                client.transport.write_eof()
                await rest(served, client)
            held.release()
            while b"=1" not in client.received:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0)
            received.append(
                re.sub(rb"(?i)(?:server-timing|date): [^\r]*", b"", bytes(client.received))
            )
            client.leave()
        assert received[1] == received[0]
        assert received[0].startswith(b"HTTP/1.")
        assert received[0].endswith(b"=1")
    await nothing_left(served)


async def test_a_half_closed_client_gets_nothing_within_an_answer(served: Served) -> None:
    """An answer in parts that has begun goes on, byte for byte."""
    release = asyncio.Event()

    async def parts(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(b"first")
        await release.wait()
        await response.write(b"second")
        return response

    budget = served.gateway.invoker.body_budget
    factory = HandlerFactory(
        web.Server(parts), served.gateway.writer, budget, 15.0, ConnectionLimit(9, monotonic)
    )
    server = await asyncio.get_running_loop().create_server(factory, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await reader.readuntil(b"first\r\n")
    writer.write_eof()
    (handler,) = factory.handlers
    while not handler._is_ended:  # noqa: ASYNC110 - over TCP the number of turns is not fixed
        await asyncio.sleep(0)
    release.set()
    assert await reader.read() == b"6\r\nsecond\r\n0\r\n\r\n"
    writer.close()
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize(
    "request_",
    [
        post(b"1"),
        post(b"1").replace(b"HTTP/1.1", b"HTTP/1.0"),
        post(b"1").replace(b"digits", b"nothing"),
        post(b"1").replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: x\r\n\r\n"),
        post(b"1").replace(b"digits", b"digits?a=%zz"),
        b"POST /v2/models/nothing/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /fn/digits HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n",
        b"POST /v1/completions?a HTTP/1.0\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        b"nonsense\r\n\r\n",
    ],
)
async def test_a_browser_runs_nothing_of_an_answer(served: Served, request_: bytes) -> None:
    """No answer and no error, on any door, is taken for another type or runs scripts at the
    dashboard's origin."""
    client = await sent(served, request_)
    async with asyncio.timeout(60):
        while b"\r\n\r\n" not in client.received:
            await rest(served, client)
            await asyncio.sleep(0)
    head = bytes(client.received).partition(b"\r\n\r\n")[0].lower().split(b"\r\n")
    assert head.count(b"x-content-type-options: nosniff") == 1
    assert head.count(b"content-security-policy: sandbox") == 1
    client.leave()
    await nothing_left(served)


async def test_a_disconnect_while_queued_frees_the_place(served: Served) -> None:
    """Over TCP a disconnect starts like a half-close, with EOF."""
    held = Held(served)
    async with listening(served):
        sock = socket.create_connection(("127.0.0.1", served.ports[0]))
        sock.sendall(post(b"1"))
        while not held.frames:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
        sock.close()
        while served.left():
            served.sweep()
            await asyncio.sleep(0)
    assert held.replica.cancelled == 1


async def test_arriving_bodies_are_counted_and_evicted(served: Served) -> None:
    """Plain, chunked, compressed, shared-memory and pipelined bodies count until a call owns them;
    the slowest are refused when memory is needed."""
    reservations = served.gateway.invoker.body_budget
    packed = gzip.compress(bytes(range(256)) * 400, 0)
    begun = {
        "plain": [HEAD + b"Content-Length: 100000\r\n\r\n", b"x" * 20_000],
        "chunked": [HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"9c40\r\n" + b"x" * 20_000],
        "packed": [
            HEAD + b"Content-Encoding: gzip\r\nContent-Length: 110000\r\n\r\n",
            packed[:20_000],
        ],
        "shared": [HEAD + b"Content-Length: 4000000\r\n\r\n", b"x" * 20_000],
    }
    clients = {name: await sent(served, *pieces) for name, pieces in begun.items()}
    assert served.delivery.held.bytes == 20_000 * len(clients)
    reservations.make_room(256 * 2**20)
    await rest(served, *clients.values())
    assert served.delivery.held.bytes == 0
    for name, client in clients.items():
        assert b"HTTP/1.1 429 " in client.received, name
        assert b"Retry-After: 1\r\n" in client.received
        client.leave()
    await nothing_left(served)


async def test_pipelined_requests_are_evicted(served: Served) -> None:
    """The request in progress is answered, and the connection is closed."""
    held = Held(served)
    client = await sent(served, post(b"1"), post(b"2" * 50_000))
    assert served.delivery.held.bytes > 50_000
    served.gateway.invoker.body_budget.make_room(256 * 2**20 - 1)
    assert served.delivery.held.bytes == 1
    held.release()
    await rest(served, client)
    assert (bodies(client), client.is_ended) == ([b"=1"], True)
    client.leave()
    await nothing_left(served)


async def test_an_accepted_body_is_not_evicted(served: Served) -> None:
    """Once a call owns the body it is not evicted; the queue limit applies."""
    held = Held(served)
    client = await sent(served, post(b"12345")[:-1], b"5")
    served.gateway.invoker.body_budget.make_room(256 * 2**20)
    with pytest.raises(BodyEvicted):
        served.gateway.invoker.body_budget.open(lambda _error: None).grow(256 * 2**20)
    held.release()
    await rest(served, client)
    assert bodies(client) == [b"=12345"]
    client.leave()
    await nothing_left(served)
