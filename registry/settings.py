"""Settings of the store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MIB = 1024 * 1024
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Where data is stored, how much of it, and for how long."""

    data: Path
    """The data directory; one server at a time may lock it."""
    blob_max_bytes: int = 64 * 1024 * MIB
    """Max bytes of one file of a bundle.

    The default exceeds any model that fits on one GPU today.
    """
    uploads_max: int = 16
    """Max concurrent uploads; each needs one file descriptor and up to 1 MiB of memory."""
    blob_keep_s: float = 3600.0
    """Seconds that an unused blob is kept, so that a slow deploy finds its uploads."""
    busy_s: float = 5.0
    """Max seconds that a statement waits for another process's lock on the database."""
    revisions_keep: int = 10
    """Revisions kept per function, including the current one."""
    profiles_max: int = 1000
    """Profiles kept for bundles that no revision uses any more: the newest."""
    operations_max: int = 200
    """Ended operations kept."""
    history_buffer: int = 10_000
    """Max records that wait for the next flush; further ones are dropped and counted."""
    history_flush_s: float = 1.0
    """Seconds between two flushes: the history that a crash may lose."""
    cold_starts_max: int = 1000
    """Cold starts kept per function."""
    intervals_max: int = 10_000
    """State intervals kept per function, in addition to their age limit."""
    history_keep_s: float = 30 * DAY_S
    """Seconds that state intervals and arrivals are kept."""
    usage_keep_s: float = 400 * DAY_S
    """Seconds that the usage of models is kept."""
    usage_flush_s: float = 10.0
    """Seconds between two flushes: the usage that a crash may lose."""
    secret_key_file: Path | None = None
    """File of the key of the secrets, None for the store's own file."""
    ballast_bytes: int = 0
    """Bytes of the disk that are kept for commits of keys and settings; 0 for none."""

    @property
    def database(self) -> Path:
        """Path of the SQLite file."""
        return self.data / "fngate.db"

    @property
    def secret_key(self) -> Path:
        """Path of the key of the secrets. It is in no copy of the database."""
        return self.secret_key_file or self.data / "secret.key"

    @property
    def marker(self) -> Path:
        """Path of the file that identifies the database of this folder."""
        return self.data / "store.json"

    @property
    def link(self) -> Path:
        """Folder of the authority for links over TLS. It is in no copy of the database."""
        return self.data / "link"

    @property
    def ballast(self) -> Path:
        """Path of the file that takes up the room for commits of keys and settings."""
        return self.data / "ballast"

    @property
    def backups(self) -> Path:
        """Folder of the daily copies of the database."""
        return self.data / "backups"

    @property
    def set_aside(self) -> Path:
        """Folder of files that were in use before the database was replaced."""
        return self.data / "set-aside"

    @property
    def blobs(self) -> Path:
        """Folder of the content-addressed files."""
        return self.data / "blobs"
