"""This folder's section of the settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MIB = 1024 * 1024
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Where things are kept, how much, and for how long."""

    data: Path
    """The data directory; one server at a time holds it."""
    blob_max_bytes: int = 64 * 1024 * MIB
    """Bytes of one file of a bundle. The default is above any model that fits one GPU today."""
    uploads_max: int = 16
    """Uploads at once; each holds one file descriptor and up to 1 MiB of memory."""
    blob_keep_s: float = 3600.0
    """Seconds an unused blob stays, so that a slow deploy finds what it uploaded."""
    busy_s: float = 5.0
    """Seconds a statement waits for another process's lock on the database."""
    revisions_keep: int = 10
    """Revisions kept per function, the current one included."""
    profiles_max: int = 1000
    """Profiles kept of bundles that no revision uses any more, the newest."""
    operations_max: int = 200
    """Ended operations kept."""
    history_buffer: int = 10_000
    """Records waiting for the next flush; more are dropped and counted."""
    history_flush_s: float = 1.0
    """Seconds between two flushes: what a crash may lose of the history."""
    cold_starts_max: int = 1000
    """Cold starts kept per function."""
    intervals_max: int = 10_000
    """State intervals kept per function, besides their age limit."""
    history_keep_s: float = 30 * DAY_S
    """Seconds that state intervals and arrivals are kept."""

    @property
    def database(self) -> Path:
        """The SQLite file."""
        return self.data / "fngate.db"

    @property
    def marker(self) -> Path:
        """The file that says which database belongs here."""
        return self.data / "store.json"

    @property
    def backups(self) -> Path:
        """The folder of the daily copies of the database."""
        return self.data / "backups"

    @property
    def set_aside(self) -> Path:
        """The folder of what was in use here before the database was replaced."""
        return self.data / "set-aside"

    @property
    def blobs(self) -> Path:
        """The folder of the content-addressed files."""
        return self.data / "blobs"
