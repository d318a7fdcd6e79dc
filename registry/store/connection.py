"""One SQLite connection with the thread it lives in. Errors of SQLite end here."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import aiosqlite

from registry.errors import Conflict, FnError, StoreUnavailable

Row = tuple[Any, ...]
Values = Sequence[str | int | float | bytes | None]

_JOIN_S: Final = 10.0
_ROWS_AT_ONCE: Final = 64
_PIECE: Final = 500
"""Rows of a stream that are in memory together."""
CORRUPT: Final = "database corrupt"
"""How the text begins that tells of a damaged database."""
_PRIMARY_CODE: Final = 0xFF
"""SQLite's extended result codes keep the primary code in their low byte (sqlite.org/rescode)."""
_REASONS: Final[dict[int, str]] = {
    sqlite3.SQLITE_BUSY: "database locked",
    sqlite3.SQLITE_LOCKED: "database locked",
    sqlite3.SQLITE_FULL: "disk full",
    sqlite3.SQLITE_CORRUPT: CORRUPT,
    sqlite3.SQLITE_NOTADB: CORRUPT,
    sqlite3.SQLITE_READONLY: "database read-only",
    sqlite3.SQLITE_PERM: "database not permitted",
    sqlite3.SQLITE_CANTOPEN: "database cannot be opened",
    sqlite3.SQLITE_IOERR: "disk error",
    sqlite3.SQLITE_NOMEM: "out of memory",
}


def explain(error: sqlite3.Error) -> FnError | None:
    """Our error for one of SQLite's, or None for those that only a bug of ours can cause."""
    code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY_CODE
    if code in _REASONS:
        return StoreUnavailable(f"{_REASONS[code]}: {error}")
    if isinstance(error, sqlite3.IntegrityError):
        return Conflict(f"the store refuses it: {error}")
    return None


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Turn SQLite's errors into ours, the cause kept."""
    try:
        yield
    except sqlite3.Error as error:
        ours = explain(error)
        if ours is None:
            raise
        raise ours from error


class Connection:
    """An open connection. Statements run in order of call, each in the connection's thread.

    A cancelled caller's statement still runs; the order makes a rollback after it effective.
    """

    def __init__(self, path: Path, busy_s: float, pragmas: Iterable[str]) -> None:
        self._path = path
        self._busy_s = busy_s
        self._pragmas = tuple(pragmas)
        self._begun = threading.Event()
        self._thread = threading.current_thread()
        self._raw: sqlite3.Connection | None = None
        self._open = False
        self._sqlite = aiosqlite.Connection(self._connect, _ROWS_AT_ONCE)

    def _connect(self) -> sqlite3.Connection:
        self._thread = threading.current_thread()
        self._begun.set()
        # Without an isolation level the module begins no transactions of its own.
        self._raw = sqlite3.connect(
            self._path, timeout=self._busy_s, isolation_level=None, check_same_thread=False
        )
        for pragma in self._pragmas:
            self._raw.execute(f"PRAGMA {pragma}")
        return self._raw

    async def open(self) -> None:
        """Connect and set the pragmas. Raises StoreUnavailable; nothing is left open then."""
        try:
            with translated():
                await self._sqlite
            self._open = True
        finally:
            if not self._open:
                # The thread was told to stop, but of a caller that was cancelled it does not know
                # what to close.
                self._begun.wait(_JOIN_S)
                self._join()

    async def close(self) -> None:
        """Finish what was asked, close, and end the thread. Closing twice is fine."""
        if not self._open:
            return
        self._open = False
        try:
            with translated():
                await self._sqlite.close()
        finally:
            self._join()

    def _join(self) -> None:
        # By now the thread has nothing left to do but return; once it has, closing from here is
        # safe, and closing twice is nothing.
        self._thread.join(_JOIN_S)
        if self._raw is not None:
            self._raw.close()

    async def query(self, sql: str, values: Values = ()) -> list[Row]:
        """Run one statement and fetch all its rows; [] where it has none."""
        self._check_open()
        with translated():
            return list(await self._sqlite.execute_fetchall(sql, values))  # type: ignore[arg-type]  # rows are tuples: no row factory is set

    async def stream(self, sql: str, values: Values = ()) -> AsyncIterator[list[Row]]:
        """Run one reading statement and give its rows piece by piece: what is made of many rows
        is often much less than the rows."""
        self._check_open()
        with translated():
            async with self._sqlite.execute(sql, values) as cursor:
                while rows := await cursor.fetchmany(_PIECE):
                    yield list(rows)  # type: ignore[arg-type]  # rows are tuples: no row factory

    async def execute_many(self, sql: str, rows: Iterable[Values]) -> None:
        """Run one statement once for each row of values."""
        self._check_open()
        with translated():
            async with self._sqlite.executemany(sql, rows):
                pass

    async def script(self, sql: str) -> None:
        """Run several statements that take no values."""
        self._check_open()
        with translated():
            async with self._sqlite.executescript(sql):
                pass

    async def rollback(self) -> None:
        """Undo the open transaction, if there is one."""
        self._check_open()
        with translated():
            await self._sqlite.rollback()

    def _check_open(self) -> None:
        if not self._open:
            raise StoreUnavailable("the store is closed")
