"""One SQLite connection and its thread."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest

from registry.errors import Conflict, StoreUnavailable
from registry.store.database import Connection, explain, translated


async def test_statements_and_rows(tmp_path: Path) -> None:
    """Rows come back as tuples; a statement without rows gives none."""
    connection = Connection(tmp_path / "db", 0, ["foreign_keys = ON"])
    await connection.open()

    assert await connection.query("CREATE TABLE t (a, b)") == []
    await connection.execute_many("INSERT INTO t VALUES (?, ?)", [(1, "x"), (2, None)])
    await connection.script("INSERT INTO t VALUES (3, 'y'); DELETE FROM t WHERE a = 1;")

    assert await connection.query("SELECT * FROM t WHERE a > ?", (1,)) == [(2, None), (3, "y")]
    assert await connection.query("PRAGMA foreign_keys") == [(1,)]
    await connection.close()


async def test_a_stream_gives_all_rows_in_pieces(tmp_path: Path) -> None:
    """However many rows there are, few are in memory together; none is missed."""
    connection = Connection(tmp_path / "db", 0, [])
    await connection.open()
    await connection.query("CREATE TABLE t (a)")
    await connection.execute_many("INSERT INTO t VALUES (?)", [(n,) for n in range(1, 1201)])

    pieces = [rows async for rows in connection.stream("SELECT a FROM t WHERE a > ?", (100,))]

    assert [len(rows) for rows in pieces] == [500, 500, 100]
    assert [row for rows in pieces for row in rows] == [(n,) for n in range(101, 1201)]
    await connection.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await anext(connection.stream("SELECT a FROM t"))


async def test_closing_ends_the_thread(tmp_path: Path) -> None:
    """After close no thread is left, and a second close is fine."""
    before = set(threading.enumerate())
    connection = Connection(tmp_path / "db", 0, [])
    await connection.open()
    assert set(threading.enumerate()) > before

    await connection.close()
    await connection.close()

    assert set(threading.enumerate()) == before


@pytest.mark.parametrize("content", [b"this is no database" * 100])
async def test_what_cannot_be_opened_leaves_nothing(tmp_path: Path, content: bytes) -> None:
    """A file that is no database, or a folder that is not there, is told, and no thread stays."""
    before = set(threading.enumerate())
    (tmp_path / "db").write_bytes(content)

    with pytest.raises(StoreUnavailable, match="database corrupt: file is not a database"):
        await Connection(tmp_path / "db", 0, ["journal_mode = WAL"]).open()
    with pytest.raises(StoreUnavailable, match="database cannot be opened"):
        await Connection(tmp_path / "missing" / "db", 0, []).open()

    assert set(threading.enumerate()) == before


async def test_a_closed_connection_says_so(tmp_path: Path) -> None:
    """Before open and after close every call is refused in the store's words."""
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
    """Whoever gives up while the file is opened leaves no thread behind."""
    before = set(threading.enumerate())
    connection = Connection(tmp_path / "db", 0, [])
    opening = asyncio.create_task(connection.open())
    for _ in range(turns):
        await asyncio.sleep(0)

    opening.cancel()
    await asyncio.wait([opening])

    # A quick thread may have been ready before the cancellation; then there is one to close.
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
def test_reasons(code: int, text: str) -> None:
    """Each of SQLite's codes, also an extended one, is said in the store's words."""
    assert str(explain(error(sqlite3.OperationalError, code))) == f"{text}: reason"


def test_broken_rules_are_conflicts() -> None:
    """A row that breaks a rule of its table is the caller's conflict, with the cause kept."""
    with pytest.raises(Conflict) as caught, translated():
        raise error(sqlite3.IntegrityError, sqlite3.SQLITE_CONSTRAINT_UNIQUE)

    assert isinstance(caught.value.__cause__, sqlite3.IntegrityError)


def test_our_own_mistakes_are_not_dressed_up() -> None:
    """An error that only a bug can cause stays what it is."""
    with pytest.raises(sqlite3.OperationalError, match="reason"), translated():
        raise error(sqlite3.OperationalError, sqlite3.SQLITE_ERROR)
