"""Bodies of requests to /v1: their limits, their framing, and the memory that they take."""

from __future__ import annotations

import asyncio
import socket
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from pathlib import Path

import pytest

from gateway.settings import MIB, GatewaySettings
from registry.model.functions import Limits
from registry.model.servers import ModelApi
from tests.support.modelled import (
    CHAT,
    MESSAGES,
    ModelServer,
    answered,
    asks,
    chunked,
    document,
    head,
    models,
    post,
    read_request,
)
from tests.support.proxied import KEY, until, warm

BODY = b'{"model":"web","x":"%b"}'


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_body_that_is_too_long(
    tmp_path: Path, is_fast: bool, path: str, is_chunked: bool
) -> None:
    """It gets 413 in the protocol's shape before all of it has arrived; no server is asked."""
    server = ModelServer(document())
    async with models(tmp_path, server, is_fast=is_fast, api=ModelApi(body_mib=1)) as one:
        wire = await one.connect()
        if is_chunked:
            wire.send(head(path, "Transfer-Encoding: chunked", "Connection: close"))
            wire.send(b"200000\r\n" + b"a" * (MIB + 1))
        else:
            wire.send(head(path, f"Content-Length: {MIB + 1}", "Connection: close"))
        answer = await answered(wire)
        assert (answer.status, answer.fields["connection"]) == (413, "close")
        kind = "request_too_large" if path == MESSAGES else "invalid_request_error"
        assert answer.json["error"]["type"] == kind
        assert not server.asked
        wire.close()
        await one.settled()


async def test_a_body_of_the_maximal_length(tmp_path: Path, is_fast: bool) -> None:
    """`body_mib` itself is allowed."""
    server = ModelServer(document())
    async with models(tmp_path, server, is_fast=is_fast, api=ModelApi(body_mib=1)) as one:
        body = BODY % (b"a" * (MIB - len(BODY) + 2))
        assert len(body) == MIB
        assert (await asks(one, post(CHAT, body))).status == 200
        assert server.asked[0].body == body
        await one.settled()


async def test_a_chunked_body(tmp_path: Path, is_fast: bool) -> None:
    """The server gets it with its length, whatever its chunks; trailers are dropped."""
    server = ModelServer(document())
    async with models(tmp_path, server, is_fast=is_fast) as one:
        wire = await one.connect()
        wire.send(head(CHAT, "Transfer-Encoding: chunked", "Connection: close"))
        body = BODY % b"abc"
        for at in range(len(body)):
            wire.send(chunked(body[at : at + 1]))
            await asyncio.sleep(0)
        wire.send(b"0\r\n\r\n")
        assert (await answered(wire)).status == 200
        [asked] = server.asked
        assert asked.body == body
        assert asked.fields["content-length"] == str(len(body))
        wire.close()
        await one.settled()


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_client_that_asks_before_it_sends(
    tmp_path: Path, is_fast: bool, is_chunked: bool
) -> None:
    """It gets one "100 Continue" once its key is right, and the server gets no Expect."""
    server = ModelServer(document())
    async with models(tmp_path, server, is_fast=is_fast) as one:
        wire = await one.connect()
        body = BODY % b"a"
        framing = "Transfer-Encoding: chunked" if is_chunked else f"Content-Length: {len(body)}"
        wire.send(head(CHAT, framing, "Expect: 100-continue", "Connection: close"))
        assert await wire.head() == b"HTTP/1.1 100 Continue\r\n\r\n"
        wire.send(chunked(body) + b"0\r\n\r\n" if is_chunked else body)
        rest = await wire.rest()
        assert rest.startswith(b"HTTP/1.1 200 OK\r\n")
        assert "expect" not in server.asked[0].fields
        wire.close()
        await one.settled()


@pytest.mark.parametrize(
    ("path", "fields", "status"),
    [
        (CHAT, ["Content-Length: 99999999"], 413),
        (CHAT, ["Content-Length: 9", "Content-Encoding: gzip"], 415),
        ("/v1/nope", ["Content-Length: 9"], 404),
        (CHAT, ["Content-Length: 9", "Origin: http://evil.example"], 403),
    ],
)
async def test_a_client_is_refused_before_it_sends(
    tmp_path: Path, is_fast: bool, path: str, fields: list[str], status: int
) -> None:
    """What the head tells is answered at once, and the connection is not used any more."""
    server = ModelServer(document())
    async with models(tmp_path, server, is_fast=is_fast) as one:
        wire = await one.connect()
        wire.send(head(path, *fields, "Expect: 100-continue"))
        answer = await answered(wire)
        assert (answer.status, answer.fields["connection"]) == (status, "close")
        assert answer.json["error"]["message"]
        wire.close()
        await one.settled()


BAD_BODIES = [
    (b"", "expected a JSON object"),
    (b"[]", "xpected `object`"),
    (b'{"model": "web"', "expected a JSON object"),
    (b'{"model": "web"}}', "expected a JSON object"),
    (b'{"model": "web", "model": null}', "model"),
    (b'{"model": "web", "x": NaN, "mod\\u0065l": "web"}', "expected each member once"),
    (b'{"model": null}', "model"),
    (b'{"model": ["web"]}', "model"),
    (b"{}", "model"),
    (b'{"model": "web", "x": "\xff"}', "UTF-8"),
]


@pytest.mark.parametrize(("body", "text"), BAD_BODIES)
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_a_body_that_is_no_request(
    tmp_path: Path, is_fast: bool, path: str, body: bytes, text: str
) -> None:
    """It gets 400 in the protocol's shape; the function sleeps on."""
    server = ModelServer(document())
    async with models(tmp_path, server, is_fast=is_fast, is_cold=True) as one:
        answer = await asks(one, post(path, body))
        assert (answer.status, answer.json["error"]["type"]) == (400, "invalid_request_error")
        assert text in answer.json["error"]["message"]
        assert not one.delivery.loads().get(KEY)
        await one.settled()


@pytest.mark.parametrize(
    "body",
    [
        {"previous_response_id": "resp_1"},
        {"conversation": {"id": "conv_1"}},
        {"conversation": "conv_1"},
        {"background": True},
    ],
)
async def test_responses_keep_nothing(
    tmp_path: Path, is_fast: bool, body: dict[str, object]
) -> None:
    """What needs an earlier response is refused, naming the member."""
    server = ModelServer(document())
    async with models(tmp_path, server, is_fast=is_fast) as one:
        answer = await asks(one, post("/v1/responses", {"model": "web", **body}))
        assert (answer.status, [answer.json["error"]["param"]]) == (400, list(body))
        nothing = {"model": "web", "previous_response_id": None, "background": False}
        assert (await asks(one, post("/v1/responses", nothing))).status == 200
        assert len(server.asked) == 1
        await one.settled()


async def test_malformed_chunks(tmp_path: Path, is_fast: bool) -> None:
    """They get 400 in the protocol's shape, and the connection ends."""
    async with models(tmp_path, ModelServer(document()), is_fast=is_fast) as one:
        wire = await one.connect()
        wire.send(head(MESSAGES, "Transfer-Encoding: chunked") + b"1\r\n{\r\n")
        await until(lambda: bool(one.gateway.invoker.arriving))
        wire.send(b"nonsense\r\n")
        answer = await answered(wire)
        assert (answer.status, answer.json["error"]["type"]) == (400, "invalid_request_error")
        assert answer.fields["connection"] == "close"
        wire.close()
        await one.settled()


async def test_a_body_that_stops_arriving(tmp_path: Path, is_fast: bool) -> None:
    """It gets 408, and the memory back."""
    settings = GatewaySettings(port=0, fast_front=is_fast, body_read_s=0.0)
    async with models(tmp_path, ModelServer(document()), is_fast=is_fast, settings=settings) as one:
        wire = await one.connect()
        wire.send(head(CHAT, "Content-Length: 100", "Connection: close") + b'{"model":')
        await until(lambda: one.delivery.held.bytes == 9)
        await until(lambda: one.sweep() or not one.gateway.invoker.arriving)
        answer = await answered(wire)
        assert (answer.status, answer.fields["connection"]) == (408, "close")
        assert answer.json["error"]["code"] == "body_timeout"
        wire.close()
        await one.settled()


async def test_a_client_that_leaves_in_its_body(tmp_path: Path, is_fast: bool) -> None:
    """Nothing is left of it, and it stands in the access log."""
    async with models(tmp_path, ModelServer(document()), is_fast=is_fast) as one:
        wire = await one.connect()
        wire.send(head(CHAT, "Content-Length: 100") + b'{"model":')
        await until(lambda: one.delivery.held.bytes == 9)
        wire.close()
        await one.settled()
        assert not one.gateway.invoker.arriving
        log = one.gateway.invoker.access_log
        assert log is not None
        log.flush()
        log.close()
        [event] = one.events
        assert (event.outcome, event.bytes_in) == ("client_left", 9)


async def test_an_arriving_body_is_evicted_for_others(tmp_path: Path, is_fast: bool) -> None:
    """When the memory for bodies is needed, it gets 429 with Retry-After."""
    async with models(tmp_path, ModelServer(document()), is_fast=is_fast) as one:
        wire = await one.connect()
        wire.send(head(CHAT, "Content-Length: 90000", "Connection: close") + bytes(80_000))
        await until(lambda: one.delivery.held.bytes >= 80_000)
        one.gateway.invoker.body_budget.make_room(256 * MIB)
        answer = await answered(wire)
        assert (answer.status, answer.json["error"]["type"]) == (429, "rate_limit_error")
        assert int(answer.fields["retry-after"]) >= 1
        wire.close()
        await one.settled()


async def test_the_eviction_of_a_client_that_is_gone_harms_nobody(
    tmp_path: Path, is_fast: bool
) -> None:
    """A client that closed a moment ago answers its answer with a reset, which is no error of the
    request that needs the memory."""
    async with models(tmp_path, ModelServer(document()), is_fast=is_fast) as one:
        gone = socket.create_connection(("127.0.0.1", one.port))
        gone.sendall(head(CHAT, "Content-Length: 90000") + bytes(40_000))
        await until(lambda: one.delivery.held.bytes == 40_000)
        gone.close()
        one.gateway.invoker.body_budget.make_room(256 * MIB)
        assert one.delivery.held.bytes == 0
        await one.settled()


async def test_memory_of_all_bodies(tmp_path: Path, is_fast: bool) -> None:
    """Held bodies count up to FN_HELD_MIB; one more is refused, and none wakes anything."""
    settings = GatewaySettings(port=0, fast_front=is_fast, held_bytes_max=3 * MIB)
    large = BODY % (b"a" * 2 * MIB)
    async with models(
        tmp_path, ModelServer(document()), is_fast=is_fast, settings=settings, is_cold=True
    ) as one:
        wire = await one.connect()
        wire.send(post(CHAT, large))
        await until(lambda: bool(one.delivery.loads().get(KEY)))
        assert one.delivery.held.bytes == len(large)
        answer = await asks(one, post(CHAT, large))
        assert answer.status == 429
        await warm(one)
        assert (await answered(wire)).status == 200
        wire.close()
        await one.settled()


@pytest.mark.parametrize("end", ["answered", "left", "deadline", "lost", "shut"])
async def test_memory_of_a_held_body(tmp_path: Path, is_fast: bool, end: str) -> None:
    """A held request's body counts, and is given back however the request ends."""
    body = BODY % (b"a" * 300_000)
    server = ModelServer(lambda _asked: None if end == "lost" else document())
    limits = Limits(wait_s=0.2) if end == "deadline" else Limits()
    async with models(tmp_path, server, is_fast=is_fast, is_cold=True, limits=limits) as one:
        wire = await one.connect()
        wire.send(post(CHAT, body))
        await until(lambda: bool(one.delivery.loads().get(KEY)))
        assert one.delivery.held.bytes == len(body)
        if end in ("answered", "lost"):
            await warm(one)
            assert (await answered(wire)).status == (200 if end == "answered" else 502)
            assert len(server.asked) == (1 if end == "answered" else 2)
        elif end == "deadline":
            answer = await answered(wire)
            assert (answer.status, answer.json["error"]["code"]) == (503, "wait_budget_over")
            assert int(answer.fields["retry-after"]) >= 1
        elif end == "shut":
            one.delivery.on_manager_lost()
            assert (await answered(wire)).status == 503
        wire.close()
        await one.settled()


async def test_memory_of_a_body_while_its_answer_streams(tmp_path: Path, is_fast: bool) -> None:
    """Once the answer has begun, nothing of the body is held, in the count or otherwise."""
    release = asyncio.Event()
    begun = document(a=1)

    async def serve(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(begun[:-1])
        await release.wait()
        writer.write(begun[-1:])

    async with models(tmp_path, serve, is_fast=is_fast) as one:
        wire = await one.connect()
        wire.send(post(CHAT, BODY % (b"a" * 300_000)))
        await wire.head()
        assert one.delivery.held.bytes == 0
        [exchange] = one.exchanges.all()
        routed = exchange._client._routed  # type: ignore[attr-defined]
        assert routed.body == ()
        release.set()
        await wire.rest()
        wire.close()
        await one.settled()
