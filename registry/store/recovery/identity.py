"""Which store a data folder belongs to: a row in the database, and a marker file beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import structlog

from registry.errors import StoreUnavailable
from registry.files import unavailable, write_atomic
from registry.settings import DAY_S, StoreSettings
from registry.store.database import Database

log = structlog.get_logger()

SPARED_S: Final = 7 * DAY_S
"""Seconds in which no file is swept after a database was put into a folder with files."""
_MARKER_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class Marker:
    """What `DATA/store.json` says: the id of the database that belongs here, and how many servers
    had opened it. A database that was opened less often has lost what was written since."""

    id: str
    opened: int


@dataclass(frozen=True, slots=True)
class Identity:
    """The store that a server has opened. Unused files may be swept from `sweeps_from_s` on, in
    Unix seconds."""

    id: str
    opened: int
    sweeps_from_s: float


def read_marker(settings: StoreSettings) -> Marker | None:
    """The marker, or None where there is none or it cannot be understood. Raises StoreUnavailable
    where it cannot be read."""
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
    """Whether the folder holds at least one file of a bundle. Raises StoreUnavailable."""
    try:
        shards = (path for path in blobs.iterdir() if len(path.name) == 2 and path.is_dir())
        return any(next(shard.iterdir(), None) is not None for shard in shards)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise unavailable(error) from error


async def enter(database: Database, settings: StoreSettings, now_s: float) -> Identity:
    """Count this server in, and let the marker say so. `now_s` in Unix seconds.

    The database comes first: a crash in between leaves a marker that is behind, which is no fault.
    On a full disk both stay as they were: what runs is served.
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
