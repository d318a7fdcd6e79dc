"""Tests of usage in the store: batches, what goes wrong with them, and reports."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from registry.errors import StoreUnavailable
from registry.settings import StoreSettings
from registry.store.database import Database, Transaction
from registry.store.usage import GROUPS_MAX, PRUNE_EVERY, Sums, UsageStore
from registry.tasks import Tasks
from registry.usage import HOUR_S, UsageCounts, UsageRow

NOW_S = 1_000_000 * HOUR_S
DAY_S = 24 * HOUR_S
Make = Callable[..., UsageStore]


def used(key: str = "k1", name: str = "chat", at_s: int = NOW_S, calls: int = 1) -> UsageRow:
    """Return a row whose calls took 7 and 3 tokens each."""
    return UsageRow(key, "default", name, at_s, 7 * calls, 3 * calls, calls, 0)


def sums(calls: int) -> Sums:
    """Return the sums of that many calls."""
    return Sums(7 * calls, 3 * calls, calls, 0)


@pytest.fixture
def make(database: Database, tmp_path: Path) -> Make:
    """Factory of a usage store over the test's database."""

    def made(rows_max: int = 100, **settings: float) -> UsageStore:
        section = replace(StoreSettings(tmp_path), **settings)
        return UsageStore(database, section, lambda: NOW_S + 60.0, UsageCounts(rows_max))

    return made


async def total(store: UsageStore) -> Sums:
    """Return the sum of everything."""
    return (await store.report("key", 0, NOW_S + DAY_S)).total


async def test_rows_add_up_over_flushes(make: Make) -> None:
    """A flush adds to what is stored, by key, function and hour."""
    store = make()
    for _ in range(2):
        store.add(used())
        store.add(used("k2", calls=4))
        store.add(used("k1", "embed", calls=2))
        assert await store.flush()

    by_key = await store.report("key", 0, NOW_S)
    by_function = await store.report("function", 0, NOW_S)

    assert by_key.groups == [("k2", sums(8)), ("k1", sums(6))]
    assert by_function.groups == [("chat", sums(10)), ("embed", sums(4))]
    assert by_key.total == by_function.total == sums(14)


async def test_a_report_is_of_its_span_namespace_and_function(make: Make) -> None:
    """Hours before and after the span do not count: a clock may have been wrong."""
    store = make()
    for at_s in (NOW_S - DAY_S - HOUR_S, NOW_S - DAY_S, NOW_S, NOW_S + HOUR_S):
        store.add(used(at_s=at_s))
    store.add(used(name="embed"))
    store.add(used()._replace(namespace="other", calls=99))
    await store.flush()

    found = await store.report("key", NOW_S - DAY_S, NOW_S, "chat")

    assert (found.groups, found.total, found.found) == ([("k1", sums(2))], sums(2), 1)
    assert (await store.report("key", 0, 1.0)).total == Sums()


async def test_a_report_is_bounded(make: Make) -> None:
    """Of many groups the largest are listed; the sum has them all."""
    store = make(rows_max=GROUPS_MAX + 2)
    for number in range(GROUPS_MAX + 2):
        store.add(used(f"k{number}", calls=1 + (number == 7)))
    await store.flush()

    found = await store.report("key", 0, NOW_S)

    assert found.groups[0] == ("k7", sums(2))
    assert (len(found.groups), found.found) == (GROUPS_MAX, GROUPS_MAX + 2)
    assert found.total == sums(GROUPS_MAX + 3)


async def stored(store: UsageStore) -> None:
    """Wait until anything is stored."""
    while not (await total(store)).calls:  # each read is a turn of the database's thread
        pass


class Failing:
    """A database whose next transactions fail, before or after they are committed."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.before = self.after = 0

    async def read(self, sql: str, values: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
        """Read as the database."""
        return await self._database.read(sql, values)  # type: ignore[arg-type]  # as given

    @contextlib.asynccontextmanager
    async def write(self) -> AsyncIterator[Transaction]:
        """Open a transaction."""
        if self.before:
            self.before -= 1
            raise StoreUnavailable("disk full")
        async with self._database.write() as transaction:
            yield transaction
        if self.after:
            self.after -= 1
            raise StoreUnavailable("disk error")


async def test_a_batch_whose_commit_is_in_doubt_counts_once(
    database: Database, tmp_path: Path
) -> None:
    """An error after the commit, as a cancelled caller may see one, adds nothing a second time."""
    failing = Failing(database)
    failing.after = 2
    store = UsageStore(failing, StoreSettings(tmp_path), lambda: NOW_S)  # type: ignore[arg-type]
    store.add(used())
    assert not await store.flush()
    store.add(used())
    assert not await store.flush()

    assert await store.flush()
    assert await store.flush()

    assert await total(store) == sums(2)


async def test_a_full_disk_loses_nothing_within_bounded_memory(
    database: Database, tmp_path: Path
) -> None:
    """While the store takes nothing, rows wait and then merge; the log is told once."""
    failing = Failing(database)
    failing.before = 50
    counts = UsageCounts(10)
    store = UsageStore(failing, StoreSettings(tmp_path), lambda: NOW_S, counts)  # type: ignore[arg-type]
    with capture_logs() as logs:
        for number in range(50):
            store.add(used(f"k{number}"))
            assert not await store.flush()
            assert len(counts) <= 11
    assert [one["event"] for one in logs] == ["usage cannot be stored now"]

    assert await store.flush()

    assert await total(store) == sums(50)


async def test_another_servers_number_is_continued(
    database: Database, make: Make, tmp_path: Path
) -> None:
    """After a restart new batches count: their numbers follow the stored one."""
    for _ in range(3):
        tasks = Tasks("test")
        store = make()
        async with store.running(tasks):
            store.add(used())
        await tasks.close()

    assert await total(make()) == sums(3)
    rows = sqlite3.connect(tmp_path / "fngate.db").execute("SELECT number FROM usage_batch")
    assert rows.fetchall() == [(3,)]


async def test_the_end_says_what_it_could_not_store(database: Database, tmp_path: Path) -> None:
    """A server that stops with a full disk logs the number of calls that are lost."""
    failing = Failing(database)
    store = UsageStore(failing, StoreSettings(tmp_path), lambda: NOW_S)  # type: ignore[arg-type]
    tasks = Tasks("test")
    with capture_logs() as logs:
        async with store.running(tasks):
            failing.before = 9
            store.add(used(calls=2))
            await store.flush()
            store.add(used(calls=3))
    await tasks.close()

    assert logs[-1]["event"] == "usage could not be stored before the end"
    assert logs[-1]["calls"] == 5


async def test_rows_are_flushed_in_the_background(make: Make) -> None:
    """Without a call of `flush`, rows are stored after the period."""
    store, tasks = make(usage_flush_s=0.001), Tasks("test")
    async with store.running(tasks):
        store.add(used())
        async with asyncio.timeout(30):
            await stored(store)
    await tasks.close()


async def test_old_rows_are_removed(make: Make) -> None:
    """Rows older than the retention are removed once per hour of flushes; others stay."""
    store = make(usage_keep_s=10.0 * DAY_S)
    store.add(used(at_s=NOW_S - 10 * DAY_S - HOUR_S))
    store.add(used(at_s=NOW_S - 10 * DAY_S))
    await store.flush()
    assert await total(store) == sums(1)

    store.add(used(at_s=NOW_S - 11 * DAY_S))
    for _ in range(PRUNE_EVERY - 1):
        await store.flush()
    assert await total(store) == sums(2)
    await store.flush()

    assert await total(store) == sums(1)


async def test_rows_for_costs_alone_go_earlier(make: Make) -> None:
    """Calls outside /v1 are in no report of usage, and end with the history of devices."""
    store = make(usage_keep_s=400.0 * DAY_S, history_keep_s=30.0 * DAY_S)
    for at_s in (NOW_S - 31 * DAY_S, NOW_S - 29 * DAY_S):
        for calls in (0, 1):
            store.add(used(f"k{calls}", calls=calls, at_s=at_s)._replace(busy_ms=5))
    await store.flush()
    for _ in range(PRUNE_EVERY):
        await store.flush()

    assert await store.busy(0, NOW_S) == [("chat", "k1", 10), ("chat", "k0", 5)]
    found = await store.report("key", 0, NOW_S)
    assert (found.groups, found.found) == ([("k1", sums(2))], 1)


async def test_an_unexpected_error_ends_no_flush(database: Database, tmp_path: Path) -> None:
    """A defect is logged, and what waits is tried again."""
    store = UsageStore(database, StoreSettings(tmp_path), lambda: NOW_S)
    store.add(used(name=object()))  # type: ignore[arg-type]
    with capture_logs() as logs:
        assert not await store.flush()

    assert logs[0]["event"] == "a flush of the usage failed"


async def test_time_of_calls_by_function_and_key(make: Make) -> None:
    """Pairs with the most time are first, and those without any are left out."""
    store = make()
    for busy_ms, key, name in (
        (5, "k1", "chat"),
        (7, "k1", "chat"),
        (30, "", "embed"),
        (0, "k2", "chat"),
    ):
        store.add(used(key, name)._replace(busy_ms=busy_ms))
        assert await store.flush()

    assert await store.busy(NOW_S, NOW_S) == [("embed", "", 30), ("chat", "k1", 12)]
    assert await store.busy(NOW_S, NOW_S, "chat") == [("chat", "k1", 12)]
    assert await store.busy(NOW_S + HOUR_S, NOW_S + DAY_S) == []
