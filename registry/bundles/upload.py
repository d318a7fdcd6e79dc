"""One blob on its way in."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import structlog

from registry.errors import BadBundle, BodyTooLarge, Conflict
from registry.files import fsync_folder, unavailable

log = structlog.get_logger()

T = TypeVar("T")

BUFFER_BYTES: Final = 1024 * 1024
"""Chunks are gathered up to this, so that a hop to a thread is paid once per mebibyte."""


def is_blob(path: Path, sha256: str, size: int | None = None) -> bool:
    """Whether the file at `path` has that hash, and that size in bytes where one is given. Reads
    all of it where the size is right. Raises OSError."""
    if size is not None and path.stat().st_size != size:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == sha256


class Upload:
    """A file of announced size, and of announced hash where somebody knows it. Made by
    `BlobStore.receive` or `BlobStore.take`, which also end it.

    One caller at a time; each step runs in a thread, because hashing, writing and fsync would
    each hold up the loop.
    """

    def __init__(self, incoming: Path, sha256: str, size: int) -> None:
        """`sha256` is "" where what comes is to tell it."""
        self._path = incoming / secrets.token_hex(16)
        self._sha256 = sha256
        self._size = size
        self._hash = hashlib.sha256()
        self._buffer = bytearray()
        self._received = 0
        self._step: asyncio.Future[object] | None = None
        try:
            self._file = self._path.open("xb", buffering=0)
        except OSError as error:
            raise unavailable(error) from error

    @property
    def received(self) -> int:
        """Bytes so far."""
        return self._received

    @property
    def sha256(self) -> str:
        """As announced, or as found at the end; "" before that."""
        return self._sha256

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        """Take the next bytes. Raises BodyTooLarge beyond the announced size."""
        self._check_idle()
        self._received += len(chunk)
        if self._received > self._size:
            raise BodyTooLarge(f"expected {self._size} bytes as announced, got more")
        self._buffer += chunk
        if len(self._buffer) >= BUFFER_BYTES:
            await self._in_thread(self._flush)

    async def commit(self, place: Callable[[str], Path]) -> None:
        """Check what came and give it its name, which `place` knows by the hash.

        Raises BadBundle on a wrong size or hash.
        """
        if self._received != self._size:
            raise BadBundle(f"expected {self._size} bytes as announced, got {self._received}")
        await self._in_thread(lambda: self._finish(place))

    async def close(self) -> None:
        """Leave nothing behind but what was committed."""
        step = self._step
        if step is None or step.done():
            self._discard()
            return
        # A cancelled caller leaves its step running, and the descriptor may only be closed after
        # it. As a callback that holds even where this wait is cancelled in its turn.
        step.add_done_callback(lambda _: self._discard())
        await asyncio.wait([step])

    def _discard(self) -> None:
        self._file.close()
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    async def _in_thread(self, work: Callable[[], None]) -> None:
        self._check_idle()
        self._step = asyncio.get_running_loop().run_in_executor(None, work)
        try:
            await asyncio.shield(self._step)
        except OSError as error:
            raise unavailable(error) from error

    def _check_idle(self) -> None:
        if self._step is not None and not self._step.done():
            raise Conflict("one upload takes one chunk at a time")

    def _flush(self) -> None:
        data, self._buffer = self._buffer, bytearray()
        self._hash.update(data)
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]

    def _finish(self, place: Callable[[str], Path]) -> None:
        self._flush()
        found = self._hash.hexdigest()
        if self._sha256 not in ("", found):
            raise BadBundle(f"expected sha256 {self._sha256}, got {found}")
        self._sha256, target = found, place(found)
        os.fchmod(self._file.fileno(), 0o444)
        os.fsync(self._file.fileno())
        target.parent.mkdir(mode=0o755, exist_ok=True)
        try:
            os.link(self._path, target)
        except FileExistsError:
            # A sound blob stays: a second copy under its name would share nothing with the
            # folders that link to the first. Folders keep the damaged file until they end.
            if not is_blob(target, found, self._size):
                log.warning("a damaged blob is replaced", sha256=found)
                self._path.replace(target)
        fsync_folder(target.parent)
        fsync_folder(target.parent.parent)
        os.utime(target)
