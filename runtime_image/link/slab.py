"""Shared memory between a gateway and a replica: memfds, their seals, and places in them.

What a gateway makes, replicas can only read: it is sealed against every later way of writing, and
sealed in its size, so that no access can fail (memfd_create(2), fcntl(2)). What a replica makes is
sealed in its size only, and a gateway never maps it: it copies by system call.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import Final, NamedTuple

from runtime_image.contract.link import PLACE
from runtime_image.link.frames import LinkError

F_SEAL_FUTURE_WRITE: Final = 0x0010
"""linux/fcntl.h; not in Python 3.11. Mappings made before the seal may still write."""
SIZE_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class Place(NamedTuple):
    """Where a body lies: number of the slab, offset and length in bytes."""

    slab: int
    offset: int
    length: int

    def pack(self) -> bytes:
        """The body of a frame with the flag SLAB."""
        return PLACE.pack(*self)


def unpack_place(body: bytes | bytearray | memoryview) -> Place:
    """Raises LinkError where no place is."""
    if len(body) != PLACE.size:
        raise LinkError(f"expected a place of {PLACE.size} bytes, got {len(body)}")
    return Place(*PLACE.unpack(body))


def make_slab(size: int, *, read_only: bool) -> tuple[int, mmap.mmap]:
    """A new slab of `size` bytes: its descriptor, and the mapping to write through.

    `read_only`: nobody else can ever write to it. Raises OSError where there is no memory for it.
    """
    descriptor = os.memfd_create("fngate", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        mapped = mmap.mmap(descriptor, size)
        seals = SIZE_SEALS | (F_SEAL_FUTURE_WRITE if read_only else 0) | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    except (OSError, ValueError):
        os.close(descriptor)
        raise
    return descriptor, mapped


def open_for_reading(descriptor: int) -> int:
    """The same memory, opened anew: for somebody else to read, and to be told apart by
    `is_unread`."""
    return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)


def is_unread(own: int) -> bool:
    """Whether `own`, of `open_for_reading`, is the only such descriptor left, with no mapping made
    through another: a write lease is given on no other terms (fcntl(2), F_SETLEASE)."""
    try:
        fcntl.fcntl(own, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError:
        return False
    fcntl.fcntl(own, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return True


def map_for_reading(descriptor: int, size: int) -> mmap.mmap:
    """A slab of the gateway's. Raises LinkError where it is not of that size."""
    check_size(descriptor, size)
    try:
        return mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ)
    except OSError as error:
        raise LinkError(f"a slab cannot be mapped: {error}") from error


def check_size(descriptor: int, size: int) -> None:
    """Raises LinkError unless the slab is as large as was said and stays so."""
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError as error:
        raise LinkError(f"expected a memfd as a slab: {error}") from error
    if seals & SIZE_SEALS != SIZE_SEALS:
        raise LinkError(f"expected a slab sealed against shrinking and growing, got {seals:#x}")
    if os.fstat(descriptor).st_size != size:
        raise LinkError(f"expected a slab of {size} bytes, got {os.fstat(descriptor).st_size}")
