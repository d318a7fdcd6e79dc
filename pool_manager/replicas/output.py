"""The output of replicas: live logs, their followers, and their size limits."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from pool_manager.host import HostOf
from pool_manager.ports import Binding
from pool_manager.replicas import logs
from pool_manager.replicas.logs import Follow, Followers
from pool_manager.replicas.run_folders import RunFolders, tail_lines
from registry.errors import DriverError
from registry.tasks import Tasks

TAIL_LINES = 20
SAVE_S = 0.5
"""Min seconds between two requests to a driver for one replica's output."""
TRIM_S = 60.0
"""Seconds between two checks of the total size of all logs."""
BOUND_S = 0.1
"""Seconds between two checks of logs that grow fast."""


class ReplicaOutput:
    """The logs of live replicas, by id. The folder of a log has the name of its function."""

    def __init__(self, host_of: HostOf, folders: RunFolders, tasks: Tasks) -> None:
        self._host_of = host_of
        self._folders = folders
        self._tasks = tasks
        self.logs: dict[str, Path] = {}
        self.followers = Followers(self._refresh)
        self._clock = time.monotonic
        self._saving: set[str] = set()
        self._saved_s: dict[str, float] = {}
        self._is_bounding = False

    def begin(self, id: str, log: Path) -> None:
        """Set `log` as a replica's log; followers of its function read it from now on."""
        self.logs[id] = log
        self.followers.begin(id, log)

    def end(self, id: str) -> None:
        """Remove a replica that is gone; followers still read the rest of its log."""
        if path := self.logs.pop(id, None):
            self.followers.end(id, path)
        self._saved_s.pop(id, None)

    async def save(self, id: str) -> None:
        """Let its driver write a replica's output to its log; errors are ignored."""
        if path := self.logs.get(id):
            with contextlib.suppress(DriverError, OSError):
                await self._host_of(id).driver.save_log(id, path)

    async def tail(self, id: str) -> tuple[str, ...]:
        """Return the last lines of a replica's log, empty if it has none."""
        await self.save(id)
        path = self.logs.get(id)
        # In a thread: on a slow disk, with many replicas dying at once, reading would stall calls.
        return await asyncio.to_thread(tail_lines, path, TAIL_LINES) if path else ()

    async def kept(self, function: str) -> list[tuple[str, bytes]]:
        """Return ids and kept output of a function's replicas, oldest first, including replicas
        that are gone."""
        await self._save_all(function)
        return await asyncio.to_thread(self._folders.outputs, function)

    @asynccontextmanager
    async def follow(self, function: str, lines: int, cursor: str) -> AsyncIterator[Follow]:
        """Follow a function's replicas while the block runs, including replicas that are gone.

        Reading begins after `cursor`, or at the last `lines` lines of each log.
        """
        await self._save_all(function)
        with self.followers.follow(function) as follow:
            places = logs.parse_cursor(cursor)
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
        """Return the logs of a function with the offsets of their last lines. Blocking."""
        found = []
        for path in self._folders.logs(function):
            with contextlib.suppress(OSError):
                found.append((path, logs.find_last_lines(path, lines, logs.TAIL_MAX)))
        return found

    def _living(self, function: str) -> list[str]:
        return [id for id, path in self.logs.items() if path.parent.name == function]

    async def _save_all(self, function: str) -> None:
        for id in self._living(function):
            await self.save(id)

    def _refresh(self, id: str) -> None:
        """Save a followed replica's output in the background, one request at a time, at most every
        SAVE_S."""
        now_s = self._clock()
        if id not in self._saving and now_s - self._saved_s.get(id, 0.0) >= SAVE_S:
            self._saving.add(id)
            self._tasks.spawn(f"follow {id}", self._save_followed(id))

    async def _save_followed(self, id: str) -> None:
        try:
            await self.save(id)
        finally:
            self._saving.discard(id)
            if id in self.logs:
                self._saved_s[id] = self._clock()

    def tick(self) -> None:
        """Start to cut logs that have grown over their limit; called every second."""
        if not self._is_bounding and any(map(self._folders.is_grown, self.logs.values())):
            self._is_bounding = True
            self._tasks.spawn("bound logs", self._bound_grown())

    async def _bound_grown(self) -> None:
        """Cut logs every BOUND_S while any log exceeds its limit."""
        try:
            while await self.bound():  # noqa: ASYNC110 - files have no event
                await asyncio.sleep(BOUND_S)
        finally:
            self._is_bounding = False

    async def bound(self) -> bool:
        """Cut every log that is over its limit; True if any was."""
        paths = list(self.logs.values())
        return True in await asyncio.to_thread(lambda: [*map(self._folders.bound_log, paths)])

    async def trim_for_ever(
        self, bindings: Mapping[str, Binding], wall: Callable[[], float]
    ) -> None:
        """Call `trim` every TRIM_S with the functions of `bindings`; `wall` returns Unix
        seconds."""
        while True:
            await self.trim({one.name for one in bindings.values()}, wall())
            await asyncio.sleep(TRIM_S)

    async def trim(self, functions: Collection[str], now_s: float) -> None:
        """Remove old logs of functions other than `functions`, then the oldest logs until the total
        is within its limit. Logs of live replicas are kept. `now_s` is in Unix seconds."""
        living = set(self.logs.values())
        await asyncio.to_thread(self._folders.trim_all, functions, living, now_s)
