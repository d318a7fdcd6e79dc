"""What happens, as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from aiohttp import web

from admin.api.streaming import Stream, Streams
from admin.events.frames import Position, position
from admin.events.watch import Watch
from registry.names import check_name

FOLLOWERS_MAX: Final = 100


class EventRoutes:
    """The stream that dashboard, `fnctl top` and others follow. `clock` gives seconds."""

    def __init__(self, watch: Watch, clock: Callable[[], float]) -> None:
        self._watch = watch
        self.streams = Streams(clock, FOLLOWERS_MAX)

    async def follow(self, request: web.Request) -> web.StreamResponse:
        """From behind `Last-Event-ID` on, or a whole picture first; of one function alone with
        `?function=NAME`. Ends with its client or the server."""
        last = position(request.headers.get("Last-Event-ID", "")[:100])
        name = request.query.get("function", "")
        about = check_name(name) if name else ""
        return await self.streams.serve(request, partial(self._tell, last, about))

    async def _tell(self, last: Position | None, about: str, stream: Stream) -> None:
        with self._watch.follow(last, about) as follower:
            while True:
                await follower.news()
                for piece in follower.take():
                    await stream.write(piece)
                    # A client that reads fast is never waited for, and calls have their turn.
                    await asyncio.sleep(0)
