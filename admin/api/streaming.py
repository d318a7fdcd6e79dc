"""Server-sent events to clients: number of streams, keep-alive, and how streams end.

A client that reads nothing for `SLOW_S` is disconnected, and so are all clients when the server
shuts down. Streams end without the last chunk, so clients see a broken stream and reconnect with
the id of the last event that they received.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog
from aiohttp import hdrs, web

from admin.api.context import CALLER
from admin.api.places import Places
from gateway.admission.callers import NOBODY
from gateway.statuses import OK
from registry.errors import ShuttingDown

log = structlog.get_logger()

STREAMS_MAX: Final = 50
"""Max concurrent streams of one kind; see `Places`."""
QUIET_S: Final = 15.0
"""A comment is sent after this many silent seconds, as proxies close connections that seem dead."""
SLOW_S: Final = 30.0
"""Max seconds that one event may wait for the client to read."""
RETRY_S: Final = 5.0
CONTENT_TYPE: Final = "text/event-stream"
HEADERS: Final = {
    hdrs.CONTENT_TYPE: CONTENT_TYPE,
    hdrs.CACHE_CONTROL: "no-store",
    # nginx would hold events back until its buffer is full.
    "X-Accel-Buffering": "no",
}


def is_asked(request: web.Request) -> bool:
    """Return whether the client accepts an event stream instead of a finite response."""
    accepted = request.headers.get(hdrs.ACCEPT, "").split(",")
    return any(one.partition(";")[0].strip().lower() == CONTENT_TYPE for one in accepted)


class Stream:
    """Event stream to one client. `clock` returns seconds."""

    def __init__(self, response: web.StreamResponse, clock: Callable[[], float]) -> None:
        self._response = response
        self._clock = clock
        self._sent_s = clock()

    async def write(self, events: bytes) -> None:
        """Send whole events; return when the connection accepts more. Raises TimeoutError if the
        client does not read, ConnectionError if it disconnected."""
        async with asyncio.timeout(SLOW_S):
            await self._response.write(events)
        self._sent_s = self._clock()

    async def keep(self) -> None:
        """Send a keep-alive comment if the stream was silent for `QUIET_S`. Call periodically."""
        if self._clock() - self._sent_s >= QUIET_S:
            await self.write(b":\n\n")


class Streams:
    """Open streams of one kind. `stop_waiting` handles aiohttp's shutdown signal."""

    def __init__(self, clock: Callable[[], float], most: int = STREAMS_MAX) -> None:
        self._clock = clock
        self._places = Places("streams are open", most)
        self._waits: set[asyncio.Timeout] = set()
        self._closing = False

    async def stop_waiting(self, _app: object = None) -> None:
        """End every stream now: the server shuts down."""
        self._closing = True
        for wait in self._waits:
            wait.reschedule(0.0)

    async def serve(
        self, request: web.Request, produce: Callable[[Stream], Awaitable[None]]
    ) -> web.StreamResponse:
        """Stream what `produce` writes until it returns, the client leaves or the server stops.

        Raises QueueFull or ShuttingDown, but nothing once the response has begun.
        """
        if self._closing:
            raise ShuttingDown("the server is shutting down", retry_after_s=RETRY_S)
        with self._places.taken(request.get(CALLER, NOBODY)):
            return await self._serve(request, produce)

    async def _serve(
        self, request: web.Request, produce: Callable[[Stream], Awaitable[None]]
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=OK, headers=HEADERS)
        try:
            async with asyncio.timeout(None) as wait:
                self._waits.add(wait)
                try:
                    await response.prepare(request)
                    await produce(Stream(response, self._clock))
                finally:
                    self._waits.discard(wait)
        except (TimeoutError, ConnectionError):
            _cut_off(request)
        except asyncio.CancelledError:  # the client has left, or its key was removed
            _cut_off(request)
            raise
        except Exception:  # the response head is sent: a problem document is no longer possible
            log.exception("a stream failed", path=request.path[:200])
            _cut_off(request)
        return response


def _cut_off(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()
