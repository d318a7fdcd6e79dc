"""Complete copies of a database, even while it is being written."""

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
"""Pages of 4 KiB copied between two checks whether to stop."""


class CopyStopped(Exception):
    """The copy was abandoned because `is_stopped` returned True; nothing of it remains."""


def copy_database(
    source: Path,
    target: Path,
    *,
    busy_s: float = 5.0,
    is_stopped: Callable[[], bool] = lambda: False,
) -> DatabaseReport:
    """Copy the database at `source`, including its write-ahead log, to the file `target`. Blocking.

    The copy shows one moment of the source (sqlite.org/backup, inside a read transaction), and its
    writers never wait. The copy is verified before it replaces `target`; it is then durable and
    readable by this user only.

    Raises StoreUnavailable if the source cannot be read, the disk is full or the copy is damaged,
    and CopyStopped.
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
            # The file is used only when it is complete and synced, so it needs no journal.
            new.execute("PRAGMA journal_mode = OFF")
            new.execute("PRAGMA synchronous = OFF")
            # Without a transaction each write by others would restart the copy.
            old.execute("BEGIN")
            old.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            old.backup(new, pages=PAGES_AT_ONCE, progress=step)
            # A single file, without its own write-ahead log.
            new.execute("PRAGMA journal_mode = DELETE")
        report = inspect_database(fresh, busy_s=busy_s, is_checked=True)
        if report.state != "sound":
            raise StoreUnavailable(
                f"database corrupt: {source} cannot be copied: {report.reason or report.state}"
            )
    return report
