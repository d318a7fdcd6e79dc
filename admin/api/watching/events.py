"""What happens, as server-sent events."""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web

from admin.events.follower import Follower
from admin.events.frames import position
from admin.events.watch import Watch
from registry.names import check_name

WRITE_S: Final = 30.0
"""A client that takes nothing for so long is gone."""
HEADERS: Final = {"Content-Type": "text/event-stream", "Cache-Control": "no-store"}


class EventRoutes:
    """The stream that dashboard, `fnctl top` and others follow."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    async def follow(self, request: web.Request) -> web.StreamResponse:
        """From behind `Last-Event-ID` on, or a whole picture first; of one function alone with
        `?function=NAME`. Ends with its client or the server."""
        last = position(request.headers.get("Last-Event-ID", "")[:100])
        name = request.query.get("function", "")
        follower = self.watch.follow(last, check_name(name) if name else "")
        try:
            response = web.StreamResponse(headers=HEADERS)
            await response.prepare(request)
            await _send(response, follower)
        except (ConnectionError, TimeoutError):
            # Who does not read any more would not read the end either.
            if request.transport is not None:
                request.transport.abort()
        finally:
            follower.leave()
        return response


async def _send(response: web.StreamResponse, follower: Follower) -> None:
    while not follower.is_closed:
        await follower.news()
        if data := follower.take():
            async with asyncio.timeout(WRITE_S):
                await response.write(data)
