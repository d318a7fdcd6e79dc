"""Server-sent events to clients: how many there are, how long they may stay silent, how they end.

A client that takes nothing for `SLOW_S` is cut off, and so is everybody when the server shuts down:
who comes back names the last event it has got. Without its last chunk a stream reads as broken off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog
from aiohttp import hdrs, web

from gateway.problems import OK
from registry.errors import NoKey, QueueFull, ShuttingDown, WrongScope

log = structlog.get_logger()

STREAMS_MAX: Final = 50
"""Streams of one kind at once."""
QUIET_S: Final = 15.0
"""After so much silence a comment is sent, for proxies end what seems to be dead."""
SLOW_S: Final = 30.0
"""How long one event may wait for a client to read."""
RETRY_S: Final = 5.0
CONTENT_TYPE: Final = "text/event-stream"
HEADERS: Final = {
    hdrs.CONTENT_TYPE: CONTENT_TYPE,
    hdrs.CACHE_CONTROL: "no-store",
    # nginx would keep events back until it has a buffer full.
    "X-Accel-Buffering": "no",
}


REVALIDATE_KEY: Final[web.RequestKey[Callable[[], None]]] = web.RequestKey("revalidate")
"""Where a request has what raises FnError once its sender may not have this any more: keys are
removed while streams go on."""


def is_asked(request: web.Request) -> bool:
    """Whether the client wants events in place of an answer that has an end."""
    accepted = request.headers.get(hdrs.ACCEPT, "").split(",")
    return any(one.partition(";")[0].strip().lower() == CONTENT_TYPE for one in accepted)


class Stream:
    """One client's events. `revalidate` is called before each; `clock` gives seconds."""

    def __init__(
        self,
        response: web.StreamResponse,
        revalidate: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._response = response
        self._revalidate = revalidate
        self._clock = clock
        self._sent_s = clock()

    async def write(self, events: bytes) -> None:
        """Send whole events; returns when the connection can take more. Raises TimeoutError where
        the client does not read, ConnectionError where it is gone, FnError where it may have no
        more."""
        self._revalidate()
        async with asyncio.timeout(SLOW_S):
            await self._response.write(events)
        self._sent_s = self._clock()

    async def keep(self) -> None:
        """To be called now and then: says that this is still there if nothing else has."""
        if self._clock() - self._sent_s >= QUIET_S:
            await self.write(b":\n\n")


class Streams:
    """The streams of one kind that there are. `stop_waiting` is aiohttp's shutdown signal."""

    def __init__(self, clock: Callable[[], float], most: int = STREAMS_MAX) -> None:
        self._clock = clock
        self._most = most
        self._waits: set[asyncio.Timeout] = set()
        self._closing = False

    async def stop_waiting(self, _app: object = None) -> None:
        """The server shuts down: every stream ends now."""
        self._closing = True
        for wait in self._waits:
            wait.reschedule(0.0)

    async def serve(
        self, request: web.Request, produce: Callable[[Stream], Awaitable[None]]
    ) -> web.StreamResponse:
        """Answer with what `produce` sends until it returns, the client leaves or the server stops.

        Raises QueueFull where there are too many, ShuttingDown; nothing once the answer has begun.
        """
        if self._closing:
            raise ShuttingDown("the server is shutting down", retry_after_s=RETRY_S)
        if len(self._waits) >= self._most:
            raise QueueFull(f"{len(self._waits)} clients follow already", retry_after_s=RETRY_S)
        response = web.StreamResponse(status=OK, headers=HEADERS)
        try:
            async with asyncio.timeout(None) as wait:
                self._waits.add(wait)
                try:
                    await response.prepare(request)
                    await produce(Stream(response, request[REVALIDATE_KEY], self._clock))
                finally:
                    self._waits.discard(wait)
        except (TimeoutError, ConnectionError, NoKey, WrongScope):
            _cut_off(request)
        except Exception:  # the head is out: no problem can be told any more
            log.exception("a stream failed", path=request.path[:200])
            _cut_off(request)
        return response


def _cut_off(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()
