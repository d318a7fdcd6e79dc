"""The durable store: one SQLite file, one writer, readers that never wait for it.

The writer commits with `synchronous=FULL`: what was acknowledged survives a power cut. One commit
then costs one fsync, which is fine for deploys; history, which comes often, is committed in groups.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Final

from registry.errors import FnError, StoreUnavailable
from registry.files import unavailable
from registry.store.connection import Connection, Row, Values
from registry.store.schema import MIGRATIONS, Migration

WRITES_WAITING_MAX: Final = 256

_SHARED: Final = ("foreign_keys = ON", "temp_store = MEMORY")
_WRITER: Final = ("journal_mode = WAL", "synchronous = FULL", *_SHARED)
_READER: Final = ("query_only = ON", *_SHARED)


class Transaction:
    """What may be done inside `Database.write`; all of it happens, or none."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def query(self, sql: str, values: Values = ()) -> list[Row]:
        """Run one statement, also a writing one, and fetch the rows it returns."""
        return await self._connection.query(sql, values)

    def stream(self, sql: str, values: Values = ()) -> AsyncIterator[list[Row]]:
        """Run one reading statement and give its rows piece by piece."""
        return self._connection.stream(sql, values)

    async def execute_many(self, sql: str, rows: Iterable[Values]) -> None:
        """Run one writing statement once for each row of values."""
        await self._connection.execute_many(sql, rows)


class Database:
    """An open store. `open` and `close` are its life; both may raise StoreUnavailable."""

    def __init__(self, writer: Connection, reader: Connection) -> None:
        self._writer = writer
        self._reader = reader
        self._turn = asyncio.Lock()
        self._waiting = 0

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        busy_s: float = 5.0,
        migrations: tuple[Migration, ...] = MIGRATIONS,
    ) -> Database:
        """Open or create the file at `path` and bring its schema up to date.

        `busy_s`: seconds to wait for another process's lock. Raises StoreUnavailable where the
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
        return cls(writer, reader)

    async def close(self) -> None:
        """Finish the open transaction and end both threads."""
        try:
            async with self._turn:
                await self._reader.close()
        finally:
            await self._writer.close()

    async def read(self, sql: str, values: Values = ()) -> list[Row]:
        """Run one reading statement on what is committed."""
        return await self._reader.query(sql, values)

    @contextlib.asynccontextmanager
    async def write(self) -> AsyncIterator[Transaction]:
        """A transaction: committed where the block ends, undone where it raises.

        Writers take turns; more than WRITES_WAITING_MAX waiting raises StoreUnavailable. A caller
        cancelled during the commit itself cannot know whether it happened.
        """
        if self._waiting >= WRITES_WAITING_MAX:
            raise StoreUnavailable(f"{self._waiting} writes are waiting for the database already")
        self._waiting += 1
        try:
            async with self._turn, _transaction(self._writer) as transaction:
                yield transaction
        finally:
            self._waiting -= 1


def _keep_private(path: Path) -> None:
    """Nobody but this user may read it: it has the hashes of keys. SQLite gives the files beside
    it the same mode."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        for found in (path, *(path.with_name(path.name + side) for side in ("-wal", "-shm"))):
            with contextlib.suppress(FileNotFoundError):
                if found.stat().st_uid == os.geteuid() and found.stat().st_mode & 0o077:
                    found.chmod(0o600)
    except OSError as error:
        raise unavailable(error) from error


@contextlib.asynccontextmanager
async def _transaction(connection: Connection) -> AsyncIterator[Transaction]:
    try:
        # IMMEDIATE takes the write lock now, so that no later statement can find it taken.
        await connection.query("BEGIN IMMEDIATE")
        yield Transaction(connection)
        await connection.query("COMMIT")
    except BaseException:
        with contextlib.suppress(FnError):  # the first error is the one to tell
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
    for migration in migrations:
        if migration.number > present:
            await _apply(connection, migration)


async def _apply(connection: Connection, migration: Migration) -> None:
    # Number and name come from a file name of ours that matched a pattern without quotes.
    record = f"INSERT INTO schema_version VALUES ({migration.number}, '{migration.name}');"  # noqa: S608  # see above
    try:
        await connection.script(f"BEGIN IMMEDIATE;\n{migration.sql}\n{record}\nCOMMIT;")
    except BaseException:
        with contextlib.suppress(FnError):
            await connection.rollback()
        raise
