"""Durable file operations, and the lock of the data directory."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from registry.errors import Conflict, StoreUnavailable

LOCK_FILE: Final = "lock"
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE})
_PID_MAX_CHARS: Final = 20


def unavailable(error: OSError) -> StoreUnavailable:
    """Convert an OSError to StoreUnavailable; the text names a full disk explicitly."""
    reason = error.strerror or str(error)
    where = f" ({error.filename})" if error.filename else ""
    if error.errno in _FULL:
        return StoreUnavailable(f"disk full: {reason}{where}")
    return StoreUnavailable(f"disk error: {reason}{where}")


def is_exhausted(error: BaseException | None) -> bool:
    """Return whether the error or one of its causes is a lack of descriptors, here or system-wide.

    Such an error says nothing about the file that was opened, and a later attempt may succeed.
    """
    while error is not None:
        if isinstance(error, OSError) and error.errno in _EXHAUSTED:
            return True
        error = error.__cause__
    return False


def free_bytes(folder: Path) -> int:
    """Return the bytes that this user may still write to the disk of `folder`. Raises OSError."""
    return shutil.disk_usage(folder).free


def fsync_folder(folder: Path) -> None:
    """Make the names in `folder` durable: fsync of a file does not cover the file's own name."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def replacing(path: Path, mode: int = 0o600) -> Iterator[Path]:
    """Yield a new, empty file for the block to fill, then replace `path` by it, durably.

    Readers see the old bytes or the new ones, never a mixture. If the block raises, the new file is
    removed and the old one remains. Raises StoreUnavailable.
    """
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        try:
            os.close(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode))
            yield fresh
            with fresh.open("rb") as file:
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            fresh.replace(path)
            fsync_folder(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise unavailable(error) from error


def write_atomic(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace the file at `path`: readers see the old bytes or the new ones, never a mixture.

    The new bytes are durable on return. Raises StoreUnavailable; the old file is then unchanged.
    """
    with replacing(path, mode) as fresh:
        fresh.write_bytes(data)


def make_private(folder: Path) -> None:
    """Create `folder` if needed, and restrict it to this user. Raises OSError."""
    folder.mkdir(mode=0o700, exist_ok=True)
    if stat.S_IMODE(folder.stat().st_mode) & 0o077:
        folder.chmod(0o700)


class DataDirectory:
    """The data directory, locked by this server until `close`.

    The lock is flock(2) on `DATA/lock`: the kernel releases it when the process ends, so that a
    crash leaves nothing to clean up. The file contains the holder's pid for error messages.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor

    @classmethod
    def open(cls, path: Path) -> DataDirectory:
        """Create the folder if needed, for this user only, and take its lock.

        An existing folder keeps its mode, because other users may be meant to read it. Raises
        Conflict, naming the holder's pid, if another server has the lock, or StoreUnavailable.
        """
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise unavailable(error) from error
        try:
            _take(path, descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, descriptor)

    def close(self) -> None:
        """Release the lock. Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __enter__(self) -> DataDirectory:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _take(path: Path, descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError as error:
        # The holder writes its pid shortly after taking the lock: the file may still be empty.
        holder = os.pread(descriptor, _PID_MAX_CHARS, 0).decode(errors="replace").strip()
        raise Conflict(
            f"{path} is in use by another server (pid {holder or 'unknown'}); "
            "stop it, or give this one its own --data"
        ) from error
    except OSError as error:
        raise unavailable(error) from error
