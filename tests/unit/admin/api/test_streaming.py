from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import ClientPayloadError, ClientSession, web
from aiohttp.test_utils import TestServer, make_mocked_request

from admin.api import streaming
from admin.api.streaming import QUIET_S, Stream, Streams, is_asked
from admin.client.sse import Event, Parser
from admin.events.sse import frame
from registry.errors import QueueFull, ShuttingDown

Produce = Callable[[Stream], Awaitable[None]]


class Clock:
    """Clock that a test advances."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@asynccontextmanager
async def served(streams: Streams, produce: Produce) -> AsyncIterator[tuple[ClientSession, str]]:
    """Serve a stream at `/`; it ends when its client has left."""
    app = web.Application()

    async def handle(request: web.Request) -> web.StreamResponse:
        return await streams.serve(request, produce)

    app.router.add_get("/", handle)
    app.on_shutdown.append(streams.stop_waiting)
    async with (
        TestServer(app, handler_cancellation=True, shutdown_timeout=1) as server,
        ClientSession() as session,
    ):
        yield session, str(server.make_url("/"))


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("text/event-stream", True),
        ("application/json, Text/Event-Stream;q=0.9", True),
        ("*/*", False),
        ("", False),
    ],
)
def test_events_have_to_be_asked_for(accept: str, wanted: bool) -> None:
    """Only a client that accepts `text/event-stream` gets a stream; `*/*` gets an answer that
    ends."""
    assert is_asked(make_mocked_request("GET", "/", {"Accept": accept})) is wanted


async def test_a_stream_has_events_and_an_end() -> None:
    """A stream has its content type, no caching, its events, and an end."""

    async def produce(stream: Stream) -> None:
        await stream.write(frame("lines", b"a", "1"))
        await stream.write(frame("message", b"b"))

    streams = Streams(Clock())
    async with served(streams, produce) as (session, url), session.get(url) as answer:
        body = await answer.read()

    assert answer.headers["Content-Type"] == "text/event-stream"
    assert answer.headers["Cache-Control"] == "no-store"
    assert Parser().feed(body) == [Event("1", "lines", "a"), Event("1", "message", "b")]


async def test_silence_is_broken() -> None:
    """A comment after a while without events keeps proxies from closing the connection."""
    clock = Clock()

    async def produce(stream: Stream) -> None:
        for _ in range(4):
            await stream.keep()
            clock.now_s += QUIET_S / 2

    async with served(Streams(clock), produce) as (session, url), session.get(url) as answer:
        assert await answer.read() == b":\n\n"


async def test_there_is_a_limit_and_an_end() -> None:
    """One stream over the limit is refused; a stopping server ends all streams and accepts none."""
    begun = asyncio.Event()

    async def produce(_stream: Stream) -> None:
        begun.set()
        await asyncio.Event().wait()

    streams = Streams(Clock(), most=1)
    async with served(streams, produce) as (session, url), session.get(url) as answer:
        await begun.wait()
        with pytest.raises(QueueFull):
            await streams.serve(make_mocked_request("GET", "/"), produce)
        await streams.stop_waiting()
        with pytest.raises(ClientPayloadError):
            await answer.read()
    with pytest.raises(ShuttingDown):
        await streams.serve(make_mocked_request("GET", "/"), produce)


async def test_a_client_that_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that does not read is disconnected, and its place is free again."""
    monkeypatch.setattr(streaming, "SLOW_S", 0.01)
    over = asyncio.Event()

    async def produce(stream: Stream) -> None:
        try:
            while True:
                await stream.write(b"x" * 1_000_000)
        finally:
            over.set()

    streams = Streams(Clock())
    async with served(streams, produce) as (session, url), session.get(url):
        async with asyncio.timeout(60):
            await over.wait()

    assert not streams._waits


async def test_a_client_that_leaves_ends_its_stream() -> None:
    """A stream ends as soon as its client leaves, not at the next event."""
    begun, over = asyncio.Event(), asyncio.Event()

    async def produce(_stream: Stream) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            over.set()

    async with served(Streams(Clock()), produce) as (session, url):
        async with session.get(url):
            await begun.wait()
        async with asyncio.timeout(60):
            await over.wait()


async def test_a_defect_breaks_the_stream_off() -> None:
    """A defect within a stream closes the connection: the head is out, and the answer must not look
    complete."""

    async def produce(stream: Stream) -> None:
        await stream.write(frame("lines", b"a"))
        raise KeyError

    async with served(Streams(Clock()), produce) as (session, url), session.get(url) as answer:
        with pytest.raises(ClientPayloadError):
            await answer.read()
