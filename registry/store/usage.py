"""Usage of models in the store: added every few seconds, in rows of an hour.

Counting never waits: rows are added up in memory and written in batches. A batch has a number that
is stored with it, so one whose commit is in doubt can be written again. A batch that cannot be
written waits, and what comes after it is added up in as few rows as there are keys and functions.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Final, Literal, NamedTuple

import structlog

from registry.errors import StoreUnavailable
from registry.model.functions import NAMESPACE
from registry.settings import StoreSettings
from registry.store.database import Database, Row, Transaction
from registry.tasks import Tasks
from registry.usage import UsageCounts, UsageRow, bucket_of

log = structlog.get_logger()

PRUNE_EVERY: Final = 360
"""Flushes between two removals of old rows: one hour."""
GROUPS_MAX: Final = 1000
"""Max groups of one result: those with the most tokens."""
BUSY_MAX: Final = 50_000
"""Max pairs of function and key of one result."""
By = Literal["key", "function"]
_COLUMN: Final[dict[By, str]] = {"key": "key_id", "function": "name"}
_SUMS: Final = (
    "coalesce(sum(tokens_in), 0), coalesce(sum(tokens_out), 0),"
    " coalesce(sum(calls), 0), coalesce(sum(unknown), 0)"
)


class Sums(NamedTuple):
    """Tokens, calls, and calls whose tokens are unknown."""

    tokens_in: int = 0
    tokens_out: int = 0
    calls: int = 0
    unknown: int = 0


class BusyRow(NamedTuple):
    """Time of the calls of a function with a key."""

    name: str
    key_id: str
    busy_ms: int


class UsageReport(NamedTuple):
    """Usage by group (ids of keys, or names of functions), most tokens first.

    `groups` has at most GROUPS_MAX of all `found`. `total` is over all of them.
    """

    groups: list[tuple[str, Sums]]
    found: int
    total: Sums


class UsageStore:
    """Adds usage up, stores it, and reports it. `wall` returns Unix seconds."""

    def __init__(
        self,
        database: Database,
        settings: StoreSettings,
        wall: Callable[[], float],
        counts: UsageCounts | None = None,
    ) -> None:
        self._database = database
        self._settings = settings
        self._wall = wall
        self._counts = UsageCounts() if counts is None else counts
        self._batch: list[UsageRow] = []
        self._number = 0
        """Number of the last batch that was written."""
        self._flushing = asyncio.Lock()
        self._flushes = 0
        self._is_failing = False

    def add(self, row: UsageRow) -> None:
        """Add usage, for the next flush."""
        self._counts.add(row)

    @contextlib.asynccontextmanager
    async def running(self, tasks: Tasks) -> AsyncIterator[None]:
        """Flush in the background while the block runs, and once more at its end."""
        rows = await self._database.read("SELECT number FROM usage_batch")
        self._number = rows[0][0]
        task = tasks.root("usage", self._run())
        try:
            yield
        finally:
            async with self._flushing:
                task.cancel()
            if not await self.flush():
                calls = sum(row.calls for row in (*self._batch, *self._counts.take()))
                log.error("usage could not be stored before the end", calls=calls)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._settings.usage_flush_s)
            await self.flush()

    async def flush(self) -> bool:
        """Write what waits and, every PRUNE_EVERY flushes, remove old rows.

        Returns False if the store could not take it: it waits for the next flush.
        """
        async with self._flushing:
            try:
                await self._write_waiting()
                if self._flushes % PRUNE_EVERY == 0:
                    await self._prune()
                self._flushes += 1
            except StoreUnavailable as error:
                if not self._is_failing:
                    log.warning("usage cannot be stored now", reason=str(error))
                self._is_failing = True
                return False
            except Exception:  # one failed flush must not end the loop
                log.exception("a flush of the usage failed")
                return False
            self._is_failing = False
            return True

    async def _write_waiting(self) -> None:
        """Write a batch that an earlier flush has left, then the rows that wait."""
        while True:
            self._batch = self._batch or self._counts.take()
            if not self._batch:
                return
            async with self._database.write() as transaction:
                await _add(transaction, self._number + 1, self._batch)
            self._number += 1
            self._batch = []

    async def _prune(self) -> None:
        """Remove old rows: those with calls of /v1 after `usage_keep_s`, those that are for costs
        alone with the history of devices."""
        now_s, settings = self._wall(), self._settings
        oldest = (
            bucket_of(now_s - settings.usage_keep_s),
            bucket_of(now_s - settings.history_keep_s),
        )
        async with self._database.write() as transaction:
            await transaction.query(
                "DELETE FROM usage WHERE bucket < ? OR (calls = 0 AND bucket < ?)", oldest
            )

    async def report(
        self, by: By, from_s: int, to_s: float, name: str = "", namespace: str = NAMESPACE
    ) -> UsageReport:
        """Return the stored usage of the hours that begin in a span (Unix seconds).

        `name`: of one function only. What was used within the last flush is not yet there.
        """
        column = _COLUMN[by]
        where = (
            "WHERE bucket BETWEEN ? AND ? AND namespace = ? AND (? = '' OR name = ?) AND calls > 0"
        )
        values = (from_s, to_s, namespace, name, name)
        whole = await self._database.read(
            f"SELECT count(DISTINCT {column}), {_SUMS} FROM usage {where}",  # noqa: S608 - ours
            values,
        )
        groups = await self._database.read(
            f"SELECT {column}, {_SUMS} FROM usage {where} GROUP BY 1"  # noqa: S608 - ours
            f" ORDER BY sum(tokens_in) + sum(tokens_out) DESC, sum(calls) DESC, 1 LIMIT ?",
            (*values, GROUPS_MAX),
        )
        found, *sums = whole[0]
        return UsageReport([_group(row) for row in groups], found, Sums(*sums))

    async def busy(
        self, from_s: int, to_s: float, name: str = "", namespace: str = NAMESPACE
    ) -> list[BusyRow]:
        """Return the time of calls by function and key in the hours that begin in a span: those
        BUSY_MAX with the most."""
        rows = await self._database.read(
            "SELECT name, key_id, sum(busy_ms) FROM usage"
            " WHERE bucket BETWEEN ? AND ? AND namespace = ? AND (? = '' OR name = ?)"
            " GROUP BY 1, 2 HAVING sum(busy_ms) > 0 ORDER BY 3 DESC, 1, 2 LIMIT ?",
            (from_s, to_s, namespace, name, name, BUSY_MAX),
        )
        return [BusyRow(*row) for row in rows]


def _group(row: Row) -> tuple[str, Sums]:
    name, *sums = row
    return name, Sums(*sums)


async def _add(transaction: Transaction, number: int, batch: list[UsageRow]) -> None:
    """Add a batch, unless an earlier try has added it."""
    is_new = await transaction.query(
        "UPDATE usage_batch SET number = ? WHERE number < ? RETURNING number", (number, number)
    )
    if is_new:
        await transaction.execute_many(
            "INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
            " tokens_in = tokens_in + excluded.tokens_in,"
            " tokens_out = tokens_out + excluded.tokens_out,"
            " calls = calls + excluded.calls, unknown = unknown + excluded.unknown,"
            " busy_ms = busy_ms + excluded.busy_ms",
            batch,
        )
