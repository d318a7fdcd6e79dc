"""What happened: cold starts, state intervals, arrivals per minute, use of devices.

Recording never waits: records go to a bounded buffer that is written in one transaction each
second. A crash loses what was not written yet; a store that cannot be written loses the newest.
A record that cannot be stored is dropped alone: the records beside it are written.

What replicas had of devices, kept in buckets of a minute, ten minutes and an hour.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import structlog

from registry.errors import StoreUnavailable
from registry.model import NAMESPACE, Arrivals, ColdStart, StateInterval, Use
from registry.settings import StoreSettings
from registry.store.database import Database, Transaction
from registry.store.records import decode_record, encode_record
from registry.tasks import Tasks

MINUTE_S: Final = 60
TEN_MINUTES_S: Final = 600
HOUR_S: Final = 3600
KEEP_S: Final = {MINUTE_S: 3 * 3600.0, TEN_MINUTES_S: 3 * 86_400.0}
"""How long the finer buckets stay; those of an hour stay as long as all history. A function that
is always warm has 180, 432 and at most 720 rows, whatever happens."""


async def insert_use(transaction: Transaction, records: Iterable[Use]) -> None:
    """Add these seconds to what there is of their buckets."""
    await transaction.execute_many(
        "INSERT INTO device_use VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT DO UPDATE SET waking_s = waking_s + excluded.waking_s,"
        " idle_s = idle_s + excluded.idle_s, busy_s = busy_s + excluded.busy_s",
        [
            (
                bucket_s,
                one.minute_s // bucket_s * bucket_s,
                one.namespace,
                one.name,
                one.number,
                one.device,
                one.waking_s,
                one.idle_s,
                one.busy_s,
            )
            for one in records
            for bucket_s in (MINUTE_S, TEN_MINUTES_S, HOUR_S)
        ],
    )


async def trim_use(transaction: Transaction, now_s: float, keep_s: float) -> None:
    """Remove what is older than its size of bucket is kept, `keep_s` at most."""
    for bucket_s in (MINUTE_S, TEN_MINUTES_S, HOUR_S):
        oldest_s = now_s - min(keep_s, KEEP_S.get(bucket_s, keep_s))
        await transaction.query(
            "DELETE FROM device_use WHERE bucket_s = ? AND at_s < ?", (bucket_s, oldest_s)
        )


log = structlog.get_logger()

Event = ColdStart | StateInterval | Arrivals | Use

LAST_OF_EACH: Final = 50
LAST_OF_ALL: Final = 20_000
LIST_MAX: Final = 1000
ARRIVALS_MAX: Final = 100_000
"""Rows of one answer; more minutes than the retention holds."""
TRIM_EVERY: Final = 60
"""Flushes between two removals of what is too old."""
LOG_EVERY: Final = 1000
"""Of the records that cannot be stored the first is logged, and each so many later ones."""


@dataclass(frozen=True, slots=True)
class HistoryStatistics:
    """Counts since the start. `buffered` is how many records wait for the next flush, `dropped`
    how many found the buffer full or cannot be stored."""

    buffered: int
    written: int
    dropped: int
    failed_flushes: int


class History:
    """Records and answers. `wall` gives Unix seconds."""

    def __init__(
        self, database: Database, settings: StoreSettings, wall: Callable[[], float]
    ) -> None:
        self._database = database
        self._settings = settings
        self._wall = wall
        self._buffer: deque[Event] = deque()
        self._flushing = asyncio.Lock()
        self._written = 0
        self._dropped = 0
        self._unstorable = 0
        self._failed = 0
        self._flushes = 0

    def record(self, event: Event) -> None:
        """Note `event` for the next flush; with the buffer full it is dropped and counted."""
        if len(self._buffer) >= self._settings.history_buffer:
            self._dropped += 1
        else:
            self._buffer.append(event)

    def statistics(self) -> HistoryStatistics:
        """How recording goes."""
        return HistoryStatistics(len(self._buffer), self._written, self._dropped, self._failed)

    @contextlib.asynccontextmanager
    async def running(self, tasks: Tasks) -> AsyncIterator[None]:
        """Flush in the background while the block runs, and once more at its end."""
        task = tasks.root("history", self._run())
        try:
            yield
        finally:
            # Between two flushes: whether a cancelled commit happened is unknown, and the last
            # flush would write its records again.
            async with self._flushing:
                task.cancel()
            await self.flush()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._settings.history_flush_s)
            try:
                await self.flush()
            except Exception:  # one bad flush must not be the last one
                self._failed += 1
                log.exception("a flush of the history failed")

    async def flush(self) -> None:
        """Write the buffer and, now and then, remove what is too old.

        A store that cannot be written now is logged; its records wait for the next flush.
        """
        async with self._flushing:
            await self._flush()

    async def _flush(self) -> None:
        trim = self._flushes % TRIM_EVERY == 0
        self._flushes += 1
        try:
            await self._write_waiting()
            if trim:
                async with self._database.write() as transaction:
                    await self._trim(transaction)
        except StoreUnavailable as error:
            self._failed += 1
            waiting = len(self._buffer)
            log.warning("history cannot be written now", reason=str(error), waiting=waiting)

    async def _write_waiting(self) -> None:
        """Write what waits now, in one transaction unless a record cannot be stored: then in
        smaller and smaller ones, until that record stands alone and is dropped."""
        left = size = len(self._buffer)
        is_counted = False
        while left:
            batch = list(islice(self._buffer, size))
            try:
                async with self._database.write() as transaction:
                    await _insert(transaction, batch)
            except StoreUnavailable:
                raise
            except Exception as error:  # noqa: BLE001 - whatever a value makes SQLite, msgspec or Python raise
                self._failed += not is_counted
                is_counted = True
                if size > 1:
                    size //= 2
                    continue
                self._drop(batch[0], error)
            else:
                self._written += size
            # Only now, so that a cancelled or failed flush loses nothing; what was recorded during
            # the write stands behind the batch.
            for _ in batch:
                self._buffer.popleft()
            left -= size
            size = min(size * 2, left)

    def _drop(self, event: Event, error: Exception) -> None:
        if self._unstorable % LOG_EVERY == 0:
            log.error(
                "a record of the history cannot be stored and is dropped",
                kind=type(event).__name__,
                function=ascii(event.name)[:100],
                reason=f"{type(error).__name__}: {error}"[:500],
                so_far=self._unstorable + 1,
            )
        self._unstorable += 1
        self._dropped += 1

    async def cold_starts(
        self, name: str, limit: int = 100, namespace: str = NAMESPACE
    ) -> list[ColdStart]:
        """The last `limit` cold starts of a function that were flushed, newest first."""
        rows = await self._database.read(
            "SELECT record FROM cold_starts WHERE namespace = ? AND name = ?"
            " ORDER BY id DESC LIMIT ?",
            (namespace, name, _clamp(limit)),
        )
        return [decode_record(row[0], ColdStart) for row in rows]

    async def intervals(
        self, name: str, limit: int = 100, namespace: str = NAMESPACE
    ) -> list[StateInterval]:
        """The last `limit` state intervals of a function that were flushed, newest first."""
        rows = await self._database.read(
            "SELECT record FROM state_intervals WHERE namespace = ? AND name = ?"
            " ORDER BY id DESC LIMIT ?",
            (namespace, name, _clamp(limit)),
        )
        return [decode_record(row[0], StateInterval) for row in rows]

    async def arrivals(
        self, name: str, since_s: float, namespace: str = NAMESPACE
    ) -> list[Arrivals]:
        """The minutes with arrivals that begin at or after `since_s`, oldest first."""
        rows = await self._database.read(
            "SELECT minute_s, count FROM arrivals WHERE namespace = ? AND name = ?"
            " AND minute_s >= ? ORDER BY minute_s LIMIT ?",
            (namespace, name, since_s, ARRIVALS_MAX),
        )
        return [Arrivals(namespace, name, minute_s, count) for minute_s, count in rows]

    async def last_cold_starts(self) -> list[ColdStart]:
        """The last successful cold starts of every stored revision, oldest first: 50 of each, and
        the newest 20,000 of all. One query, however many revisions there are."""
        rows = await self._database.read(
            "SELECT c.record FROM revisions r, cold_starts c"
            " WHERE c.id IN (SELECT id FROM cold_starts WHERE namespace = r.namespace"
            " AND name = r.name AND number = r.number AND outcome = 'ready'"
            " ORDER BY id DESC LIMIT ?) ORDER BY c.id DESC LIMIT ?",
            (LAST_OF_EACH, LAST_OF_ALL),
        )
        found = []
        for row in reversed(rows):
            # A server starts without what it cannot read of its past.
            with contextlib.suppress(StoreUnavailable):
                found.append(decode_record(row[0], ColdStart))
        return found

    async def _trim(self, transaction: Transaction) -> None:
        now_s, keep_s = self._wall(), self._settings.history_keep_s
        oldest_s = now_s - keep_s
        await trim_use(transaction, now_s, keep_s)
        await transaction.query("DELETE FROM state_intervals WHERE to_s < ?", (oldest_s,))
        await transaction.query("DELETE FROM arrivals WHERE minute_s < ?", (oldest_s,))
        await transaction.query(
            "DELETE FROM cold_starts WHERE id IN (SELECT id FROM (SELECT id, row_number() OVER"
            " (PARTITION BY namespace, name ORDER BY id DESC) AS place FROM cold_starts)"
            " WHERE place > ?)",
            (self._settings.cold_starts_max,),
        )
        await transaction.query(
            "DELETE FROM state_intervals WHERE id IN (SELECT id FROM (SELECT id, row_number() OVER"
            " (PARTITION BY namespace, name ORDER BY id DESC) AS place FROM state_intervals)"
            " WHERE place > ?)",
            (self._settings.intervals_max,),
        )


async def _insert(transaction: Transaction, batch: Sequence[Event]) -> None:
    await transaction.execute_many(
        "INSERT INTO cold_starts (namespace, name, number, outcome, total_ms, record)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        [
            (e.namespace, e.name, e.number, e.outcome, e.total_ms, _checked(e))
            for e in batch
            if isinstance(e, ColdStart)
        ],
    )
    await transaction.execute_many(
        "INSERT INTO state_intervals (namespace, name, to_s, record) VALUES (?, ?, ?, ?)",
        [(e.namespace, e.name, e.to_s, _checked(e)) for e in batch if isinstance(e, StateInterval)],
    )
    await transaction.execute_many(
        "INSERT INTO arrivals VALUES (?, ?, ?, ?)"
        " ON CONFLICT DO UPDATE SET count = count + excluded.count",
        [(e.namespace, e.name, e.minute_s, e.count) for e in batch if isinstance(e, Arrivals)],
    )
    await insert_use(transaction, [e for e in batch if isinstance(e, Use)])


def _checked(event: ColdStart | StateInterval) -> str:
    """The record as text. Raises ValueError where it could not be read again: JSON has no NaN."""
    text = encode_record(event)
    try:
        decode_record(text, type(event))
    except StoreUnavailable as error:
        raise ValueError(error.message) from error
    return text


def _clamp(limit: int) -> int:
    return max(0, min(limit, LIST_MAX))
