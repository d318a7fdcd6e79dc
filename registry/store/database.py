"""Durable store: one SQLite file, one writer, and readers that never wait for it.

The writer commits with `synchronous=FULL`, so acknowledged data survives a power failure. One
commit costs one fsync, which is acceptable for deploys; the frequent history records are committed
in groups.

`Database` opens two `Connection`s, each with its own thread, applies the migrations (numbered SQL
files, whose statements never change after a release), and translates SQLite's errors.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiosqlite

from registry.errors import Conflict, FnError, StoreUnavailable
from registry.files import unavailable
from registry.store.ballast import Ballast

Row = tuple[Any, ...]
Step = Callable[[], Awaitable[list[Row]]]
Values = Sequence[str | int | float | bytes | None]

_JOIN_S: Final = 10.0
_ROWS_AT_ONCE: Final = 64
_PIECE: Final = 500
"""Rows of a stream that are fetched together."""
CORRUPT: Final = "database corrupt"
"""Prefix of the error text for a damaged database."""
_PRIMARY_CODE: Final = 0xFF
"""Mask of the primary code in SQLite's extended result codes (sqlite.org/rescode)."""
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
_FULL: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
"""Codes of a full disk. It is an error of input or output where it met the shared memory of the
write-ahead log."""
_FILE: Final = re.compile(r"([0-9]{4})_([a-z0-9_]+)\.sql")

WRITES_WAITING_MAX: Final = 256

_SHARED: Final = ("foreign_keys = ON", "temp_store = MEMORY")
_WRITER: Final = ("journal_mode = WAL", "synchronous = FULL", *_SHARED)
_READER: Final = ("query_only = ON", *_SHARED)


def explain(error: sqlite3.Error) -> FnError | None:
    """Return the project's error for one of SQLite's, None for those that only a bug can cause."""
    code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY_CODE
    if code in _REASONS:
        return StoreUnavailable(f"{_REASONS[code]}: {error}")
    if isinstance(error, sqlite3.IntegrityError):
        return Conflict(f"the store refuses it: {error}")
    return None


def _is_full(error: StoreUnavailable) -> bool:
    """Return whether a full disk can be the cause."""
    return getattr(error.__cause__, "sqlite_errorcode", 0) & _PRIMARY_CODE in _FULL


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Translate SQLite's errors to the project's, keeping them as the cause."""
    try:
        yield
    except sqlite3.Error as error:
        ours = explain(error)
        if ours is None:
            raise
        raise ours from error


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema. `sql` contains only statements; `_apply` adds the transaction."""

    number: int
    name: str
    sql: str


def load_migrations(folder: Path) -> tuple[Migration, ...]:
    """Read `NNNN_name.sql` files in order. Raises ValueError unless the numbers are 1, 2, 3, …"""
    found = []
    for path in sorted(folder.glob("*.sql")):
        match = _FILE.fullmatch(path.name)
        if match is None:
            raise ValueError(f"{path.name}: expected NNNN_name.sql")
        found.append(Migration(int(match[1]), match[2], path.read_text()))
    numbers = [migration.number for migration in found]
    if numbers != list(range(1, len(found) + 1)):
        raise ValueError(f"migrations: expected numbers 1 to {len(found)}, got {numbers}")
    return tuple(found)


MIGRATIONS: Final = load_migrations(Path(__file__).parent / "migrations")


class Connection:
    """An open connection. Statements run in the order of the calls, in the connection's thread.

    The statement of a cancelled caller still runs; because of the order, a later rollback undoes
    it.
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
        # Without an isolation level the sqlite3 module does not begin transactions itself.
        self._raw = sqlite3.connect(
            self._path, timeout=self._busy_s, isolation_level=None, check_same_thread=False
        )
        for pragma in self._pragmas:
            self._raw.execute(f"PRAGMA {pragma}")
        return self._raw

    async def open(self) -> None:
        """Connect and set the pragmas. Raises StoreUnavailable; nothing remains open then."""
        try:
            with translated():
                await self._sqlite
            self._open = True
        finally:
            if not self._open:
                # aiosqlite has stopped the thread, but does not close the connection if its caller
                # was cancelled.
                self._begun.wait(_JOIN_S)
                self._join()

    async def close(self) -> None:
        """Finish queued statements, close, and end the thread. Idempotent."""
        if not self._open:
            return
        self._open = False
        try:
            with translated():
                await self._sqlite.close()
        finally:
            self._join()

    def _join(self) -> None:
        # The thread is about to return. Once it has, closing here is safe, and idempotent.
        self._thread.join(_JOIN_S)
        if self._raw is not None:
            self._raw.close()

    async def query(self, sql: str, values: Values = ()) -> list[Row]:
        """Run one statement and return all its rows; [] if it has none."""
        self._check_open()
        with translated():
            return list(await self._sqlite.execute_fetchall(sql, values))  # type: ignore[arg-type]  # rows are tuples: no row factory is set

    async def stream(self, sql: str, values: Values = ()) -> AsyncIterator[list[Row]]:
        """Run one reading statement and yield its rows in chunks.

        For callers that keep far less than all rows.
        """
        self._check_open()
        with translated():
            async with self._sqlite.execute(sql, values) as cursor:
                while rows := await cursor.fetchmany(_PIECE):
                    yield list(rows)  # type: ignore[arg-type]  # rows are tuples: no row factory

    async def execute_many(self, sql: str, rows: Iterable[Values]) -> None:
        """Run one statement once per row of values."""
        self._check_open()
        with translated():
            async with self._sqlite.executemany(sql, rows):
                pass

    async def script(self, sql: str) -> None:
        """Run several statements without values."""
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


class Transaction:
    """Statements inside `Database.write`, committed or rolled back together.

    With `ballast`, a full disk costs the ballast: the statements so far are repeated in a new
    transaction, which finds the same rows, because there is no other writer.
    """

    def __init__(self, connection: Connection, ballast: Ballast | None = None) -> None:
        self._connection = connection
        self._ballast = ballast
        self._done: list[Step] = []

    async def query(self, sql: str, values: Values = ()) -> list[Row]:
        """Run one reading or writing statement and return its rows."""
        return await self._run(lambda: self._connection.query(sql, values))

    def stream(self, sql: str, values: Values = ()) -> AsyncIterator[list[Row]]:
        """Run one reading statement and yield its rows in chunks."""
        return self._connection.stream(sql, values)

    async def execute_many(self, sql: str, rows: Iterable[Values]) -> None:
        """Run one writing statement once per row of values."""
        kept = list(rows)

        async def step() -> list[Row]:
            await self._connection.execute_many(sql, kept)
            return []

        await self._run(step)

    async def _run(self, step: Step) -> list[Row]:
        ballast = self._ballast
        try:
            rows = await step()
        except StoreUnavailable as error:
            if ballast is None or not _is_full(error):
                raise
            if not await asyncio.to_thread(ballast.give_up):
                raise
            await self._connection.rollback()
            for done in self._done:
                await done()
            rows = await step()
        if ballast is not None:
            self._done.append(step)
        return rows


class Database:
    """An open database. `open` and `close` may raise StoreUnavailable."""

    def __init__(
        self, writer: Connection, reader: Connection, ballast: Ballast | None = None
    ) -> None:
        self._writer = writer
        self._reader = reader
        self._ballast = ballast
        self._turn = asyncio.Lock()
        self._waiting = 0

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        busy_s: float = 5.0,
        migrations: tuple[Migration, ...] = MIGRATIONS,
        ballast: Ballast | None = None,
    ) -> Database:
        """Open or create the file at `path` and migrate its schema.

        `busy_s`: max seconds to wait for another process's lock. `ballast`: room of the disk for
        `write(is_vital=True)`. Raises StoreUnavailable if the
        file cannot be opened, is damaged, is locked, or was written by a newer fngate.
        """
        _keep_private(path)
        writer = Connection(path, busy_s, _WRITER)
        reader = Connection(path, busy_s, _READER)
        try:
            await writer.open()
            await _migrate(writer, migrations)
            await reader.open()
        except BaseException:
            await reader.close()
            await writer.close()
            raise
        return cls(writer, reader, ballast)

    async def close(self) -> None:
        """Finish the open transaction and end both threads."""
        try:
            async with self._turn:
                await self._reader.close()
        finally:
            await self._writer.close()

    async def read(self, sql: str, values: Values = ()) -> list[Row]:
        """Run one reading statement on the committed data."""
        return await self._reader.query(sql, values)

    @contextlib.asynccontextmanager
    async def write(self, *, is_vital: bool = False) -> AsyncIterator[Transaction]:
        """Open a transaction: committed at the end of the block, rolled back if the block raises.

        `is_vital`: it changes keys or settings, so a full disk costs the ballast.
        Writers run one after the other; more than WRITES_WAITING_MAX waiting ones raise
        StoreUnavailable. A caller that is cancelled during the commit cannot know whether it took
        effect.
        """
        if self._waiting >= WRITES_WAITING_MAX:
            raise StoreUnavailable(f"{self._waiting} writes are waiting for the database already")
        self._waiting += 1
        try:
            ballast = self._ballast if is_vital else None
            async with self._turn, _transaction(self._writer, ballast) as transaction:
                yield transaction
        finally:
            self._waiting -= 1


def _keep_private(path: Path) -> None:
    """Restrict the file to this user, because it contains hashes of keys.

    SQLite gives the files beside it the same mode.
    """
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        for found in (path, *(path.with_name(path.name + side) for side in ("-wal", "-shm"))):
            with contextlib.suppress(FileNotFoundError):
                if found.stat().st_uid == os.geteuid() and found.stat().st_mode & 0o077:
                    found.chmod(0o600)
    except OSError as error:
        raise unavailable(error) from error


@contextlib.asynccontextmanager
async def _transaction(
    connection: Connection, ballast: Ballast | None
) -> AsyncIterator[Transaction]:
    transaction = Transaction(connection, ballast)
    try:
        # IMMEDIATE takes the write lock now, so that no later statement can fail to get it.
        await transaction.query("BEGIN IMMEDIATE")
        yield transaction
        await transaction.query("COMMIT")
    except BaseException:
        with contextlib.suppress(FnError):  # report the first error
            await connection.rollback()
        raise


async def _migrate(connection: Connection, migrations: tuple[Migration, ...]) -> None:
    await connection.query(
        "CREATE TABLE IF NOT EXISTS schema_version (number INTEGER PRIMARY KEY, name TEXT NOT NULL)"
    )
    rows = await connection.query("SELECT coalesce(max(number), 0) FROM schema_version")
    present, known = rows[0][0], max((one.number for one in migrations), default=0)
    if present > known:
        raise StoreUnavailable(
            f"the database has schema {present} and this fngate knows up to {known}: "
            "it was written by a newer fngate; start that version, or restore a backup"
        )
    missing = [one for one in migrations if one.number > present]
    if missing:
        await _apply(connection, missing)


async def _apply(connection: Connection, missing: Iterable[Migration]) -> None:
    """Apply all of them or none: after a failed upgrade the earlier release still opens the file.
    One commit, too: a new file would take as many as there are migrations."""
    # Numbers and names come from our own file names, which matched a pattern without quotes.
    steps = "".join(
        f"{one.sql}\nINSERT INTO schema_version VALUES ({one.number}, '{one.name}');\n"
        for one in missing
    )
    try:
        await connection.script(f"BEGIN IMMEDIATE;\n{steps}COMMIT;")
    except BaseException:
        with contextlib.suppress(FnError):
            await connection.rollback()
        raise
