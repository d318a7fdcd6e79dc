"""The store as a file: schema, transactions, what goes wrong."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest

from registry.errors import StoreUnavailable
from registry.store.database import MIGRATIONS, WRITES_WAITING_MAX, Database, Migration

NUMBER = "INSERT INTO revision_numbers VALUES ('default', ?, 1)"
NUMBERS = "SELECT name FROM revision_numbers ORDER BY name"


async def test_a_new_file_has_the_whole_schema(database: Database) -> None:
    """Every migration has been applied once and is noted by number and name."""
    rows = await database.read("SELECT number, name FROM schema_version ORDER BY number")

    assert rows == [(one.number, one.name) for one in MIGRATIONS]


async def test_what_is_acknowledged_is_durable(database: Database) -> None:
    """The writer syncs each commit, keeps a write-ahead log and checks foreign keys."""
    async with database.write() as transaction:
        settings = [
            (await transaction.query(f"PRAGMA {name}"))[0][0]
            for name in ("journal_mode", "synchronous", "foreign_keys")
        ]

    assert settings == ["wal", 2, 1]


async def test_a_transaction_streams_what_it_wrote(database: Database) -> None:
    """Rows come piece by piece from inside the transaction."""
    async with database.write() as transaction:
        await transaction.execute_many(NUMBER, [("b",), ("a",)])
        pieces = [rows async for rows in transaction.stream(NUMBERS)]

    assert pieces == [[("a",), ("b",)]]


async def test_opening_again_changes_nothing(tmp_path: Path) -> None:
    """A file of the present schema is opened as it is."""
    for _ in range(2):
        database = await Database.open(tmp_path / "db")
        assert len(await database.read("SELECT * FROM schema_version")) == len(MIGRATIONS)
        await database.close()


async def test_an_older_file_is_brought_forward(tmp_path: Path) -> None:
    """Only the missing migrations are applied, and data stays."""
    first = Migration(1, "first", "CREATE TABLE t (a); INSERT INTO t VALUES (1);")
    second = Migration(2, "second", "ALTER TABLE t ADD COLUMN b DEFAULT 2;")

    await (await Database.open(tmp_path / "db", migrations=(first,))).close()
    database = await Database.open(tmp_path / "db", migrations=(first, second))

    assert await database.read("SELECT a, b FROM t") == [(1, 2)]
    await database.close()


async def test_a_migration_happens_whole_or_not_at_all(tmp_path: Path) -> None:
    """One that fails half-way leaves neither its tables nor its number."""
    first = Migration(1, "first", "CREATE TABLE t (a);")
    broken = Migration(2, "broken", "CREATE TABLE u (a); CREATE TABLE t (a);")

    with pytest.raises(sqlite3.OperationalError, match="t already exists"):
        await Database.open(tmp_path / "db", migrations=(first, broken))

    database = await Database.open(tmp_path / "db", migrations=(first,))
    tables = await database.read("SELECT name FROM sqlite_master WHERE type = 'table'")
    assert {row[0] for row in tables} == {"schema_version", "t"}
    await database.close()


async def test_a_newer_file_is_refused(tmp_path: Path) -> None:
    """A schema from the future is not touched, and the text says what to do."""
    before = set(threading.enumerate())
    await (await Database.open(tmp_path / "db")).close()

    with pytest.raises(
        StoreUnavailable, match=r"schema \d and this fngate knows up to 1: .* newer"
    ):
        await Database.open(tmp_path / "db", migrations=MIGRATIONS[:1])

    assert set(threading.enumerate()) == before


async def test_a_failed_transaction_is_undone(database: Database) -> None:
    """An error in the block leaves no trace of what was written before it, and no lock."""

    async def fail() -> None:
        async with database.write() as transaction:
            await transaction.query(NUMBER, ("lost",))
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        await fail()

    async with database.write() as transaction:
        await transaction.query(NUMBER, ("kept",))

    assert await database.read(NUMBERS) == [("kept",)]


async def test_readers_see_only_what_is_committed(database: Database) -> None:
    """During a transaction a reader gets what was before, without waiting."""
    async with database.write() as transaction:
        await transaction.execute_many(NUMBER, [("a",), ("b",)])
        assert await database.read(NUMBERS) == []

    assert await database.read(NUMBERS) == [("a",), ("b",)]


async def test_readers_cannot_write(database: Database) -> None:
    """A writing statement on the reading side is refused."""
    with pytest.raises(StoreUnavailable, match="read-only"):
        await database.read(NUMBER, ("sneaky",))


async def test_writers_take_turns(database: Database) -> None:
    """Transactions begun at the same time run one after another, each whole."""

    async def count_up() -> None:
        async with database.write() as transaction:
            rows = await transaction.query("SELECT count(*) FROM revision_numbers")
            await transaction.query(NUMBER, (f"n{rows[0][0]}",))

    async with asyncio.TaskGroup() as group:
        for _ in range(10):
            group.create_task(count_up())

    assert await database.read(NUMBERS) == [(f"n{n}",) for n in range(10)]


async def test_waiting_writers_are_bounded(database: Database) -> None:
    """One writer more than may wait is refused at once; the others are served."""
    done = []

    async def write() -> None:
        async with database.write():
            done.append(True)

    async with asyncio.TaskGroup() as group, database.write():
        for _ in range(WRITES_WAITING_MAX - 1):
            group.create_task(write())
        await asyncio.sleep(0)
        with pytest.raises(StoreUnavailable, match="256 writes are waiting"):
            await write()

    assert len(done) == WRITES_WAITING_MAX - 1


@pytest.mark.parametrize("turns", range(6))
async def test_a_cancelled_writer_leaves_no_transaction(database: Database, turns: int) -> None:
    """Wherever a writer is cancelled, the next one finds no open transaction."""

    async def write() -> None:
        async with database.write() as transaction:
            await transaction.query(NUMBER, ("first",))
            await transaction.query(NUMBER, ("second",))

    writing = asyncio.create_task(write())
    for _ in range(turns):
        await asyncio.sleep(0)
    writing.cancel()
    await asyncio.wait([writing])

    async with database.write() as transaction:
        await transaction.query(NUMBER, ("third",))

    names = [row[0] for row in await database.read(NUMBERS)]
    assert names in (["third"], ["first", "second", "third"])


async def test_a_locked_file(database: Database, tmp_path: Path) -> None:
    """While another process holds the lock a write says so; afterwards it works."""
    other = sqlite3.connect(tmp_path / "fngate.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    with pytest.raises(StoreUnavailable, match="database locked"):
        async with database.write():
            pytest.fail("there was no lock")
    assert await database.read(NUMBERS) == []

    other.execute("ROLLBACK")
    other.close()
    async with database.write() as transaction:
        await transaction.query(NUMBER, ("a",))


async def test_no_room(database: Database) -> None:
    """A file that may not grow is "disk full"; what was there is still read."""
    async with database.write() as transaction:
        await transaction.query(NUMBER, ("a",))
        pages = (await transaction.query("PRAGMA page_count"))[0][0]
        await transaction.query(f"PRAGMA max_page_count = {pages}")

    with pytest.raises(StoreUnavailable, match="disk full"):
        async with database.write() as transaction:
            await transaction.execute_many(NUMBER, [(f"{n:0>100}",) for n in range(1000)])

    assert await database.read(NUMBERS) == [("a",)]


async def test_a_damaged_file(tmp_path: Path) -> None:
    """A file whose pages are destroyed is told as corrupt, and can be closed."""
    database = await Database.open(tmp_path / "db")
    async with database.write() as transaction:
        await transaction.execute_many(NUMBER, [(f"{n:0>100}",) for n in range(1000)])
    await database.close()
    whole = (tmp_path / "db").read_bytes()
    (tmp_path / "db").write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))

    with pytest.raises(StoreUnavailable, match="database corrupt"):
        database = await Database.open(tmp_path / "db")


async def test_closing_ends_both_threads(tmp_path: Path) -> None:
    """After close no thread is left and every call says that the store is closed."""
    before = set(threading.enumerate())
    database = await Database.open(tmp_path / "db")

    await database.close()
    await database.close()

    assert set(threading.enumerate()) == before
    with pytest.raises(StoreUnavailable, match="closed"):
        await database.read(NUMBERS)
    with pytest.raises(StoreUnavailable, match="closed"):
        async with database.write():
            pytest.fail("it was open")
