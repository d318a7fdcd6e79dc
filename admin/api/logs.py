"""Routes for a function's logs (a copy or a stream) and for its latest errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec
from aiohttp import web

from admin.api import streaming
from admin.api.answers import json_answer, whole_number
from admin.api.streaming import Stream, Streams
from admin.deploy.operations import OperationRunner
from admin.deploy.rollout import last_lines
from admin.documents.events import EndEvent, LogEvent
from admin.documents.functions import FailureRow, Items, ReplicaLog
from admin.documents.requests import LINES, LINES_MAX
from admin.events.snapshot import failure_row, pool_of
from admin.events.sse import frame
from gateway.observing.errors import RecentFailures
from pool_manager.manager import Manager
from pool_manager.replicas.logs import LogLines
from registry.catalog import Catalog, Change

POLL_S: Final = 0.25
"""Seconds between two reads of logs that have no new lines."""
BREATH_S: Final = 0.02
"""Pause after each piece of a fast log, so that one follower does not saturate the server."""

_encode = msgspec.json.Encoder().encode


class LogRoutes:
    """Handler for logs, as a copy or a stream. `clock` returns seconds."""

    def __init__(
        self,
        catalog: Catalog,
        manager: Manager,
        operations: OperationRunner,
        clock: Callable[[], float],
    ) -> None:
        self._catalog = catalog
        self._manager = manager
        self._operations = operations
        self.streams = Streams(clock)

    async def logs(self, request: web.Request) -> web.StreamResponse:
        """Return the last log lines of each replica, oldest replica first. A client that accepts
        an event stream also receives new lines, until the function is removed. So does a function
        whose first deploy runs, or has failed: its replicas are those of trials."""
        name = await self._name(request.match_info["name"])
        lines = whole_number(request.query, "lines", LINES, LINES_MAX)
        if streaming.is_asked(request):
            cursor = request.headers.get("Last-Event-ID", "")
            return await self.streams.serve(request, partial(self._follow, name, lines, cursor))
        items = [
            ReplicaLog(id, "\n".join(last_lines(text, lines)))
            for id, text in await self._manager.logs(name)
        ]
        return json_answer(Items(items, None))

    async def _name(self, ref: str) -> str:
        """Return the name of a function, also of one whose first deploy runs or has failed. Raises
        UnknownFunction."""
        is_known = self._catalog.find(ref) is not None
        last = None if is_known else await self._operations.undone(ref)
        return last.name if last is not None else self._catalog.resolve(ref).function.name

    def _is_gone(self, name: str) -> bool:
        if self._catalog.find(name) is not None:
            return False
        return all(one.name != name for one in self._operations.running())

    async def _follow(self, name: str, lines: int, cursor: str, stream: Stream) -> None:
        async with self._manager.follow(name, lines, cursor) as follow:
            while True:
                is_removed = self._is_gone(name)
                said = await follow.read()
                await _tell(stream, said, follow.cursor)
                if is_removed and not said:
                    await _tell(stream, follow.left(), "")
                    return
                await stream.keep()
                await asyncio.sleep(BREATH_S if said else POLL_S)


async def _tell(stream: Stream, said: list[LogLines], cursor: str) -> None:
    """Write the events; only the last one carries the cursor, which is behind all of them."""
    events: list[tuple[str, LogEvent]] = []
    for replica, lines, is_over in said:
        if lines:
            events.append(("lines", ReplicaLog(replica, "\n".join(lines))))
        if is_over:
            events.append(("end", EndEvent(replica)))
    for left, (kind, data) in zip(range(len(events) - 1, -1, -1), events, strict=True):
        await stream.write(frame(kind, _encode(data), "" if left else cursor))


class ErrorRoutes:
    """Handler for the latest errors. A function's errors are dropped when it is removed."""

    def __init__(self, catalog: Catalog, manager: Manager, failures: RecentFailures) -> None:
        self._catalog = catalog
        self._manager = manager
        self._failures = failures
        catalog.subscribe(self._changed)

    async def errors(self, request: web.Request) -> web.Response:
        """Return the latest errors, newest first, each with the known causes."""
        function = self._catalog.resolve(request.match_info["name"]).function
        found = self._failures.of(function.namespace, function.name)
        items = [
            failure_row(FailureRow, one, self._manager.decisions(pool_of(one))) for one in found
        ]
        return json_answer(Items(items, None))

    def _changed(self, change: Change) -> None:
        if change.after is None:
            self._failures.forget(change.namespace, change.name)
