"""Tests of the database: connections, transactions, migrations, failures."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest

from registry.errors import Conflict, StoreUnavailable
from registry.store.database import (
    MIGRATIONS,
    WRITES_WAITING_MAX,
    Connection,
    Database,
    Migration,
    explain,
    load_migrations,
    translated,
)

NUMBER = "INSERT INTO revision_numbers VALUES ('default', ?, 1)"
NUMBERS = "SELECT name FROM revision_numbers ORDER BY name"


async def test_a_new_file_has_the_whole_schema(database: Database) -> None:
    """Every migration is applied once and recorded by number and name."""
    rows = await database.read("SELECT number, name FROM schema_version ORDER BY number")

    assert rows == [(one.number, one.name) for one in MIGRATIONS]


async def test_commits_are_durable(database: Database) -> None:
    """The writer syncs each commit, uses a write-ahead log and enforces foreign keys."""
    async with database.write() as transaction:
        settings = [
            (await transaction.query(f"PRAGMA {name}"))[0][0]
            for name in ("journal_mode", "synchronous", "foreign_keys")
        ]

    assert settings == ["wal", 2, 1]


async def test_a_transaction_streams_what_it_wrote(database: Database) -> None:
    """Rows written in a transaction can be streamed within it."""
    async with database.write() as transaction:
        await transaction.execute_many(NUMBER, [("b",), ("a",)])
        pieces = [rows async for rows in transaction.stream(NUMBERS)]

    assert pieces == [[("a",), ("b",)]]


async def test_opening_again_changes_nothing(tmp_path: Path) -> None:
    """A file with the current schema is opened without migrations."""
    for _ in range(2):
        database = await Database.open(tmp_path / "db")
        assert len(await database.read("SELECT * FROM schema_version")) == len(MIGRATIONS)
        await database.close()


async def test_an_older_file_is_migrated(tmp_path: Path) -> None:
    """Only the missing migrations are applied, and the data stays."""
    first = Migration(1, "first", "CREATE TABLE t (a); INSERT INTO t VALUES (1);")
    second = Migration(2, "second", "ALTER TABLE t ADD COLUMN b DEFAULT 2;")

    await (await Database.open(tmp_path / "db", migrations=(first,))).close()
    database = await Database.open(tmp_path / "db", migrations=(first, second))

    assert await database.read("SELECT a, b FROM t") == [(1, 2)]
    await database.close()


async def test_migrations_are_atomic(tmp_path: Path) -> None:
    """A migration that fails half-way leaves neither tables nor numbers, of the ones before it
    neither: the release that wrote the file can still open it."""
    first = Migration(1, "first", "CREATE TABLE t (a);")
    broken = Migration(2, "broken", "CREATE TABLE u (a); CREATE TABLE t (a);")

    with pytest.raises(sqlite3.OperationalError, match="t already exists"):
        await Database.open(tmp_path / "db", migrations=(first, broken))

    database = await Database.open(tmp_path / "db", migrations=())
    tables = await database.read("SELECT name FROM sqlite_master WHERE type = 'table'")
    assert {row[0] for row in tables} == {"schema_version"}
    assert await database.read("SELECT number FROM schema_version") == []
    await database.close()


async def test_a_newer_file_is_refused(tmp_path: Path) -> None:
    """A newer schema is not modified; the error says what to do, and no thread remains."""
    before = set(threading.enumerate())
    await (await Database.open(tmp_path / "db")).close()

    with pytest.raises(
        StoreUnavailable, match=r"schema \d+ and this fngate knows up to 1: .* newer"
    ):
        await Database.open(tmp_path / "db", migrations=MIGRATIONS[:1])

    assert set(threading.enumerate()) == before


async def test_a_failed_transaction_is_rolled_back(database: Database) -> None:
    """An error in the block discards its writes and releases the lock."""

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
    """During a transaction a reader sees the state before it, without waiting."""
    async with database.write() as transaction:
        await transaction.execute_many(NUMBER, [("a",), ("b",)])
        assert await database.read(NUMBERS) == []

    assert await database.read(NUMBERS) == [("a",), ("b",)]


async def test_readers_cannot_write(database: Database) -> None:
    """A writing statement on the read connection is refused."""
    with pytest.raises(StoreUnavailable, match="read-only"):
        await database.read(NUMBER, ("sneaky",))


async def test_transactions_are_serialised(database: Database) -> None:
    """Concurrent transactions run one after another."""

    async def count_up() -> None:
        async with database.write() as transaction:
            rows = await transaction.query("SELECT count(*) FROM revision_numbers")
            await transaction.query(NUMBER, (f"n{rows[0][0]}",))

    async with asyncio.TaskGroup() as group:
        for _ in range(10):
            group.create_task(count_up())

    assert await database.read(NUMBERS) == [(f"n{n}",) for n in range(10)]


async def test_waiting_writers_are_bounded(database: Database) -> None:
    """A writer beyond the limit is refused at once; the others are served."""
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
    """While another process holds the lock, a write fails as locked; afterwards it works."""
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


async def test_a_full_disk(database: Database) -> None:
    """A file that may not grow fails as "disk full"; existing data stays readable."""
    async with database.write() as transaction:
        await transaction.query(NUMBER, ("a",))
        pages = (await transaction.query("PRAGMA page_count"))[0][0]
        await transaction.query(f"PRAGMA max_page_count = {pages}")

    with pytest.raises(StoreUnavailable, match="disk full"):
        async with database.write() as transaction:
            await transaction.execute_many(NUMBER, [(f"{n:0>100}",) for n in range(1000)])

    assert await database.read(NUMBERS) == [("a",)]


async def test_a_damaged_file(tmp_path: Path) -> None:
    """A file with damaged pages is reported as corrupt, and opening leaves no thread."""
    database = await Database.open(tmp_path / "db")
    async with database.write() as transaction:
        await transaction.execute_many(NUMBER, [(f"{n:0>100}",) for n in range(1000)])
    await database.close()
    whole = (tmp_path / "db").read_bytes()
    (tmp_path / "db").write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))

    with pytest.raises(StoreUnavailable, match="database corrupt"):
        database = await Database.open(tmp_path / "db")


async def test_closing_ends_both_threads(tmp_path: Path) -> None:
    """After `close` no thread remains, and every call fails as closed."""
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


async def test_statements_and_rows(tmp_path: Path) -> None:
    """Rows are tuples; a statement without rows returns an empty list."""
    connection = Connection(tmp_path / "db", 0, ["foreign_keys = ON"])
    await connection.open()

    assert await connection.query("CREATE TABLE t (a, b)") == []
    await connection.execute_many("INSERT INTO t VALUES (?, ?)", [(1, "x"), (2, None)])
    await connection.script("INSERT INTO t VALUES (3, 'y'); DELETE FROM t WHERE a = 1;")

    assert await connection.query("SELECT * FROM t WHERE a > ?", (1,)) == [(2, None), (3, "y")]
    assert await connection.query("PRAGMA foreign_keys") == [(1,)]
    await connection.close()


async def test_a_stream_gives_all_rows_in_pieces(tmp_path: Path) -> None:
    """A stream returns every row, in pieces of bounded size."""
    connection = Connection(tmp_path / "db", 0, [])
    await connection.open()
    await connection.query("CREATE TABLE t (a)")
    await connection.query("BEGIN")  # one commit, not one for each row
    await connection.execute_many("INSERT INTO t VALUES (?)", [(n,) for n in range(1, 1201)])
    await connection.query("COMMIT")

    pieces = [rows async for rows in connection.stream("SELECT a FROM t WHERE a > ?", (100,))]

    assert [len(rows) for rows in pieces] == [500, 500, 100]
    assert [row for rows in pieces for row in rows] == [(n,) for n in range(101, 1201)]
    await connection.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await anext(connection.stream("SELECT a FROM t"))


async def test_closing_ends_the_thread(tmp_path: Path) -> None:
    """After `close` no thread remains; a second `close` has no effect."""
    before = set(threading.enumerate())
    connection = Connection(tmp_path / "db", 0, [])
    await connection.open()
    assert set(threading.enumerate()) > before

    await connection.close()
    await connection.close()

    assert set(threading.enumerate()) == before


@pytest.mark.parametrize("content", [b"this is no database" * 100])
async def test_a_failed_open_leaves_no_thread(tmp_path: Path, content: bytes) -> None:
    """A file that is no database, or a missing folder, is reported, and no thread remains."""
    before = set(threading.enumerate())
    (tmp_path / "db").write_bytes(content)

    with pytest.raises(StoreUnavailable, match="database corrupt: file is not a database"):
        await Connection(tmp_path / "db", 0, ["journal_mode = WAL"]).open()
    with pytest.raises(StoreUnavailable, match="database cannot be opened"):
        await Connection(tmp_path / "missing" / "db", 0, []).open()

    assert set(threading.enumerate()) == before


async def test_a_closed_connection_refuses_calls(tmp_path: Path) -> None:
    """Before `open` and after `close` every call fails as closed."""
    connection = Connection(tmp_path / "db", 0, [])

    for call in (
        connection.query("SELECT 1"),
        connection.execute_many("SELECT 1", []),
        connection.script("SELECT 1"),
        connection.rollback(),
    ):
        with pytest.raises(StoreUnavailable, match="the store is closed"):
            await call


@pytest.mark.parametrize("turns", range(4))
async def test_a_cancelled_opening_leaves_nothing(tmp_path: Path, turns: int) -> None:
    """A cancelled `open` leaves no thread once the connection is closed."""
    before = set(threading.enumerate())
    connection = Connection(tmp_path / "db", 0, [])
    opening = asyncio.create_task(connection.open())
    for _ in range(turns):
        await asyncio.sleep(0)

    opening.cancel()
    await asyncio.wait([opening])

    # The thread may have been ready before the cancellation; then it has to be closed.
    await connection.close()
    assert set(threading.enumerate()) == before


def error(kind: type[sqlite3.Error], code: int) -> sqlite3.Error:
    made = kind("reason")
    made.sqlite_errorcode = code
    return made


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (sqlite3.SQLITE_BUSY, "database locked"),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, "database locked"),
        (sqlite3.SQLITE_LOCKED, "database locked"),
        (sqlite3.SQLITE_FULL, "disk full"),
        (sqlite3.SQLITE_CORRUPT, "database corrupt"),
        (sqlite3.SQLITE_NOTADB, "database corrupt"),
        (sqlite3.SQLITE_IOERR_WRITE, "disk error"),
        (sqlite3.SQLITE_READONLY, "database read-only"),
    ],
)
def test_sqlite_errors_are_explained(code: int, text: str) -> None:
    """Each SQLite code, extended ones included, has the store's wording."""
    assert str(explain(error(sqlite3.OperationalError, code))) == f"{text}: reason"


def test_constraint_violations_are_conflicts() -> None:
    """A row that violates a constraint is a Conflict whose cause is kept."""
    with pytest.raises(Conflict) as caught, translated():
        raise error(sqlite3.IntegrityError, sqlite3.SQLITE_CONSTRAINT_UNIQUE)

    assert isinstance(caught.value.__cause__, sqlite3.IntegrityError)


def test_programming_errors_are_not_translated() -> None:
    """An error that only a bug can cause is re-raised unchanged."""
    with pytest.raises(sqlite3.OperationalError, match="reason"), translated():
        raise error(sqlite3.OperationalError, sqlite3.SQLITE_ERROR)


def test_migrations_are_loaded_in_order(tmp_path: Path) -> None:
    """Migration files are loaded by number; other files are ignored."""
    (tmp_path / "0002_more.sql").write_text("two")
    (tmp_path / "0001_first.sql").write_text("one")
    (tmp_path / "README").touch()

    assert load_migrations(tmp_path) == (Migration(1, "first", "one"), Migration(2, "more", "two"))


@pytest.mark.parametrize("name", ["1_first.sql", "0001.sql", "0001_First.sql", "0001_a'b.sql"])
def test_malformed_migration_names_are_refused(tmp_path: Path, name: str) -> None:
    """A SQL file not named NNNN_name.sql is refused, not skipped."""
    (tmp_path / name).touch()

    with pytest.raises(ValueError, match="expected NNNN_name"):
        load_migrations(tmp_path)


@pytest.mark.parametrize("names", [["0002_a.sql"], ["0001_a.sql", "0001_b.sql"]])
def test_gaps_and_duplicates_are_refused(tmp_path: Path, names: list[str]) -> None:
    """Migration numbers are 1, 2, 3 and so on."""
    for name in names:
        (tmp_path / name).touch()

    with pytest.raises(ValueError, match="expected numbers 1 to"):
        load_migrations(tmp_path)


def test_the_shipped_migrations() -> None:
    """The shipped migrations are numbered from 1 and contain no transaction statements."""
    assert [one.number for one in MIGRATIONS] == list(range(1, len(MIGRATIONS) + 1))
    assert MIGRATIONS
    assert not any("COMMIT" in one.sql.upper() for one in MIGRATIONS)
