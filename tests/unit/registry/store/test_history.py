"""Tests of the history: records, flushes, and device use in buckets."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from math import nan
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from registry.model.devices import Use
from registry.model.history import Arrivals, ColdStart, StateInterval
from registry.settings import StoreSettings
from registry.store.database import Database
from registry.store.functions import Functions
from registry.store.history import (
    TRIM_EVERY,
    Event,
    History,
    HistoryStatistics,
    insert_use,
    trim_use,
)
from registry.tasks import Tasks
from tests.support.nouns import bundle, function, revision

NOW_S = 10_000_000.0


def cold_start(total_ms: float = 100.0, number: int = 1, outcome: str = "ready") -> ColdStart:
    phases = {"start": 60.0, "load": 40.0}
    return ColdStart("default", "digits", number, "r1", "cpu", NOW_S, total_ms, phases, outcome)


def interval(to_s: float = NOW_S, state: str = "warm") -> StateInterval:
    return StateInterval("default", "digits", 1, state, "idle", to_s - 5, to_s)


def arrivals(minute_s: int, count: int) -> Arrivals:
    return Arrivals("default", "digits", minute_s, count)


@pytest.fixture
def make(database: Database, tmp_path: Path) -> Callable[..., History]:
    """Factory of a history over the test's store with the given settings."""

    def made(**settings: float) -> History:
        return History(database, replace(StoreSettings(tmp_path), **settings), lambda: NOW_S)

    return made


async def test_records_are_readable_after_a_flush(make: Callable[..., History]) -> None:
    """Each kind of record is read back unchanged, and only after a flush."""
    history = make()
    for event in (cold_start(), interval(), arrivals(600, 3)):
        history.record(event)
    assert await history.cold_starts("digits") == []

    await history.flush()

    assert await history.cold_starts("digits") == [cold_start()]
    assert await history.intervals("digits") == [interval()]
    assert await history.arrivals("digits", 0) == []  # older than the retention time
    assert history.statistics() == HistoryStatistics(0, 3, 0, 0)


async def test_lists_start_with_the_newest_record(make: Callable[..., History]) -> None:
    """Lists are sorted newest first and end at their limit."""
    history = make()
    for n in range(5):
        history.record(cold_start(float(n)))
        history.record(interval(NOW_S + n))
    await history.flush()

    assert [one.total_ms for one in await history.cold_starts("digits", 2)] == [4, 3]
    assert [one.to_s for one in await history.intervals("digits", 2)] == [NOW_S + 4, NOW_S + 3]
    assert await history.cold_starts("digits", -1) == []
    assert await history.cold_starts("digits", namespace="team") == []


async def test_arrivals_of_a_minute_add_up(make: Callable[..., History]) -> None:
    """Counts of one minute are summed over flushes and workers; minutes are in order."""
    history = make()
    minute = int(NOW_S) - 40
    for event in (arrivals(minute, 2), arrivals(minute - 60, 1), arrivals(minute, 3)):
        history.record(event)
        await history.flush()

    assert await history.arrivals("digits", minute - 60) == [
        arrivals(minute - 60, 1),
        arrivals(minute, 5),
    ]
    assert await history.arrivals("digits", minute) == [arrivals(minute, 5)]


async def test_recent_cold_starts_of_all_revisions(
    make: Callable[..., History], database: Database
) -> None:
    """One query returns the last 50 successful cold starts of each stored revision, oldest
    first."""
    history, functions = make(), Functions(database)
    for name in ("digits", "digits", "digits", "faces"):
        await functions.deploy(function(name, 0), revision(name, 0), bundle(), None)
    for total_ms in [1000.0] * 5 + [float(n) for n in range(1, 51)]:
        history.record(cold_start(total_ms))
    history.record(cold_start(9999.0, outcome="failed"))
    history.record(cold_start(8888.0, number=2))
    history.record(cold_start(7777.0, number=4))
    await history.flush()
    read, reads = database.read, []
    database.read = lambda *a: reads.append(a) or read(*a)  # type: ignore[method-assign]

    found = await history.last_cold_starts()

    assert [(r.number, r.total_ms) for r in found] == [
        *((1, float(n)) for n in range(1, 51)),
        (2, 8888.0),
    ]
    assert len(reads) == 1


async def test_a_damaged_cold_start_is_skipped(
    make: Callable[..., History], database: Database
) -> None:
    """An unreadable record does not prevent the server's start."""
    history = make()
    await Functions(database).deploy(function(revision=0), revision(number=0), bundle(), None)
    for total_ms in (1.0, 2.0):
        history.record(cold_start(total_ms))
    await history.flush()
    async with database.write() as transaction:
        await transaction.query("UPDATE cold_starts SET record = '{' WHERE total_ms = 1.0", ())

    assert [record.total_ms for record in await history.last_cold_starts()] == [2.0]


async def test_a_full_buffer_drops_and_counts(make: Callable[..., History]) -> None:
    """Recording never blocks, and the buffer is bounded."""
    history = make(history_buffer=2)
    for _ in range(5):
        history.record(cold_start())

    assert history.statistics() == HistoryStatistics(2, 0, 3, 0)
    await history.flush()
    assert len(await history.cold_starts("digits")) == 2


async def test_a_locked_store_is_survived(make: Callable[..., History], tmp_path: Path) -> None:
    """A failed flush is counted and logged; its records are written by the next one."""
    history = make()
    other = sqlite3.connect(tmp_path / "fngate.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    history.record(cold_start())

    with capture_logs() as logs:
        await history.flush()

    assert [line["reason"] for line in logs] == ["database locked: database is locked"]
    assert history.statistics() == HistoryStatistics(1, 0, 0, 1)
    other.execute("ROLLBACK")
    other.close()
    await history.flush()
    assert await history.cold_starts("digits") == [cold_start()]


BAD_RECORDS = {
    "an integer of 65 bits": arrivals(2**64, 1),
    "a time that is not a number": interval(nan),
    "a lone surrogate": replace(cold_start(), name="\ud800"),
    "a phase that is not a number": replace(cold_start(), phases={"load": nan}),
    "a value of another type": replace(cold_start(), total_ms=None),
    "an object": replace(arrivals(60, 1), name=object()),
}


@pytest.mark.parametrize("bad", BAD_RECORDS.values(), ids=BAD_RECORDS)
async def test_a_record_that_cannot_be_stored_is_dropped_alone(
    make: Callable[..., History], bad: Event
) -> None:
    """Only the invalid record is dropped, counted and logged; the same flush writes the others in
    order."""
    history = make()
    minutes = [int(NOW_S) - 60 * n for n in range(10)]
    for minute in minutes:
        history.record(arrivals(minute, 1))
        if minute == minutes[6]:
            history.record(bad)

    with capture_logs() as logs:
        await history.flush()
    history.record(cold_start())
    await history.flush()

    assert [line["event"] for line in logs] == [
        "a record of the history cannot be stored and is dropped"
    ]
    assert history.statistics() == HistoryStatistics(0, 11, 1, 1)
    assert len(await history.arrivals("digits", 0)) == 10
    assert await history.cold_starts("digits") == [cold_start()]


async def test_many_records_that_cannot_be_stored(make: Callable[..., History]) -> None:
    """A flush of only invalid records ends, counts them all, and logs only some."""
    history = make()
    for _ in range(50):
        history.record(arrivals(2**64, 1))

    with capture_logs() as logs:
        await history.flush()

    assert len(logs) == 1
    assert history.statistics() == HistoryStatistics(0, 0, 50, 1)


async def test_only_the_last_cold_starts_are_kept(make: Callable[..., History]) -> None:
    """Beyond the limit per function the oldest cold starts and intervals are removed."""
    history = make(cold_starts_max=3, intervals_max=2)
    for n in range(5):
        history.record(cold_start(float(n)))
        history.record(interval(NOW_S + n))
    await history.flush()

    assert [one.total_ms for one in await history.cold_starts("digits")] == [4, 3, 2]
    assert [one.to_s for one in await history.intervals("digits")] == [NOW_S + 4, NOW_S + 3]


async def test_old_records_are_removed(make: Callable[..., History]) -> None:
    """Intervals and arrivals older than the retention time are removed."""
    history = make(history_keep_s=100)
    for event in (interval(NOW_S - 101), interval(NOW_S - 99), arrivals(int(NOW_S) - 120, 1)):
        history.record(event)
    history.record(arrivals(int(NOW_S) - 60, 1))
    await history.flush()

    assert await history.intervals("digits") == [interval(NOW_S - 99)]
    assert await history.arrivals("digits", 0) == [arrivals(int(NOW_S) - 60, 1)]


async def test_removal_runs_every_few_flushes(make: Callable[..., History]) -> None:
    """Between two removals a flush only writes."""
    history = make(cold_starts_max=1)
    await history.flush()
    for _ in range(2):
        history.record(cold_start())
    await history.flush()
    assert len(await history.cold_starts("digits")) == 2

    for _ in range(TRIM_EVERY):
        await history.flush()

    assert len(await history.cold_starts("digits")) == 1


async def test_flushes_are_periodic(make: Callable[..., History]) -> None:
    """While the history runs, records are written without an explicit flush."""
    history, tasks = make(history_flush_s=0), Tasks("test")

    async with history.running(tasks):
        history.record(cold_start())
        while history.statistics().written == 0:  # noqa: ASYNC110  # a flush has no event
            await asyncio.sleep(0)

    assert await history.cold_starts("digits") == [cold_start()]
    await tasks.close()


async def test_the_end_writes_all_records(make: Callable[..., History]) -> None:
    """Records of the last period are written at the end, once."""
    history, tasks = make(history_flush_s=3600), Tasks("test")

    async with history.running(tasks):
        history.record(cold_start())

    assert await history.cold_starts("digits") == [cold_start()]
    assert len(tasks) == 0
    await tasks.close()


async def test_two_flushes_at_once_write_once(make: Callable[..., History]) -> None:
    """Concurrent flushes write each record once."""
    history = make()
    history.record(cold_start(1.0))

    async with asyncio.TaskGroup() as group:
        group.create_task(history.flush())
        group.create_task(history.flush())
        await asyncio.sleep(0)
        history.record(cold_start(2.0))
    await history.flush()

    assert [one.total_ms for one in await history.cold_starts("digits")] == [2, 1]
    assert history.statistics() == HistoryStatistics(0, 2, 0, 0)


DAY_S = 86_400.0
HOUR_S = 3600


def use(minute_s: int, busy_s: float = 1.0, name: str = "digits") -> Use:
    return Use("default", name, 1, "cuda:0", minute_s, 0.5, 0.25, busy_s)


async def buckets(database: Database) -> list[tuple[int, int, float]]:
    rows = await database.read("SELECT bucket_s, at_s, busy_s FROM device_use ORDER BY 1, 2")
    return [(bucket_s, at_s, busy_s) for bucket_s, at_s, busy_s in rows]


async def test_seconds_add_up_in_each_size_of_bucket(database: Database) -> None:
    """Records are summed per minute, per ten minutes and per hour."""
    async with database.write() as transaction:
        await insert_use(transaction, [use(7200), use(7200, 2.0), use(7260, 4.0)])
        await insert_use(transaction, [use(7800, 8.0), use(10_800, 16.0)])

    assert await buckets(database) == [
        (60, 7200, 3.0),
        (60, 7260, 4.0),
        (60, 7800, 8.0),
        (60, 10_800, 16.0),
        (600, 7200, 7.0),
        (600, 7800, 8.0),
        (600, 10_800, 16.0),
        (3600, 7200, 15.0),
        (3600, 10_800, 16.0),
    ]


async def test_fine_buckets_are_removed_first(database: Database) -> None:
    """Minutes stay for three hours, ten minutes for three days, hours for the retention time."""
    now_s = 40 * DAY_S
    ages_s = [HOUR_S, 4 * HOUR_S, 4 * DAY_S, 31 * DAY_S]
    async with database.write() as transaction:
        await insert_use(transaction, [use(int(now_s - age_s)) for age_s in ages_s])
        await trim_use(transaction, now_s, 30 * DAY_S)

    left = [bucket_s for bucket_s, _, _ in await buckets(database)]
    assert left == [60, 600, 600, 3600, 3600, 3600]
