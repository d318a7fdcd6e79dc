"""Read-only inspection of a database file."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from registry.files import unavailable
from registry.store.database import CORRUPT, explain

CHECK_MAX: Final = 64 * 2**20
"""Max bytes of a database that is checked completely after a crash: takes about 0.5 s."""
_MAGIC: Final = b"SQLite format 3\0"


@dataclass(frozen=True, slots=True)
class DatabaseReport:
    """Result of an inspection. `reason` explains the states damaged and foreign.

    `id` is "" before schema 5. `is_blank`: it never had a function, and has no key and no
    operation. `openness`: who may call without a key, "" before schema 14.
    """

    state: Literal["missing", "empty", "damaged", "foreign", "sound"]
    reason: str = ""
    schema: int = 0
    id: str = ""
    opened: int = 0
    functions: int = 0
    keys: int = 0
    is_blank: bool = False
    openness: str = ""


def open_read_only(path: Path, busy_s: float) -> sqlite3.Connection:
    """Open a connection that changes neither the file nor its write-ahead log.

    Raises sqlite3.Error.
    """
    address = f"{path.absolute().as_uri()}?mode=ro"
    if not any(path.with_name(path.name + side).exists() for side in ("-wal", "-journal")):
        # No process has it open, so SQLite does not need its files for coordination.
        address += "&immutable=1"
    return sqlite3.connect(address, uri=True, timeout=busy_s, isolation_level=None)


def inspect_database(
    path: Path, *, busy_s: float = 5.0, is_checked: bool = False
) -> DatabaseReport:
    """Inspect the file at `path`. Blocking.

    `is_checked`: check every page. This is also done, up to CHECK_MAX, if a write-ahead log
    indicates a crash. `busy_s`: max seconds to wait for another process's lock. Raises
    StoreUnavailable if the file cannot be read: no permission, locked, a defective disk.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except FileNotFoundError:
        return DatabaseReport("missing")
    except OSError as error:
        raise unavailable(error) from error
    if not size:
        return DatabaseReport("empty")
    if magic != _MAGIC:
        return DatabaseReport("damaged", "it does not begin as a SQLite database does")
    if size <= CHECK_MAX and _size(path.with_name(f"{path.name}-wal")):
        is_checked = True
    try:
        with closing(open_read_only(path, busy_s)) as connection:
            return _report(connection, is_checked)
    except sqlite3.Error as error:
        ours = explain(error)
        if ours is None or ours.message.startswith(CORRUPT):
            return DatabaseReport("damaged", str(error))
        raise ours from error


def _report(connection: sqlite3.Connection, is_checked: bool) -> DatabaseReport:
    def one(sql: str) -> Any:
        return connection.execute(sql).fetchone()[0]

    names = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema")}
    if not names:
        return DatabaseReport("empty")
    if "schema_version" not in names:
        return DatabaseReport("foreign", f"its tables ({sorted(names)[0]}, ...) are not fngate's")
    if is_checked and (found := one("PRAGMA quick_check(1)")) != "ok":
        return DatabaseReport("damaged", str(found))
    schema = one("SELECT coalesce(max(number), 0) FROM schema_version")
    if "keys" not in names:
        return DatabaseReport("empty", schema=schema)
    identity, openness = ("", 0), ""
    if schema >= _OPENNESS_SCHEMA:
        openness = one("SELECT openness FROM store")
    if "store" in names:
        identity = connection.execute("SELECT id, opened FROM store").fetchone() or identity
    used = [one(f"SELECT EXISTS (SELECT 1 FROM {table})") for table in _EVER_USED]  # noqa: S608 - names of ours
    return DatabaseReport(
        "sound",
        schema=schema,
        id=identity[0],
        opened=identity[1],
        functions=one("SELECT count(*) FROM functions"),
        keys=one("SELECT count(*) FROM keys"),
        is_blank=not any(used),
        openness=openness,
    )


_OPENNESS_SCHEMA: Final = 14
_EVER_USED: Final = ("revision_numbers", "keys", "operations")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
