"""Replaces the database of a data folder by a copy or by an empty one.

The replaced files are moved aside and never deleted. The new database gets its name last: a crash
in between leaves a folder that the server refuses.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from registry.catalog import Deployed
from registry.errors import BadRequest, StoreUnavailable
from registry.files import fsync_folder, make_private, replacing, unavailable
from registry.openness import CLOSED, Openness
from registry.settings import StoreSettings
from registry.spec import candidate_of
from registry.store.builds import BuildStore
from registry.store.database import CORRUPT, MIGRATIONS, Database
from registry.store.functions import Functions
from registry.store.keys import Keys
from registry.store.openness import OpennessStore
from registry.store.operations import Operations
from registry.store.recovery.copying import copy_database
from registry.store.recovery.folder import (
    DAILY,
    PREVIOUS,
    SPARED_S,
    Marker,
    folder_problem,
    write_marker,
)
from registry.store.recovery.inspection import inspect_database
from registry.store.sealing import KeyFile
from registry.store.secrets import SecretStore

EPOCHS: Final = 1000
"""Openings that a restore counts as, so that its server is later than each one that may have opened
the store since the copy was made."""
_SIDES: Final = ("", "-wal", "-shm", "-journal")
"""The database file first: the others are useless without it."""


@dataclass(frozen=True, slots=True)
class Restored:
    """Result of a restore.

    `missing` is the number of files of its revisions that are not in the folder of blobs. `folder`
    has the replaced files, None if there were none. `unreadable` are the names of secrets that the
    folder's key cannot read: copies of the database have no key.
    """

    functions: int
    keys: int
    missing: int
    folder: Path | None
    unreadable: tuple[str, ...] = ()


async def start_empty(settings: StoreSettings, now_s: float) -> Path | None:
    """Move the current files aside and put a new database in their place, closed to callers without
    a key: the lost one may have been.

    Returns the folder with the old files, or None, with nothing changed, if the folder is new or
    has its database. The caller holds the folder's lock. `now_s` in Unix seconds. Raises
    StoreUnavailable.
    """
    if not await _damage(settings):
        return None
    with replacing(settings.database) as fresh:
        async with _made(fresh) as database:
            await OpennessStore(database).save(CLOSED)
            marker = await _identity(database)
        # From here on the folder belongs to the new store, and is refused until its database is in
        # place.
        write_marker(settings, marker)
        folder = _set_aside(settings, now_s, settings.blobs, settings.backups, settings.link)
    return folder or settings.set_aside


async def restore(settings: StoreSettings, file: Path, now_s: float) -> Restored:
    """Replace the current database by the copy `file`. A server that is closed to callers without a
    key stays so, whatever the copy says.

    The caller holds the folder's lock. Files that no revision uses are not swept for SPARED_S from
    `now_s` (Unix seconds). Raises BadRequest if `file` is not a sound copy, and StoreUnavailable.
    """
    found = inspect_database(file, is_checked=True)
    if found.state != "sound":
        is_what = ": ".join(filter(None, (found.state, found.reason)))
        raise BadRequest(f"{file}: expected a copy of fngate.db, it is {is_what}")
    if found.schema > len(MIGRATIONS):
        raise BadRequest(
            f"{file}: has schema {found.schema}, this fngate knows up to {len(MIGRATIONS)}:"
            " it was written by a newer one"
        )
    current = inspect_database(settings.database, busy_s=settings.busy_s)
    with replacing(settings.database) as fresh:
        copy_database(file, fresh)
        async with _made(fresh) as database:
            async with database.write() as transaction:
                await transaction.query(
                    "UPDATE store SET sweeps_from_s = ?, opened = max(opened, ?) + ?",
                    (now_s + SPARED_S, current.opened, EPOCHS),
                )
            if current.openness == Openness.CLOSED or current.keys:
                await OpennessStore(database).save(CLOSED)
            marker = await _identity(database)
            functions = Functions(database)
            used = await functions.referenced_blobs() | _candidates(await functions.load_all())
            secrets = await SecretStore(database, KeyFile.of(settings)).list()
        # Replicas that dialled in to the replaced store must not serve this one: its authority is
        # a new one.
        folder = _set_aside(settings, now_s, settings.link)
    write_marker(settings, marker)
    missing = sum(not (settings.blobs / name[:2] / name).is_file() for name in used)
    unreadable = tuple(one.name for one in secrets if one.problem)
    return Restored(found.functions, found.keys, missing, folder, unreadable)


def _candidates(deployed: Iterable[Deployed]) -> set[str]:
    """Return the sha256 of the files that revisions are served by instead of their models."""
    return {file.sha256 for one in deployed if (file := candidate_of(one)) is not None}


async def _damage(settings: StoreSettings) -> str:
    """Return `folder_problem`, after reading everything that a server reads at its start."""
    report = inspect_database(settings.database, busy_s=settings.busy_s, is_checked=True)
    if (problem := folder_problem(settings, report)) or report.state != "sound":
        return problem
    database = await Database.open(settings.database, busy_s=settings.busy_s)
    try:
        functions = Functions(database)
        await functions.load_all()
        await functions.load_bundles()
        await Keys(database).list()
        await Operations(database).running()
        await BuildStore.open(database, lambda _: True)
    except StoreUnavailable as error:
        if not error.message.startswith(CORRUPT):
            raise
        return error.message
    finally:
        await database.close()
    return ""


@contextlib.asynccontextmanager
async def _made(fresh: Path) -> AsyncIterator[Database]:
    """Yield the database in the file `fresh`, which is complete after the block.

    Raises StoreUnavailable.
    """
    sides = [fresh.with_name(fresh.name + side) for side in _SIDES[1:]]
    try:
        database = await Database.open(fresh)
        try:
            yield database
        finally:
            await database.close()
        if any(path.exists() for path in sides):
            raise StoreUnavailable(f"{fresh}: its write-ahead log cannot be written back")
    finally:
        for path in sides:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


async def _identity(database: Database) -> Marker:
    rows = await database.read("SELECT id, opened FROM store")
    return Marker(*rows[0])


def _set_aside(settings: StoreSettings, now_s: float, *folders: Path) -> Path | None:
    """Move the current database and `folders` into a new folder and return it.

    None if there is nothing to move. Raises StoreUnavailable.
    """
    files = [settings.database.with_name(settings.database.name + side) for side in _SIDES]
    try:
        present = [path for path in (*files, *folders) if path.exists()]
        if not present:
            return None
        stamp = datetime.fromtimestamp(now_s, UTC).strftime("%Y%m%dT%H%M%SZ")
        make_private(settings.set_aside)
        target = _new_folder(settings.set_aside, stamp)
        for path in present:
            path.rename(target / path.name)
        fsync_folder(target)
        fsync_folder(settings.data)
    except OSError as error:
        raise unavailable(error) from error
    return target


def remove_partial(settings: StoreSettings) -> None:
    """Remove incomplete databases and copies that a crash has left.

    The caller holds the folder's lock. Raises StoreUnavailable.
    """
    try:
        for folder, name in (
            (settings.data, settings.database.name),
            (settings.data, settings.marker.name),
            (settings.backups, DAILY),
            (settings.backups, PREVIOUS),
        ):
            for path in folder.glob(f".*{name}.*"):
                path.unlink(missing_ok=True)
    except OSError as error:
        raise unavailable(error) from error


def _new_folder(parent: Path, name: str) -> Path:
    for number in range(1000):
        path = parent / (f"{name}-{number}" if number else name)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
            return path
    raise StoreUnavailable(f"{parent}: there are a thousand folders {name} already")
