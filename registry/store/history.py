"""History: cold starts, state intervals, arrivals per minute, and use and models of devices.

Recording never waits: records are added to a bounded buffer, which is written in one transaction
each second. A crash loses the buffer; a full buffer drops the newest records. A record that cannot
be stored is dropped alone. Use of devices is stored in buckets of a minute, ten minutes and an
hour.
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
from registry.model.devices import DeviceModel, Use
from registry.model.functions import NAMESPACE
from registry.model.history import Arrivals, ColdStart, StateInterval
from registry.settings import StoreSettings
from registry.store.database import Database, Transaction
from registry.store.records import decode_record, encode_record
from registry.tasks import Tasks

log = structlog.get_logger()

MINUTE_S: Final = 60
TEN_MINUTES_S: Final = 600
HOUR_S: Final = 3600
KEEP_S: Final = {MINUTE_S: 3 * 3600.0, TEN_MINUTES_S: 3 * 86_400.0}
"""How long the finer buckets are kept; hourly buckets are kept as long as all history. A function
that is always warm has 180, 432 and at most 720 rows."""


Event = ColdStart | StateInterval | Arrivals | Use | DeviceModel

LAST_OF_EACH: Final = 50
LAST_OF_ALL: Final = 20_000
LIST_MAX: Final = 1000
ARRIVALS_MAX: Final = 100_000
"""Max rows of one result; more minutes than the retention covers."""
TRIM_EVERY: Final = 60
"""Flushes between two removals of old records."""
LOG_EVERY: Final = 1000
"""Of the records that cannot be stored, the first one is logged, and then every LOG_EVERY-th."""


@dataclass(frozen=True, slots=True)
class HistoryStatistics:
    """Counts since the start.

    `buffered` records wait for the next flush. `dropped` records found the buffer full or could not
    be stored.
    """

    buffered: int
    written: int
    dropped: int
    failed_flushes: int


class History:
    """Records events and answers queries. `wall` returns Unix seconds."""

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
        """Buffer `event` for the next flush; a full buffer drops and counts it."""
        if len(self._buffer) >= self._settings.history_buffer:
            self._dropped += 1
        else:
            self._buffer.append(event)

    def statistics(self) -> HistoryStatistics:
        """Counts since the start."""
        return HistoryStatistics(len(self._buffer), self._written, self._dropped, self._failed)

    @contextlib.asynccontextmanager
    async def running(self, tasks: Tasks) -> AsyncIterator[None]:
        """Flush in the background while the block runs, and once more at its end."""
        task = tasks.root("history", self._run())
        try:
            yield
        finally:
            # Only between two flushes: it is unknown whether a cancelled commit took effect, and
            # the last flush would write its records again.
            async with self._flushing:
                task.cancel()
            await self.flush()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._settings.history_flush_s)
            try:
                await self.flush()
            except Exception:  # one failed flush must not end the loop
                self._failed += 1
                log.exception("a flush of the history failed")

    async def flush(self) -> None:
        """Write the buffer and, every TRIM_EVERY flushes, remove old records.

        If the store is not available, this is logged and the records wait for the next flush.
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
        """Write the buffer in one transaction.

        If a record cannot be stored, the batch is halved until that record is alone; it is then
        dropped.
        """
        left = size = len(self._buffer)
        is_counted = False
        while left:
            batch = list(islice(self._buffer, size))
            try:
                async with self._database.write() as transaction:
                    await _insert(transaction, batch)
            except StoreUnavailable:
                raise
            except Exception as error:  # noqa: BLE001 - a bad value may make SQLite, msgspec or Python raise
                self._failed += not is_counted
                is_counted = True
                if size > 1:
                    size //= 2
                    continue
                self._drop(batch[0], error)
            else:
                self._written += size
            # Removed only now, so that a cancelled or failed flush loses nothing. Records added
            # during the write are behind the batch.
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
        """Return the last `limit` flushed cold starts of a function, newest first."""
        rows = await self._database.read(
            "SELECT record FROM cold_starts WHERE namespace = ? AND name = ?"
            " ORDER BY id DESC LIMIT ?",
            (namespace, name, _clamp(limit)),
        )
        return [decode_record(row[0], ColdStart) for row in rows]

    async def intervals(
        self, name: str, limit: int = 100, namespace: str = NAMESPACE
    ) -> list[StateInterval]:
        """Return the last `limit` flushed state intervals of a function, newest first."""
        rows = await self._database.read(
            "SELECT record FROM state_intervals WHERE namespace = ? AND name = ?"
            " ORDER BY id DESC LIMIT ?",
            (namespace, name, _clamp(limit)),
        )
        return [decode_record(row[0], StateInterval) for row in rows]

    async def arrivals(
        self, name: str, since_s: float, namespace: str = NAMESPACE
    ) -> list[Arrivals]:
        """Return the minutes with arrivals from `since_s` on, oldest first."""
        rows = await self._database.read(
            "SELECT minute_s, count FROM arrivals WHERE namespace = ? AND name = ?"
            " AND minute_s >= ? ORDER BY minute_s LIMIT ?",
            (namespace, name, since_s, ARRIVALS_MAX),
        )
        return [Arrivals(namespace, name, minute_s, count) for minute_s, count in rows]

    async def last_cold_starts(self) -> list[ColdStart]:
        """Return recent successful cold starts of every stored revision, oldest first.

        At most LAST_OF_EACH per revision, and the newest LAST_OF_ALL in total. One query,
        regardless of the number of revisions.
        """
        rows = await self._database.read(
            "SELECT c.record FROM revisions r, cold_starts c"
            " WHERE c.id IN (SELECT id FROM cold_starts WHERE namespace = r.namespace"
            " AND name = r.name AND number = r.number AND outcome = 'ready'"
            " ORDER BY id DESC LIMIT ?) ORDER BY c.id DESC LIMIT ?",
            (LAST_OF_EACH, LAST_OF_ALL),
        )
        found = []
        for row in reversed(rows):
            # An unreadable record must not prevent the server's start.
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
    await transaction.execute_many(
        "INSERT INTO device_models VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
        " kind = excluded.kind, model = excluded.model, part = excluded.part, at_s = excluded.at_s",
        [(e.name, e.kind, e.model, e.part, e.at_s) for e in batch if isinstance(e, DeviceModel)],
    )


def _checked(event: ColdStart | StateInterval) -> str:
    """Return the record as text.

    Raises ValueError if it could not be decoded again: JSON has no NaN.
    """
    text = encode_record(event)
    try:
        decode_record(text, type(event))
    except StoreUnavailable as error:
        raise ValueError(error.message) from error
    return text


def _clamp(limit: int) -> int:
    return max(0, min(limit, LIST_MAX))


async def insert_use(transaction: Transaction, records: Iterable[Use]) -> None:
    """Add the seconds of these records to their buckets."""
    await transaction.execute_many(
        "INSERT INTO device_use VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT DO UPDATE SET waking_s = waking_s + excluded.waking_s,"
        " idle_s = idle_s + excluded.idle_s, busy_s = busy_s + excluded.busy_s,"
        " held_s = held_s + excluded.held_s, joules = joules + excluded.joules",
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
                one.held_s,
                one.joules,
            )
            for one in records
            for bucket_s in (MINUTE_S, TEN_MINUTES_S, HOUR_S)
        ],
    )


async def trim_use(transaction: Transaction, now_s: float, keep_s: float) -> None:
    """Remove buckets that are older than the retention of their size, at most `keep_s`."""
    for bucket_s in (MINUTE_S, TEN_MINUTES_S, HOUR_S):
        oldest_s = now_s - min(keep_s, KEEP_S.get(bucket_s, keep_s))
        await transaction.query(
            "DELETE FROM device_use WHERE bucket_s = ? AND at_s < ?", (bucket_s, oldest_s)
        )
    await transaction.query("DELETE FROM device_models WHERE at_s < ?", (now_s - keep_s,))
