"""Checks that a data folder has the database that belongs to it, by a row and a marker file.

Without these checks a server would treat a folder that lost its database as a new one: it would
lose functions and access keys, accept calls without a key, and sweep the files of unknown bundles.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
import structlog

from registry.errors import StoreUnavailable
from registry.files import make_private, unavailable, write_atomic
from registry.settings import DAY_S, StoreSettings
from registry.store.database import CORRUPT, MIGRATIONS, Database
from registry.store.recovery.copying import copy_database
from registry.store.recovery.inspection import DatabaseReport, inspect_database

log = structlog.get_logger()

SPARED_S: Final = 7 * DAY_S
"""Seconds without sweeps of files after a database was put into a folder that has files."""
_MARKER_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class Marker:
    """Content of `DATA/store.json`.

    A database with a lower epoch is an older copy.
    """

    id: str
    """That of the database that belongs here."""
    opened: int
    """Its epoch: how many servers have opened it, and EPOCHS for each restore."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The store that a server has opened."""

    id: str
    opened: int
    """Its epoch, as in `Marker`."""
    sweeps_from_s: float
    """Unix seconds from which on unused files may be swept."""


def read_marker(settings: StoreSettings) -> Marker | None:
    """Return the marker, None if there is none or it is malformed.

    Raises StoreUnavailable if it cannot be read.
    """
    try:
        with settings.marker.open("rb") as file:
            return msgspec.json.decode(file.read(_MARKER_MAX), type=Marker)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unavailable(error) from error
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def write_marker(settings: StoreSettings, marker: Marker) -> None:
    """Replace the marker, durably. Raises StoreUnavailable."""
    write_atomic(settings.marker, msgspec.json.encode(marker) + b"\n")


def has_files(blobs: Path) -> bool:
    """Return whether the folder has at least one file of a bundle. Raises StoreUnavailable."""
    try:
        shards = (path for path in blobs.iterdir() if len(path.name) == 2 and path.is_dir())
        return any(next(shard.iterdir(), None) is not None for shard in shards)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise unavailable(error) from error


async def enter(database: Database, settings: StoreSettings, now_s: float) -> Identity:
    """Count this server's opening in the database, then in the marker. `now_s` in Unix seconds.

    In this order a crash in between leaves a marker with a lower count, which is valid. If the disk
    is full neither is changed, and the server runs nevertheless.
    """
    is_new_here = read_marker(settings) is None and has_files(settings.blobs)
    spared_s = now_s + SPARED_S if is_new_here else 0.0
    try:
        async with database.write() as transaction:
            rows = await transaction.query(
                "UPDATE store SET opened = opened + 1, sweeps_from_s = max(sweeps_from_s, ?)"
                " RETURNING id, opened, sweeps_from_s",
                (spared_s,),
            )
        identity = Identity(*rows[0])
        write_marker(settings, Marker(identity.id, identity.opened))
    except StoreUnavailable as error:
        log.warning("the store cannot be marked as opened", reason=error.message)
        rows = await database.read(
            "SELECT id, opened, max(sweeps_from_s, ?) FROM store", (spared_s,)
        )
        identity = Identity(*rows[0])
    return identity


DAILY: Final = "daily.db"
PREVIOUS: Final = "previous.db"


def find_problem(
    database: DatabaseReport, marker: Marker | None, *, has_blobs: bool, was_used: bool
) -> str:
    """Return why this database must not be served in this folder, "" if it may be. Pure.

    `has_blobs`: there are files of bundles. `was_used`: a server has run in this folder.
    """
    if database.state in ("damaged", "foreign"):
        return f"it is {database.state}: {database.reason}"
    if database.state in ("missing", "empty"):
        return f"it is {database.state}, though this folder has been in use" if was_used else ""
    if marker is None:
        is_other = database.is_blank and has_blobs
        return "it is blank, though there are files of functions" if is_other else ""
    if not database.id:
        return "it is older than this folder: an earlier release has written it"
    if database.id != marker.id:
        return "it belongs to another data folder"
    if database.opened < marker.opened:
        return (
            "it lacks what was written last: its write-ahead log (fngate.db-wal) was removed, or an"
            " older copy was put in its place"
        )
    return ""


def check_folder(settings: StoreSettings) -> DatabaseReport:
    """Inspect the database, and check that the folder is new or the database belongs to it.

    Raises StoreUnavailable, whose text lists the options. Changes nothing. Blocking.
    """
    database = inspect_database(settings.database, busy_s=settings.busy_s)
    if problem := folder_problem(settings, database):
        raise refusal(settings, problem)
    return database


def keep_earlier_schema(settings: StoreSettings, report: DatabaseReport) -> None:
    """Copy a database of an earlier release to `DATA/backups/schema-N.db` before its migration.

    After the migration the earlier release refuses the database. `report` is the result of its
    inspection. Blocking. Raises StoreUnavailable.
    """
    if report.state != "sound" or report.schema >= len(MIGRATIONS):
        return
    try:
        make_private(settings.backups)
    except OSError as error:
        raise unavailable(error) from error
    target = settings.backups / f"schema-{report.schema}.db"
    copy_database(settings.database, target, busy_s=settings.busy_s)


@contextlib.contextmanager
def explained(settings: StoreSettings) -> Iterator[None]:
    """Add the options for recovery to the error if the block finds the database damaged."""
    try:
        yield
    except StoreUnavailable as error:
        if not error.message.startswith(CORRUPT):
            raise
        raise refusal(settings, error.message) from error


def refusal(settings: StoreSettings, problem: str) -> StoreUnavailable:
    """Return why the folder is not served, with the commands that solve it."""
    data = shlex.quote(str(settings.data))
    candidates = (settings.database, settings.backups / DAILY, settings.backups / PREVIOUS)
    lines = [
        f"the database {settings.database} cannot be used: {problem}.",
        "Functions, access keys and history are in that file. Nothing was changed.",
        "Either restore a copy of it:",
        *(
            f"  fnctl restore {shlex.quote(str(path))} --data {data}    ({about})"
            for path in candidates
            if (about := _contents(path))
        ),
        f"  fnctl restore FILE --data {data}    (FILE from fnctl backup)",
        "or begin without functions, keys and history:",
        f"  fnctl serve --data {data} --start-empty",
        f"which sets the old files aside in {settings.set_aside}, and lets nobody call without a"
        " key.",
    ]
    return StoreUnavailable("\n".join(lines))


def folder_problem(settings: StoreSettings, database: DatabaseReport) -> str:
    """Return why the inspected database must not be served in its folder, "" if it may be.

    Blocking. Raises StoreUnavailable.
    """
    marker, has_blobs = read_marker(settings), has_files(settings.blobs)
    try:
        was_used = settings.marker.exists() or settings.blobs.exists() or _has_lost_log(settings)
    except OSError as error:
        raise unavailable(error) from error
    was_used = was_used or bool(_contents(settings.backups / DAILY))
    return find_problem(database, marker, has_blobs=has_blobs, was_used=was_used)


def _has_lost_log(settings: StoreSettings) -> bool:
    """Return whether there is a write-ahead log without its database."""
    path = settings.database
    log = path.with_name(f"{path.name}-wal")
    is_gone = not path.exists() or path.stat().st_size == 0
    return is_gone and log.exists() and log.stat().st_size > 0


def _contents(path: Path) -> str:
    """Return a summary of a sound copy, "" if there is none."""
    with contextlib.suppress(StoreUnavailable, OSError):
        report = inspect_database(path)
        if report.state == "sound":
            made = datetime.fromtimestamp(path.stat().st_mtime, UTC)
            about = f"of {made:%Y-%m-%d %H:%M} UTC: {report.functions} functions"
            return f"{about}, {report.keys} keys"
    return ""
