"""Copies of the database: one per day in the data folder, and one on request."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import threading
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

import structlog

from registry.errors import FnError, StoreUnavailable
from registry.files import fsync_folder, make_private, unavailable
from registry.settings import DAY_S, StoreSettings
from registry.store.database import Database
from registry.store.recovery.copying import CopyStopped, copy_database
from registry.store.recovery.folder import DAILY, PREVIOUS
from registry.tasks import Tasks

log = structlog.get_logger()

CHECK_S: Final = 60.0
"""Seconds between two checks whether a copy is due. It bounds how long a new server's first
functions are without a copy, and is the pause before a failed copy is retried."""
AHEAD_S: Final = 3600.0
"""A copy whose time is further in the future was made while the clock was wrong."""


T = TypeVar("T")
Sent = tuple[BinaryIO, int]
"""An open file to be sent, and its size in bytes."""


class Backups:
    """Copies of an open database, made in a thread concurrently with its writers, one at a time.

    `DATA/backups` contains the newest daily copy and the previous one. `wall` returns Unix seconds.
    """

    def __init__(
        self, settings: StoreSettings, database: Database, wall: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._database = database
        self._wall = wall
        self._turn = asyncio.Lock()
        self._stopped = threading.Event()
        self._failure = ""

    @contextlib.asynccontextmanager
    async def running(self, tasks: Tasks) -> AsyncIterator[None]:
        """Make daily copies while the block runs; a copy in progress at its end is abandoned."""
        tasks.root("daily copy", self._run())
        try:
            yield
        finally:
            self._stopped.set()
            async with self._turn:  # the thread has ended
                pass

    async def _run(self) -> None:
        while True:
            await self.copy_if_due()
            await asyncio.sleep(CHECK_S)

    async def copy_if_due(self) -> None:
        """Make the daily copy if the last one is a day old and there is something to copy.

        A failure is logged and is a reason in /readyz until the next copy succeeds.
        """
        try:
            if self._is_due() and await self._has_contents():
                async with self._turn:
                    await self._in_thread(self._copy_daily)
                self._failure = ""
        except CopyStopped:
            return
        except (FnError, OSError) as error:
            self._failure = str(error)
            log.error("the daily copy of the database failed", reason=self._failure)

    def reasons(self) -> list[str]:
        """Return what is wrong with the daily copies; empty if nothing is."""
        if not self._failure:
            return []
        made_s = self._made_s()
        last = "there is none"
        if made_s is not None:
            last = f"the last one is of {datetime.fromtimestamp(made_s, UTC):%Y-%m-%d %H:%M} UTC"
        return [f"backup: the daily copy of the database failed: {self._failure}; {last}"]

    async def snapshot(self) -> Sent:
        """Return a copy of the current state in an unlinked file, which the caller closes.

        Raises StoreUnavailable.
        """
        async with self._turn:
            try:
                return await self._in_thread(self._copy_unnamed)
            except CopyStopped:
                raise StoreUnavailable("the server is stopping") from None

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread, and wait for its end even if the caller is cancelled."""
        step = asyncio.get_running_loop().run_in_executor(None, work)
        try:
            return await asyncio.shield(step)
        except asyncio.CancelledError:
            await asyncio.wait([step])
            raise

    def _made_s(self) -> float | None:
        try:
            return (self._settings.backups / DAILY).stat().st_mtime
        except OSError:
            return None

    def _is_due(self) -> bool:
        made_s = self._made_s()
        return made_s is None or not -AHEAD_S < self._wall() - made_s < DAY_S

    async def _has_contents(self) -> bool:
        rows = await self._database.read(
            "SELECT EXISTS (SELECT 1 FROM revision_numbers) OR EXISTS (SELECT 1 FROM keys)"
            " OR EXISTS (SELECT 1 FROM secrets) OR EXISTS (SELECT 1 FROM hosts)"
        )
        return bool(rows[0][0])

    def _copy(self, target: Path) -> None:
        settings = self._settings
        try:
            make_private(settings.backups)
        except OSError as error:
            raise unavailable(error) from error
        copy_database(
            settings.database, target, busy_s=settings.busy_s, is_stopped=self._stopped.is_set
        )

    def _copy_daily(self) -> None:
        folder = self._settings.backups
        fresh, before = folder / f".{DAILY}.next", folder / f".{PREVIOUS}.next"
        self._copy(fresh)
        try:
            # A hard link, so that a daily copy exists at any moment.
            if (folder / DAILY).exists():
                before.unlink(missing_ok=True)
                os.link(folder / DAILY, before)
                before.replace(folder / PREVIOUS)
            fresh.replace(folder / DAILY)
            fsync_folder(folder)
        except OSError as error:
            raise unavailable(error) from error
        log.info("the daily copy of the database is made", path=str(folder / DAILY))

    def _copy_unnamed(self) -> Sent:
        path = self._settings.backups / f".{DAILY}.{secrets.token_hex(8)}"
        self._copy(path)
        try:
            file = path.open("rb")
            path.unlink()
        except OSError as error:
            raise unavailable(error) from error
        return file, os.fstat(file.fileno()).st_size
