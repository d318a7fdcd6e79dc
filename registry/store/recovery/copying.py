"""Whole copies of a database, also while it is written."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from registry.errors import StoreUnavailable
from registry.files import replacing
from registry.store.database import translated
from registry.store.recovery.inspection import DatabaseReport, inspect_database, open_read_only

PAGES_AT_ONCE: Final = 1024
"""Pages of 4 KiB copied between two looks at whether to stop."""


class CopyStopped(Exception):
    """The copy was given up as `is_stopped` asked; nothing is left of it."""


def copy_database(
    source: Path,
    target: Path,
    *,
    busy_s: float = 5.0,
    is_stopped: Callable[[], bool] = lambda: False,
) -> DatabaseReport:
    """Copy the database at `source` to the file `target`, with what is in its write-ahead log.

    One moment of the source is copied (sqlite.org/backup, inside a read transaction), and its
    writers never wait. The copy is checked before it takes the name `target`, durable and readable
    by this user only; until then a file of that name stays as it was. Blocking.

    Raises StoreUnavailable where the source cannot be read, the disk is full or the copy is not
    sound, CopyStopped.
    """

    def step(_status: int, _remaining: int, _total: int) -> None:
        if is_stopped():
            raise CopyStopped

    with replacing(target) as fresh:
        with (
            translated(),
            closing(open_read_only(source, busy_s)) as old,
            closing(sqlite3.connect(fresh, isolation_level=None)) as new,
        ):
            # The file counts only once it is whole and synced, so a journal protects nothing.
            new.execute("PRAGMA journal_mode = OFF")
            new.execute("PRAGMA synchronous = OFF")
            # Without a transaction each write of others would begin the copy anew.
            old.execute("BEGIN")
            old.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            old.backup(new, pages=PAGES_AT_ONCE, progress=step)
            # One file, not one with a write-ahead log of its own.
            new.execute("PRAGMA journal_mode = DELETE")
        report = inspect_database(fresh, busy_s=busy_s, is_checked=True)
        if report.state != "sound":
            raise StoreUnavailable(
                f"database corrupt: {source} cannot be copied: {report.reason or report.state}"
            )
    return report
