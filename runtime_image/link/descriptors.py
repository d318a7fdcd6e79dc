"""Descriptors in messages of Unix sockets (unix(7), SCM_RIGHTS)."""

from __future__ import annotations

import array
import os
import socket
from typing import Final, NamedTuple

from runtime_image.link.frames import LinkError

_SIZE: Final = array.array("i").itemsize
ONE: Final = socket.CMSG_LEN(_SIZE)
"""Bytes of ancillary data for one descriptor. The kernel closes descriptors that do not fit."""
TWO: Final = socket.CMSG_LEN(2 * _SIZE)
SIDE_CLOSED: Final = "the side channel has ended"
"""Why a link ends whose process does: of its sockets, this one may be seen first."""
"""The same for two, by which a receiver of one tells a message with too many from one for which
this process has no descriptor left."""


class Message(NamedTuple):
    """One message of a SOCK_SEQPACKET socket, whose receiver closes `descriptors`.

    `is_long`: a part of the data did not fit. `lacks_descriptors`: more descriptors came than there
    was room for, or than this process may open.
    """

    data: bytes
    descriptors: list[int]
    is_long: bool
    lacks_descriptors: bool

    def refuse(self, expected: str) -> LinkError:
        """Close the descriptors; return the error of a message that is not as `expected`."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        more = " or more" if self.lacks_descriptors else ""
        count = f"{len(self.descriptors)}{more} descriptors"
        return LinkError(f"expected {expected}, got {len(self.data)} bytes with {count}")


def receive_message(sock: socket.socket, size: int, space: int) -> Message | None:
    """Return the next message of a non-blocking socket, None if none has arrived.

    `size`: max bytes of data; `space`: bytes for descriptors. Raises EOFError when the other side
    is gone. An empty message counts as that: no correct peer sends one.
    """
    try:
        data, ancillary, flags, _ = sock.recvmsg(size, space, socket.MSG_CMSG_CLOEXEC)
    except (BlockingIOError, InterruptedError):
        return None
    except OSError as error:
        raise EOFError(str(error)) from error
    descriptors = descriptors_of(ancillary)
    if not data and not descriptors:
        raise EOFError(SIDE_CLOSED)
    is_long = flags & socket.MSG_TRUNC != 0
    return Message(data, descriptors, is_long, flags & socket.MSG_CTRUNC != 0)


def descriptors_of(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    """Return the descriptors in the ancillary data of recvmsg(2)."""
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return descriptors.tolist()
