"""Requests behind one that offers an upgrade, which is declined: HTTP/1.1 goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.test_front_under_fire import nothing_left, post
from tests.support.fronts.client import Client
from tests.support.fronts.exchange import answers, rest
from tests.support.fronts.sites import Served, connect, serving
from tests.support.proxied import gate
from tests.unit.gateway.http.test_exchanges import echo

PROTOCOLS = (b"h2c", b"websocket", b"WebSocket", b"foobar", b"TLS/1.0", b"h2c, websocket", b"a\tb")
BLANK_LINES = b"x\r\n\r\ny\r\n\r\n"
JSON = b"Content-Type: application/json\r\n"
LENGTH = JSON + b"Content-Length: 10\r\n"
FRAMINGS = {
    "no body": (b"GET /healthz", b"", b""),
    "a length": (b"POST /fn/digits", LENGTH, BLANK_LINES),
    "chunks": (
        b"POST /fn/digits",
        JSON + b"Transfer-Encoding: chunked\r\n",
        b"5\r\nx\r\n\r\n\r\n5\r\ny\r\n\r\n\r\n0\r\n\r\n",
    ),
    "trailers": (
        b"POST /fn/digits",
        JSON + b"Transfer-Encoding: chunked\r\n",
        b"5\r\nx\r\n\r\n\r\n0\r\nX-Sum: 1\r\n\r\n",
    ),
    "no such path": (b"GET /nowhere", b"", b""),
    "no such function": (b"POST /fn/none", LENGTH, BLANK_LINES),
    "an inference": (b"POST /v2/models/digits/infer", LENGTH, BLANK_LINES),
}
"""First line, fields and body."""


def offer(protocol: bytes, framing: str) -> bytes:
    """Return a request that offers `protocol`."""
    line, fields, body = FRAMINGS[framing]
    host = b"Host: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk\r\n"
    return b"%b HTTP/1.1\r\n%bUpgrade: %b\r\n%b\r\n%b" % (line, host, protocol, fields, body)


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


async def answered(served: Served, *pieces: bytes) -> list[bytes]:
    """Return the bodies of all answers to the pieces; nothing of the connection is left."""
    client = await sent(served, *pieces)
    found = [answer.body for answer in answers(bytes(client.received))]
    client.leave()
    await nothing_left(served)
    return found


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_requests_behind_an_offer_are_answered(
    served: Served, protocol: bytes, framing: str
) -> None:
    """Whatever is offered, in one read: the offer, a call, another offer, and two more calls."""
    both = offer(protocol, framing) + post(b"1")

    found = await answered(served, both + both + post(b"2"))

    assert len(found) == 5
    assert (found[1], found[3], found[4]) == (b"=1", b"=1", b"=2")


@pytest.mark.parametrize("framing", ["no body", "a length", "trailers"])
@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
async def test_offers_may_be_cut_anywhere(served: Served, protocol: bytes, framing: str) -> None:
    """The bytes of the offer and of the calls around it may arrive in any two reads."""
    stream = post(b"0") + offer(protocol, framing) + post(b"1") + post(b"2")
    for at in range(1, len(stream)):
        found = await answered(served, stream[:at], stream[at:])
        assert (len(found), found[0], found[2:]) == (4, b"=0", [b"=1", b"=2"]), at


@pytest.mark.parametrize("framing", FRAMINGS)
async def test_an_offer_may_arrive_byte_by_byte(served: Served, framing: str) -> None:
    """The name of the field and the end of the head are found across reads."""
    stream = offer(b"h2c", framing) + post(b"1")
    found = await answered(served, *(stream[at : at + 1] for at in range(len(stream))))
    assert found[1:] == [b"=1"]


@pytest.mark.parametrize("protocol", PROTOCOLS[:4])
async def test_a_body_behind_an_offer_may_arrive_later(served: Served, protocol: bytes) -> None:
    """The call behind an offer is answered although its body comes in a read of its own."""
    call = post(b"123")
    found = await answered(served, offer(protocol, "no body") + call[:-2], call[-2:])
    assert found[1:] == [b"=123"]


async def test_a_client_may_end_its_sending_behind_an_offer(served: Served) -> None:
    """Both answers come to a client that has half-closed its connection."""
    client = await connect(served)
    client.write(offer(b"h2c", "no body") + post(b"1"))
    assert client.transport is not None
    client.transport.write_eof()
    await rest(served, client)
    assert [answer.body for answer in answers(bytes(client.received))][1:] == [b"=1"]
    client.leave()
    await nothing_left(served)


@pytest.mark.parametrize("protocol", [b"h2c", b"foobar", b"TLS/1.0"])
@pytest.mark.parametrize("size", [0, 4])
async def test_requests_behind_an_offer_to_a_server_function(
    tmp_path: Path, protocol: bytes, size: int
) -> None:
    """The server gets the request without the offer, and then the next one."""
    host = b"Host: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: " + protocol + b"\r\n"
    first = b"POST /fn/web/a HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n" % (host, size) + b"x" * size
    last = b"GET /fn/web/b HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    async with gate(tmp_path, echo) as one:
        answer = await one.ask(first + last)
        assert b"POST /a HTTP/1.1|" + b"x" * size in answer
        assert answer.endswith(b"GET /b HTTP/1.1|")
        await one.settled()
