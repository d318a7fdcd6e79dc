"""Tests of inspecting a database file without changing it."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from registry.errors import StoreUnavailable
from registry.store.database import MIGRATIONS, Database
from registry.store.keys import Keys
from registry.store.recovery.inspection import inspect_database


async def test_a_sound_database(tmp_path: Path) -> None:
    """The report has schema, identity and contents, also while the database is open; no file is
    created beside it."""
    path = tmp_path / "odd ?#% name.db"
    database = await Database.open(path)
    await Keys(database).add(["read"], now_s=1.0)
    while_open = inspect_database(path)
    await database.close()
    before = path.read_bytes()

    found = inspect_database(path, is_checked=True)

    assert found == while_open
    assert (found.state, found.schema, found.keys) == ("sound", len(MIGRATIONS), 1)
    assert (len(found.id), found.opened, found.functions, found.is_blank) == (32, 0, 0, False)
    assert (path.read_bytes(), os.listdir(tmp_path)) == (before, [path.name])


@pytest.mark.parametrize("schema", range(1, len(MIGRATIONS) + 1))
async def test_databases_of_every_release(tmp_path: Path, schema: int) -> None:
    """Every schema version is recognised; the first ones have no identity."""
    await (await Database.open(tmp_path / "db", migrations=MIGRATIONS[:schema])).close()

    found = inspect_database(tmp_path / "db", is_checked=True)

    assert (found.state, found.schema, found.is_blank) == ("sound", schema, True)
    assert bool(found.id) == (schema >= 5)


def test_other_files_and_databases(tmp_path: Path) -> None:
    """Missing, empty, damaged and foreign files are distinguished; a folder raises."""
    path = tmp_path / "db"
    assert inspect_database(path).state == "missing"
    path.touch()
    assert inspect_database(path).state == "empty"
    path.write_bytes(b"SQLite format 3\0 and nothing like it")
    assert inspect_database(path).state == "damaged"
    path.write_text("hello")
    assert inspect_database(path).state == "damaged"
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE other (a)")
        connection.commit()
    assert inspect_database(path).state == "foreign"
    path.unlink()
    path.mkdir()
    with pytest.raises(StoreUnavailable, match="disk error"):
        inspect_database(path)


async def test_a_locked_database(tmp_path: Path) -> None:
    """A database locked by another process raises, because its state is unknown."""
    path = tmp_path / "db"
    await (await Database.open(path)).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreUnavailable, match="database locked"):
            inspect_database(path, busy_s=0.0)
