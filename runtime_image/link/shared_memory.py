"""Shared memory between a gateway and a replica: slabs, ranges within them, and the side channel.

A slab is a memfd. Replicas can only read a gateway's slabs: seals forbid all later writes and all
changes of size, so no memory access can fault (memfd_create(2), fcntl(2)). Of a replica's slab only
the size is sealed; a gateway never maps it but copies from it by system call.

The side channel passes descriptors of slabs, in either direction at any time. It is a separate
socket (SOCK_SEQPACKET, made by the gateway, one end sent with HELLO), because an asyncio transport
drops descriptors. The kernel closes it when the other process ends, for whatever reason.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import socket
from typing import Final, NamedTuple

from runtime_image.contract.link import SLAB_NOTICE, SLAB_RANGE
from runtime_image.link.descriptors import ONE, Message, receive_message
from runtime_image.link.frames import LinkError

NO_DESCRIPTOR: Final = -1
F_SEAL_FUTURE_WRITE: Final = 0x0010
"""linux/fcntl.h; not in Python 3.11. Mappings made before the seal may still write."""
SIZE_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class SlabRange(NamedTuple):
    """Range of a slab that holds a body: number of the slab, offset and length in bytes."""

    slab: int
    offset: int
    length: int

    def pack(self) -> bytes:
        """Encode the range as the body of a frame with the flag SLAB."""
        return SLAB_RANGE.pack(*self)


def unpack_range(body: bytes | bytearray | memoryview) -> SlabRange:
    """Decode the body of a frame with the flag SLAB. Raises LinkError."""
    if len(body) != SLAB_RANGE.size:
        raise LinkError(f"expected a slab range of {SLAB_RANGE.size} bytes, got {len(body)}")
    return SlabRange(*SLAB_RANGE.unpack(body))


def make_slab(size: int, *, read_only: bool) -> tuple[int, mmap.mmap]:
    """Return descriptor and writable mapping of a new slab of `size` bytes.

    `read_only`: no other process can ever write to it. Raises OSError if there is no memory for it.
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
    """Reopen the memory read-only, for another process and for `is_unread`."""
    return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)


def is_unread(own: int) -> bool:
    """Whether `own`, from `open_for_reading`, is the only such descriptor left, and no mapping was
    made through another: the condition of a write lease (fcntl(2), F_SETLEASE)."""
    try:
        fcntl.fcntl(own, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError:
        return False
    fcntl.fcntl(own, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return True


def map_for_reading(descriptor: int, size: int) -> mmap.mmap:
    """Return a read-only mapping of the gateway's slab. Raises LinkError if its size differs."""
    check_size(descriptor, size)
    try:
        return mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ)
    except OSError as error:
        raise LinkError(f"a slab cannot be mapped: {error}") from error


def check_size(descriptor: int, size: int) -> None:
    """Raise LinkError unless the slab has this size and is sealed against changes of it."""
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError as error:
        raise LinkError(f"expected a memfd as a slab: {error}") from error
    if seals & SIZE_SEALS != SIZE_SEALS:
        raise LinkError(f"expected a slab sealed against shrinking and growing, got {seals:#x}")
    if os.fstat(descriptor).st_size != size:
        raise LinkError(f"expected a slab of {size} bytes, got {os.fstat(descriptor).st_size}")


class SlabNotice(NamedTuple):
    """Notice of a new slab with its `descriptor`, which the receiver closes. With NO_DESCRIPTOR and
    size 0: the slab is retired."""

    number: int
    size: int
    descriptor: int


class SideChannel:
    """One end of a side channel, non-blocking."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock

    def announce(self, number: int, size: int, descriptor: int) -> bool:
        """Send a slab's descriptor; return False if the other side is gone or does not read."""
        try:
            socket.send_fds(self.sock, [SLAB_NOTICE.pack(number, size)], [descriptor])
        except OSError:
            return False
        return True

    def retire(self, number: int) -> bool:
        """Announce that a slab is retired; return False as in `announce`."""
        try:
            self.sock.send(SLAB_NOTICE.pack(number, 0))
        except OSError:
            return False
        return True

    def receive(self) -> SlabNotice | None:
        """Return the next notice, None if none has arrived.

        Raises EOFError when the other side is gone, LinkError on anything but a notice.
        """
        message = receive_message(self.sock, SLAB_NOTICE.size, ONE)
        return None if message is None else _notice(message)

    def close(self) -> None:
        """Shut the channel down, even if a child process inherited the socket."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()


def _notice(message: Message) -> SlabNotice:
    data, descriptors, is_long, lacks_descriptors = message
    if len(data) == SLAB_NOTICE.size and not (is_long or lacks_descriptors):
        number, size = SLAB_NOTICE.unpack(data)
        if size and len(descriptors) == 1:
            return SlabNotice(number, size, descriptors[0])
        if not size and not descriptors:
            return SlabNotice(number, 0, NO_DESCRIPTOR)
    raise message.refuse("a slab's notice with its descriptor")
