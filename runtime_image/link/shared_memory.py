"""The side channel of a data link: descriptors of slabs, in either direction at any time.

A socket of its own (SOCK_SEQPACKET, made by the gateway, one end sent beside HELLO), because a
transport that owns a socket drops descriptors. Its end is the other process's: the kernel closes it
when that is gone, however the link ended.

Shared memory between a gateway and a replica: memfds, their seals, and places in them.

What a gateway makes, replicas can only read: it is sealed against every later way of writing, and
sealed in its size, so that no access can fail (memfd_create(2), fcntl(2)). What a replica makes is
sealed in its size only, and a gateway never maps it: it copies by system call.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import mmap
import os
import socket
from typing import Final, NamedTuple

from runtime_image.contract.link import SLAB_NOTICE, SLAB_RANGE
from runtime_image.link.frames import LinkError

NONE: Final = -1
DESCRIPTOR_SPACE: Final = socket.CMSG_LEN(array.array("i").itemsize)
"""Bytes of ancillary data: of one descriptor. The kernel closes what finds no room."""


class SlabNotice(NamedTuple):
    """A slab there is, with a `descriptor` that is the receiver's to close; or NONE and size 0: one
    that is used no more."""

    number: int
    size: int
    descriptor: int


class SideChannel:
    """One end, never blocking."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock

    def announce(self, number: int, size: int, descriptor: int) -> bool:
        """Pass a slab on; False where the other side is gone or does not read what was sent."""
        try:
            socket.send_fds(self.sock, [SLAB_NOTICE.pack(number, size)], [descriptor])
        except OSError:
            return False
        return True

    def retire(self, number: int) -> bool:
        """Say that a slab is used no more; False as `announce`."""
        try:
            self.sock.send(SLAB_NOTICE.pack(number, 0))
        except OSError:
            return False
        return True

    def receive(self) -> SlabNotice | None:
        """The next notice, None where there is none yet.

        Raises EOFError when the other side is gone, LinkError on anything but a notice.
        """
        try:
            data, ancillary, flags, _ = self.sock.recvmsg(
                SLAB_NOTICE.size, DESCRIPTOR_SPACE, socket.MSG_CMSG_CLOEXEC
            )
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            raise EOFError(str(error)) from error
        descriptors = descriptors_of(ancillary)
        # A message without a byte is no end, but nobody sends one who means well.
        if not data and not descriptors:
            raise EOFError("the side channel has ended")
        return _notice(data, descriptors, flags)

    def close(self) -> None:
        """End it: the other side sees that, even if a child of this process still has it."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()


def descriptors_of(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    """The descriptors in what recvmsg(2) gave."""
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return descriptors.tolist()


def _notice(data: bytes, descriptors: list[int], flags: int) -> SlabNotice:
    cut = flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC)
    if not cut and len(data) == SLAB_NOTICE.size:
        number, size = SLAB_NOTICE.unpack(data)
        if size and len(descriptors) == 1:
            return SlabNotice(number, size, descriptors[0])
        if not size and not descriptors:
            return SlabNotice(number, 0, NONE)
    for descriptor in descriptors:
        os.close(descriptor)
    raise LinkError(
        f"expected a slab's notice with its descriptor, got {len(data)} bytes with"
        f" {len(descriptors)}{' or more' if cut else ''}"
    )


F_SEAL_FUTURE_WRITE: Final = 0x0010
"""linux/fcntl.h; not in Python 3.11. Mappings made before the seal may still write."""
SIZE_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class SlabRange(NamedTuple):
    """Where a body lies: number of the slab, offset and length in bytes."""

    slab: int
    offset: int
    length: int

    def pack(self) -> bytes:
        """The body of a frame with the flag SLAB."""
        return SLAB_RANGE.pack(*self)


def unpack_range(body: bytes | bytearray | memoryview) -> SlabRange:
    """Raises LinkError where no place is."""
    if len(body) != SLAB_RANGE.size:
        raise LinkError(f"expected a place of {SLAB_RANGE.size} bytes, got {len(body)}")
    return SlabRange(*SLAB_RANGE.unpack(body))


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
