"""A replica's log: a file that it appends to, and of which only the end is kept.

The beginning is taken away as a hole (fallocate(2)): nothing that is written meanwhile is lost, and
a place in the log is the same number for ever, which is what whoever follows it needs. Blocking.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from typing import Final, NamedTuple

BLOCK: Final = 4096
"""Holes are made of whole blocks."""
SIZE_MAX: Final = 2**40
"""Bytes from where on a log begins anew: file systems have an end, at 16 TiB for instance."""
DROPPED: Final = b"... earlier output was dropped ...\n"

_PUNCH: Final = 0x01 | 0x02
"""FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE of linux/falloc.h."""
_NO_HOLES: Final = (errno.EOPNOTSUPP, errno.ENOSYS, errno.ENODEV)

_libc = ctypes.CDLL(None, use_errno=True)


class Piece(NamedTuple):
    """`data` begins at `start`; what was before it, from where it was asked for, is gone."""

    start: int
    data: bytes


def read(path: Path, place: int, size: int) -> Piece:
    """What there is from `place` on, at most `size` bytes. Raises OSError.

    Where the log has begun anew, nobody knows what was missed: it goes on at its end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        length = os.fstat(descriptor).st_size
        if place >= length:
            return Piece(length, b"")
        start = _data_from(descriptor, place, length)
        return Piece(start, os.pread(descriptor, size, start))
    finally:
        os.close(descriptor)


def kept(path: Path, most: int) -> bytes:
    """The last `most` bytes of what is kept, from the start of a line, and behind a line that says
    so where there was more. Raises OSError."""
    start, data = _tail(path, most)
    return DROPPED + data.partition(b"\n")[2] if start else data


def _tail(path: Path, most: int) -> Piece:
    """The last `most` bytes of what is kept."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        length = os.fstat(descriptor).st_size
        start = max(_data_from(descriptor, 0, length), length - most)
        return Piece(start, os.pread(descriptor, most, start))
    finally:
        os.close(descriptor)


def last_lines(path: Path, count: int, most: int) -> int:
    """The place where the last `count` lines begin, of the last `most` bytes. Raises OSError."""
    start, data = _tail(path, most)
    place = len(data) - data.endswith(b"\n")
    for _ in range(count):
        place = data.rfind(b"\n", 0, max(0, place))
        if place < 0:
            # Within a line, if anything is gone before it.
            return start + (data.find(b"\n") + 1 if start else 0)
    return start + place + 1


def bound(path: Path, limit: int, keep: int) -> bool:
    """Where a log has more than `limit` bytes, take away all but the last `keep` or so; whether it
    had. Raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        length = found.st_size
        if length - _data_from(descriptor, 0, length) <= limit:
            return False
        end = (length - keep) // BLOCK * BLOCK
        if length > SIZE_MAX or not _punched(descriptor, end):
            _begin_anew(path, descriptor, length, keep)
        # Its time is that of what was written last, for whoever goes on behind that (`spooling`).
        os.utime(descriptor, ns=(found.st_atime_ns, found.st_mtime_ns))
        return True
    finally:
        os.close(descriptor)


def disk_bytes(path: Path) -> int:
    """What a log takes of its disk. Raises OSError."""
    return path.stat().st_blocks * 512


def _data_from(descriptor: int, place: int, length: int) -> int:
    """The first place from `place` on that is in no hole."""
    try:
        return os.lseek(descriptor, place, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:  # nothing but a hole, or nothing at all
            return length
        raise


def _punched(descriptor: int, end: int) -> bool:
    """Whether everything before `end` could be taken away; where the file system has no holes it
    cannot. Raises OSError."""
    if end <= 0:
        return True
    offset, length = ctypes.c_int64(0), ctypes.c_int64(end)
    if _libc.fallocate64(descriptor, _PUNCH, offset, length) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NO_HOLES:
        return False
    raise OSError(code, os.strerror(code))


def _begin_anew(path: Path, descriptor: int, length: int, keep: int) -> None:
    """The writer appends (O_APPEND), so its next line lands behind what is kept; what it writes
    between the two steps here is lost."""
    data = os.pread(descriptor, keep, max(0, length - keep)).partition(b"\n")[2]
    os.ftruncate(descriptor, 0)
    with path.open("ab") as log:
        log.write(DROPPED + data)
