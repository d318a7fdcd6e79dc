"""Room of the disk that is kept for commits of keys and settings.

A key that may deploy can fill the disk, and a full disk must not keep the operator from revoking
it. So a file takes up room from the start; a commit that meets a full disk removes it and is
repeated (`registry.store.database`). Uploads leave the same room free (`registry.bundles.blobs`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from registry.files import free_bytes

log = structlog.get_logger()

MARGIN: Final = 4
"""The file is made only where this many times its size is free: a small disk is not filled by it,
and a full one has been cleared."""
FILL_S: Final = 60.0
"""Seconds between two attempts to make the file again."""


class Ballast:
    """The file at `path`, of `size` bytes; with 0 there is none. All methods but `keep` block."""

    def __init__(self, path: Path, size: int, free: Callable[[Path], int] = free_bytes) -> None:
        self._path = path
        self._size = size
        self._free = free

    def fill(self) -> bool:
        """Make the file, unless it is there or the disk lacks room; return whether it is there.

        Raises OSError.
        """
        if not self._size:
            self._path.unlink(missing_ok=True)
            return False
        if self._is_whole():
            return True
        self._path.unlink(missing_ok=True)  # of another size, or what a crash has left
        if self._free(self._path.parent) < MARGIN * self._size:
            return False
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # Blocks of its own: a file of the same length with holes would take up nothing.
            os.posix_fallocate(descriptor, 0, self._size)
        except OSError:
            self._path.unlink()
            raise
        finally:
            os.close(descriptor)
        return True

    def give_up(self) -> bool:
        """Remove the file; return whether it was there."""
        try:
            self._path.unlink()
        except OSError:
            return False
        log.warning("the disk is full: the ballast is given up", bytes=self._size)
        return True

    async def keep(self) -> None:
        """Make the file now, and again whenever the disk has room, until cancelled."""
        while True:
            with contextlib.suppress(OSError):
                await asyncio.to_thread(self.fill)
            await asyncio.sleep(FILL_S)

    def _is_whole(self) -> bool:
        try:
            return self._path.lstat().st_size == self._size
        except FileNotFoundError:
            return False
