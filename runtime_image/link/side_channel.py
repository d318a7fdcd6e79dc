"""The side channel of a data link: descriptors of slabs, in either direction at any time.

A socket of its own (SOCK_SEQPACKET, made by the gateway, one end sent beside HELLO), because a
transport that owns a socket drops descriptors. Its end is the other process's: the kernel closes it
when that is gone, however the link ended.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
from typing import Final, NamedTuple

from runtime_image.contract.link import SLAB_NOTICE
from runtime_image.link.frames import LinkError

NONE: Final = -1
DESCRIPTOR_SPACE: Final = socket.CMSG_LEN(array.array("i").itemsize)
"""Bytes of ancillary data: of one descriptor. The kernel closes what finds no room."""


class Notice(NamedTuple):
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

    def receive(self) -> Notice | None:
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
        descriptors = passed(ancillary)
        # A message without a byte is no end, but nobody sends one who means well.
        if not data and not descriptors:
            raise EOFError("the side channel has ended")
        return _notice(data, descriptors, flags)

    def close(self) -> None:
        """End it: the other side sees that, even if a child of this process still has it."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()


def passed(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    """The descriptors in what recvmsg(2) gave."""
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return descriptors.tolist()


def _notice(data: bytes, descriptors: list[int], flags: int) -> Notice:
    cut = flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC)
    if not cut and len(data) == SLAB_NOTICE.size:
        number, size = SLAB_NOTICE.unpack(data)
        if size and len(descriptors) == 1:
            return Notice(number, size, descriptors[0])
        if not size and not descriptors:
            return Notice(number, 0, NONE)
    for descriptor in descriptors:
        os.close(descriptor)
    raise LinkError(
        f"expected a slab's notice with its descriptor, got {len(data)} bytes with"
        f" {len(descriptors)}{' or more' if cut else ''}"
    )
