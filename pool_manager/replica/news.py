"""What is heard of single replicas: their output, what they say of themselves, how they ended."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path

from pool_manager.core import events
from pool_manager.driver import Driver
from pool_manager.replica import records, statements
from pool_manager.replica.control import Feed
from pool_manager.replica.folders import Folders, tail_lines
from registry.errors import DriverError
from registry.tasks import Tasks
from runtime_image.contract.control import ReplicaRecord

LOG_LINES = 20
OUT_OF_MEMORY = ("bad_alloc", "MemoryError", "Unable to allocate")
"""How ONNX Runtime, Python and NumPy say it."""
EXIT_NEWS_S = 2.0
"""How long the driver may take to say how a process ended whose link has already ended."""


class News:
    """Records and logs of the replicas there are; `feed` is told of each end once, by how it
    ended where that is known."""

    def __init__(self, driver: Driver, folders: Folders, feed: Feed, tasks: Tasks) -> None:
        self._driver = driver
        self._folders = folders
        self._feed = feed
        self._tasks = tasks
        self.logs: dict[str, Path] = {}
        self.records: dict[str, ReplicaRecord] = {}
        self._exits: dict[str, asyncio.Future[str]] = {}
        driver.on_exit = self.exited

    def watch(self, record: ReplicaRecord, log_file: Path) -> None:
        """From now on a replica is looked after."""
        self.logs[record.id] = log_file
        self.records[record.id] = record
        self._exits[record.id] = asyncio.get_running_loop().create_future()

    def forget(self, id: str) -> None:
        """Nothing of a replica is left."""
        for known in (self.logs, self.records, self._exits):
            known.pop(id, None)

    async def outputs(self, function: str) -> list[tuple[str, bytes]]:
        """Ids and kept output of a function's replicas, gone ones too, oldest first."""
        for id in [id for id, path in self.logs.items() if path.parent.name == function]:
            await self.save_log(id)
        return await asyncio.to_thread(self._folders.outputs, function)

    async def save_log(self, id: str) -> None:
        """A log that cannot be had is no reason to stop."""
        if path := self.logs.get(id):
            with contextlib.suppress(DriverError, OSError):
                await self._driver.save_log(id, path)

    def bound_logs(self) -> None:
        """Keep every living replica's output within its limit."""
        for path in self.logs.values():
            self._folders.bound_log(path)

    def exited(self, id: str, how: str) -> None:
        """The driver says how a replica's process ended."""
        news = self._exits.get(id)
        if news is not None and not news.done():
            news.set_result(how)
            hint = "" if how.endswith("code 0") else records.cap_hint(self.records.get(id))
            self._tasks.spawn(f"end of {id}", self._lost(events.Lost(id, how), hint))

    def heard(self, event: events.Event) -> None:
        """What a replica itself says."""
        if isinstance(event, events.Lost):
            is_short = any(word in event.reason for word in OUT_OF_MEMORY)
            hint = records.cap_hint(self.records.get(event.id)) if is_short else ""
            self._tasks.spawn(f"end of {event.id}", self._lost(event, hint))
        else:
            self._feed(event)

    def link_lost(self, id: str, reason: str) -> None:
        """A replica's control link has ended."""
        self._tasks.spawn(f"end of {id}", self._explain(id, reason))

    async def _lost(self, event: events.Lost, hint: str = "") -> None:
        """It is told with its last lines; `hint` is for an end that it has said nothing about."""
        await self.save_log(event.id)
        tail = tail_lines(path, LOG_LINES) if (path := self.logs.get(event.id)) else ()
        words = statements.last_words(tail)
        reason = event.reason + (f": {words}" if words else hint)
        self._feed(replace(event, reason=reason, log_tail=tail))

    async def _explain(self, id: str, reason: str) -> None:
        """The link ends a moment before the process does; how that ended says more."""
        news = self._exits.get(id)
        if news is not None and not reason.startswith("did not answer"):
            await asyncio.wait([news], timeout=EXIT_NEWS_S)
            if news.done():
                return  # and it is being told
        await self._lost(events.Lost(id, f"control link lost: {reason}"))
