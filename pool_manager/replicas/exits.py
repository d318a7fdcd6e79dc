"""What is heard of single replicas: their output, what they say of themselves, how they ended."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from pool_manager.core import events
from pool_manager.driver import Driver
from pool_manager.ports import Binding
from pool_manager.replicas import control, logs, records
from pool_manager.replicas.control import Feed
from pool_manager.replicas.logs import Follow, Followers
from pool_manager.replicas.run_folders import Folders, tail_lines
from registry.errors import DriverError
from registry.tasks import Tasks
from runtime_image.contract.control import ReplicaRecord

LOG_LINES = 20
OUT_OF_MEMORY = ("bad_alloc", "MemoryError", "Unable to allocate")
"""How ONNX Runtime, Python and NumPy say it."""
SAVE_S = 0.5
"""Between two questions to a driver for a replica's output, however many follow it."""
TRIM_S = 60.0
"""Between two looks at what all logs together take."""
BOUND_S = 0.1
"""Between two looks at logs that grow fast."""
EXIT_NEWS_S = 2.0
"""How long the driver may take to say how a process ended whose link has already ended."""
Clock = Callable[[], float]


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
        self.followers = Followers(self._refresh)
        self._clock = time.monotonic
        self._saving: set[str] = set()
        self._saved_s: dict[str, float] = {}
        self._is_bounding = False
        driver.on_exit = self.exited

    def watch(self, record: ReplicaRecord, log_file: Path) -> None:
        """From now on a replica is looked after."""
        self.logs[record.id] = log_file
        self.records[record.id] = record
        self._exits[record.id] = asyncio.get_running_loop().create_future()
        self.followers.began(record.id, log_file)

    def claimed(self, record: ReplicaRecord, log_file: Path) -> None:
        """A standby has got its model, and writes to the log of its function."""
        self.logs[record.id] = log_file
        self.records[record.id] = record
        self.followers.began(record.id, log_file)

    def forget(self, id: str) -> None:
        """Nothing of a replica is left."""
        if path := self.logs.get(id):
            self.followers.ended(id, path)
        for known in (self.logs, self.records, self._exits, self._saved_s):
            known.pop(id, None)

    async def outputs(self, function: str) -> list[tuple[str, bytes]]:
        """Ids and kept output of a function's replicas, gone ones too, oldest first."""
        await self._save_all(function)
        return await asyncio.to_thread(self._folders.outputs, function)

    async def save_log(self, id: str) -> None:
        """A log that cannot be had is no reason to stop."""
        if path := self.logs.get(id):
            with contextlib.suppress(DriverError, OSError):
                await self._driver.save_log(id, path)

    @asynccontextmanager
    async def follow(self, function: str, lines: int, cursor: str) -> AsyncIterator[Follow]:
        """Read what a function's replicas write, while the block runs: what came after `cursor`,
        or after the last `lines` lines of each that there is, gone ones too."""
        await self._save_all(function)
        with self.followers.follow(function) as follow:
            places = logs.places(cursor)
            for path, place in await asyncio.to_thread(self._tails, function, lines):
                id, is_gone = path.stem, path.stem not in self.logs
                if places is None:
                    follow.add(id, path, place, is_gone=is_gone)
                elif id in places or not is_gone:
                    follow.add(id, path, places.get(id, 0), is_gone=is_gone)
            for id in self._living(function):
                follow.add(id, self.logs[id])
            yield follow

    def _tails(self, function: str, lines: int) -> list[tuple[Path, int]]:
        found = []
        for path in self._folders.logs(function):
            with contextlib.suppress(OSError):
                found.append((path, logs.find_last_lines(path, lines, logs.TAIL_MAX)))
        return found

    def _living(self, function: str) -> list[str]:
        return [id for id, path in self.logs.items() if path.parent.name == function]

    async def _save_all(self, function: str) -> None:
        for id in self._living(function):
            await self.save_log(id)

    def _refresh(self, id: str) -> None:
        """Somebody reads: what the driver has yet to write down is on its way, once at a time."""
        now_s = self._clock()
        if id not in self._saving and now_s - self._saved_s.get(id, 0.0) >= SAVE_S:
            self._saving.add(id)
            self._tasks.spawn(f"follow {id}", self._save(id))

    async def _save(self, id: str) -> None:
        try:
            await self.save_log(id)
        finally:
            self._saving.discard(id)
            if id in self.logs:
                self._saved_s[id] = self._clock()

    def look_at_logs(self) -> None:
        """Each second: have those cut that have grown over their limit."""
        if not self._is_bounding and any(map(self._folders.is_grown, self.logs.values())):
            self._is_bounding = True
            self._tasks.spawn("bound logs", self._bound_grown())

    async def _bound_grown(self) -> None:
        """As long as somebody writes that much, more often than every second."""
        try:
            while await self.bound_logs():  # noqa: ASYNC110 - files have no event
                await asyncio.sleep(BOUND_S)
        finally:
            self._is_bounding = False

    async def bound_logs(self) -> bool:
        """Keep every living replica's output within its limit; whether any was over it."""
        paths = list(self.logs.values())
        return True in await asyncio.to_thread(lambda: [*map(self._folders.bound_log, paths)])

    async def tidy(self, bindings: Mapping[str, Binding], wall: Clock) -> None:
        """For ever `trim_logs`, now and then, by what there is. `wall` gives Unix seconds."""
        while True:
            await self.trim_logs({one.name for one in bindings.values()}, wall())
            await asyncio.sleep(TRIM_S)

    async def trim_logs(self, functions: Collection[str], now_s: float) -> None:
        """Keep all logs together within their limit; `functions` are those that there are."""
        spared = set(self.logs.values())
        await asyncio.to_thread(self._folders.trim_all, functions, spared, now_s)

    def exited(self, id: str, how: str) -> None:
        """The driver says how a replica's process ended."""
        news = self._exits.get(id)
        if news is not None and not news.done():
            news.set_result(how)
            hint = "" if how.endswith("code 0") else records.cap_hint(self.records.get(id))
            cause = records.cause_of(how, self.records.get(id))
            self._tasks.spawn(f"end of {id}", self._lost(events.Lost(id, how, cause=cause), hint))

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
        tail: tuple[str, ...] = ()
        if path := self.logs.get(event.id):
            # Of many that die at once, on a slow disk, this would stall every call.
            tail = await asyncio.to_thread(tail_lines, path, LOG_LINES)
        words = control.last_words(tail)
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
