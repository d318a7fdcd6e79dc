"""Whether the pages of a file are in memory already."""

from __future__ import annotations

import ctypes
import errno
import os

CACHESTAT = 451
"""The system call's number on every architecture; Linux 6.5 and later."""
SAMPLE_BYTES = 1024 * 1024
"""Where the kernel cannot count pages, one of so many bytes speaks for the others."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

_libc = ctypes.CDLL(None, use_errno=True)


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
    """Whether so many bytes of a file can be read without a disk. Raises OSError."""
    cached = cached_pages(fd, offset, length)
    if cached is None:
        return looks_resident(fd, offset, length)
    first, last = offset // PAGE_BYTES, (offset + length - 1) // PAGE_BYTES
    return cached > last - first


def cached_pages(fd: int, offset: int, length: int) -> int | None:
    """How many of the pages are in memory, None where this kernel does not tell or may not."""
    counts = _Counts()
    asked = _Range(offset, length)
    if _libc.syscall(CACHESTAT, fd, ctypes.byref(asked), ctypes.byref(counts), 0) == 0:
        return int(counts.cached)
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP):
        return None
    raise OSError(code, os.strerror(code))


def looks_resident(fd: int, offset: int, length: int) -> bool:
    """Whether a page here and there can be read without waiting, the last one too; False also where
    this file system cannot tell."""
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
