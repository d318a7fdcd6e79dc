"""Read-ahead: read a model's files into the page cache while its replica starts.

Files are really read, because posix_fadvise(WILLNEED) stops after a few megabytes. Pages that are
already in memory are skipped: reading them would cost a waiting caller 40 ms of CPU per GB.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import mmap
import os
import stat
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from threading import Event
from typing import NamedTuple

import structlog

from runtime_image.contract import compiled
from runtime_image.contract.model import ModelSpec

log = structlog.get_logger()

THREADS = 2
WAKING_MAX = 64
"""Max models being read or queued. Further models are not read ahead."""
FILES_MAX = 1000
STEP_BYTES = 8 * 1024 * 1024
MIB = 1024 * 1024
CACHESTAT = 451
"""Number of the cachestat system call on every architecture; Linux 6.5 and later."""
SAMPLE_BYTES = 1024 * 1024
"""If the kernel cannot count pages, one page in each block of this size is probed."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

_libc = ctypes.CDLL(None, use_errno=True)


class ReadAhead:
    """Reads at most `mib_max` MiB of each model in its own threads; 0 disables it."""

    def __init__(self, mib_max: int) -> None:
        self._bytes_max = mib_max * MIB
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="read ahead")
        self._waking: dict[str, tuple[Event, Future[int]]] = {}

    def begin(self, id: str, folder: Path, spec: ModelSpec) -> None:
        """Read a replica's model from its folder in the background."""
        self._waking = {one: job for one, job in self._waking.items() if not job[1].done()}
        if not self._bytes_max or len(self._waking) >= WAKING_MAX:
            return
        self.cancel(id)
        unwanted = Event()
        job = self._threads.submit(read_model, folder, spec, self._bytes_max, unwanted.is_set)
        self._waking[id] = unwanted, job

    def cancel(self, id: str) -> None:
        """Stop reading for a replica that has loaded its model or is gone."""
        job = self._waking.pop(id, None)
        if job is not None:
            job[0].set()
            job[1].cancel()

    async def close(self) -> None:
        """Cancel all reads; return when the threads have ended."""
        for id in list(self._waking):
            self.cancel(id)
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)


def read_model(
    folder: Path, spec: ModelSpec, bytes_max: int, is_unwanted: Callable[[], bool]
) -> int:
    """Read the pages of a model that are not in memory yet; return the number of bytes read. An
    unreadable file ends the read-ahead; the replica will report it."""
    read = 0
    try:
        buffer = mmap.mmap(-1, STEP_BYTES)
        with buffer:
            for portion in plan(_files(folder), spec, bytes_max):
                read += _read_portion(folder, portion, buffer, is_unwanted)
    except OSError as error:
        log.debug("a model cannot be read ahead", folder=str(folder), reason=str(error))
    return read


def _files(folder: Path) -> list[Portion]:
    """Return the regular files below a folder, at most FILES_MAX. Raises OSError if a file
    disappears."""
    found: list[Portion] = []
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and len(found) < FILES_MAX:
                found.append(Portion(str(path.relative_to(folder)), status.st_size))
    return found


def _read_portion(
    folder: Path, portion: Portion, buffer: mmap.mmap, is_unwanted: Callable[[], bool]
) -> int:
    read = 0
    fd = os.open(folder / portion.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for offset in range(0, portion.size, STEP_BYTES):
            length = min(STEP_BYTES, portion.size - offset)
            if is_unwanted():
                break
            if not is_resident(fd, offset, length):
                read += os.preadv(fd, [memoryview(buffer)[:length]], offset)
    finally:
        os.close(fd)
    return read


class Portion(NamedTuple):
    """The first `size` bytes of a file; its path is relative to the model folder."""

    path: str
    size: int


def plan(files: Iterable[Portion], spec: ModelSpec, bytes_max: int) -> list[Portion]:
    """Return the portions to read, the largest file first, `bytes_max` in total. Of a prepared or
    compiled model, only the files of its first session are read, and of a model of other precision
    only that file: a start does not touch the others."""
    wanted = sorted(files, key=lambda file: (-file.size, file.path))
    if folder := _first(spec):
        wanted = [file for file in wanted if PurePosixPath(file.path).is_relative_to(folder)]
    portions = []
    for file in wanted:
        size = min(file.size, bytes_max)
        if size > 0:
            portions.append(Portion(file.path, size))
            bytes_max -= size
    return portions


def _first(spec: ModelSpec) -> str:
    """Return the folder of the first session's files, "" for those of the bundle, or of several
    folders: a model whose parts are compiled is read with them."""
    if spec.compiled is not None:
        return compiled.FOLDER if spec.compiled.form == "context" else ""
    first = spec.preparation.quick.file if spec.preparation else spec.optimised
    parent = PurePosixPath(first).parent
    return "" if parent == PurePosixPath() else str(parent)


class _Range(ctypes.Structure):
    """struct cachestat_range of linux/mman.h."""

    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Counts(ctypes.Structure):
    """struct cachestat of linux/mman.h, in pages."""

    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in ("cached", "dirty", "writeback", "evicted", "recently_evicted")
    )


def is_resident(fd: int, offset: int, length: int) -> bool:
    """Whether `length` bytes of a file can be read without disk access. Raises OSError."""
    cached = cached_pages(fd, offset, length)
    if cached is None:
        return looks_resident(fd, offset, length)
    first, last = offset // PAGE_BYTES, (offset + length - 1) // PAGE_BYTES
    return cached > last - first


def cached_pages(fd: int, offset: int, length: int) -> int | None:
    """Return how many of the pages are in memory, None if cachestat is missing or forbidden.
    Raises OSError."""
    counts = _Counts()
    asked = _Range(offset, length)
    if _libc.syscall(CACHESTAT, fd, ctypes.byref(asked), ctypes.byref(counts), 0) == 0:
        return int(counts.cached)
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP):
        return None
    raise OSError(code, os.strerror(code))


def looks_resident(fd: int, offset: int, length: int) -> bool:
    """Whether one page in each SAMPLE_BYTES and the last page can be read without waiting. False if
    the file system does not support this check. Raises OSError."""
    byte = bytearray(1)
    try:
        for place in (*range(offset, offset + length, SAMPLE_BYTES), offset + length - 1):
            os.preadv(fd, [byte], place, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EINVAL):
            return False
        raise
    return True
