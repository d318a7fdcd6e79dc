"""Tests of copying a database that is in use."""

from __future__ import annotations

import os
import resource
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from registry.errors import StoreUnavailable
from registry.store.database import Database
from registry.store.recovery import copying
from registry.store.recovery.copying import CopyStopped, copy_database
from registry.store.recovery.inspection import inspect_database

ROW = "INSERT INTO revision_numbers VALUES ('default', ?, 1)"


async def fill(database: Database, first: int, count: int) -> None:
    async with database.write() as transaction:
        await transaction.execute_many(ROW, [(f"{n:0>200}",) for n in range(first, first + count)])


def rows(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("SELECT count(*) FROM revision_numbers").fetchone()[0])


async def test_a_copy_of_a_database_that_is_written(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy is one private file with a consistent state of the source, write-ahead log included;
    concurrent commits neither wait nor are in it."""
    await fill(database, 0, 500)
    monkeypatch.setattr(copying, "PAGES_AT_ONCE", 4)
    source, target = tmp_path / "fngate.db", tmp_path / "copy.db"
    written = []

    def write() -> bool:
        with closing(sqlite3.connect(source, timeout=0)) as other, other:
            other.execute(ROW, (f"late {len(written)}",))
        written.append(True)
        return False

    report = copy_database(source, target, is_stopped=write)

    assert len(written) > 3
    assert (report.state, rows(target), rows(source)) == ("sound", 500, 500 + len(written))
    assert inspect_database(target, is_checked=True) == report
    assert target.stat().st_mode & 0o777 == 0o600
    assert [name for name in os.listdir(tmp_path) if "copy" in name] == ["copy.db"]


async def test_a_copy_that_is_stopped_leaves_the_old_one(
    database: Database, tmp_path: Path
) -> None:
    """A stopped copy leaves the old file and no partial one."""
    (tmp_path / "copy.db").write_bytes(b"old")

    with pytest.raises(CopyStopped):
        copy_database(tmp_path / "fngate.db", tmp_path / "copy.db", is_stopped=lambda: True)

    assert (tmp_path / "copy.db").read_bytes() == b"old"
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


@contextmanager
def files_of_at_most(limit: int) -> Iterator[None]:
    """Make writes beyond `limit` bytes of any file fail, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_full_disk_leaves_the_old_copy(database: Database, tmp_path: Path) -> None:
    """The error says that the disk is full; the last good copy stays and no other file remains."""
    await fill(database, 0, 500)
    (tmp_path / "copy.db").write_bytes(b"old")

    with files_of_at_most(20_000), pytest.raises(StoreUnavailable, match=r"disk (full|error)"):
        copy_database(tmp_path / "fngate.db", tmp_path / "copy.db")

    assert (tmp_path / "copy.db").read_bytes() == b"old"
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


async def test_a_damaged_source_replaces_no_copy(tmp_path: Path) -> None:
    """A damaged page, which SQLite copies unchecked, is detected in the copy."""
    database = await Database.open(tmp_path / "db")
    await fill(database, 0, 500)
    await database.close()
    with (tmp_path / "db").open("r+b") as file:
        file.seek(-20 * 4096, 2)
        file.write(b"\xff" * 4096)
    (tmp_path / "copy.db").write_bytes(b"old")

    with pytest.raises(StoreUnavailable, match=r"database corrupt: .* cannot be copied"):
        copy_database(tmp_path / "db", tmp_path / "copy.db")

    assert (tmp_path / "copy.db").read_bytes() == b"old"
