"""Progress of a server's exchanges, read from the sidecar's own descriptors of their sockets.

No byte passes through the sidecar. The kernel counts the bytes of each connection: those that the
server has sent (`tcpi_bytes_received`) and those that it has taken (`tcpi_bytes_acked`), and says
how many wait to be read (FIONREAD, ioctl_tty(2)). A Unix socket has no such counts: there only the
end of an exchange is progress.

The first bytes of an answer count once others follow, or at the end of an exchange that has not
failed: many servers send the head of a stream before their engine has seen the request, and go on
doing so when it hangs.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
from collections.abc import Iterable
from typing import Final

from runtime_image.server.slots import Key

_INFO_SIZE: Final = 136
"""Bytes of struct tcp_info up to and including `tcpi_bytes_received` (linux/tcp.h)."""
_BYTES: Final = struct.Struct("<QQ")
_BYTES_AT: Final = 120
_PEER_ENDED: Final = frozenset({6, 8, 9, 11})
"""`tcpi_state` once the server has ended its sending: TIME_WAIT, CLOSE_WAIT, LAST_ACK, CLOSING
(net/tcp_states.h)."""
_INT: Final = struct.Struct("i")


class Progress:
    """Totals over all exchanges of one server."""

    def __init__(self) -> None:
        self.moved = 0
        """Bytes in both directions, and exchanges that the server has ended."""
        self.given = 0
        """Bytes that the server has sent, as far as they count."""
        self._seen: dict[Key, tuple[int, int]] = {}
        """Bytes taken and sent on each connection, as read last."""
        self._first: dict[Key, int] = {}
        """The first bytes of answers that have begun, as long as they do not count; else 0."""
        self._failed: set[Key] = set()
        """Open exchanges that have failed, until their end."""

    def read(self, sockets: Iterable[tuple[Key, socket.socket]]) -> bool:
        """Read all open exchanges; return whether bytes of the server lie unread in any socket.

        Takes some microseconds per exchange.
        """
        is_unread = False
        for key, sock in sockets:
            self._note(key, sock)
            is_unread = is_unread or _unread(sock) > 0
        return is_unread

    def rename(self, old: Key, key: Key) -> None:
        """Note that the connection `old` carries the exchange `key` from now on."""
        self._count(self._first.pop(old, 0))
        if old in self._seen:
            self._seen[key] = self._seen.pop(old)

    def ended(self, key: Key, sock: socket.socket | None) -> None:
        """Read an exchange for the last time; `sock` is None if there is no connection."""
        before = self.moved, self.given
        if sock is not None and not self._note(key, sock):
            self.moved += 1  # a Unix socket: what its end means is not known
        self._count(self._first.pop(key, 0))
        if key in self._failed:
            self._failed.remove(key)
            self.moved, self.given = before
        self._seen.pop(key, None)

    def failed(self, key: Key) -> None:
        """Note, before `ended`, that the server has not answered an open exchange as it should."""
        self._failed.add(key)

    def kept(self, key: Key) -> None:
        """Note that an exchange ended with its whole answer: its connection is used again."""
        self.moved += 1
        self._count(self._first.pop(key, 0))

    def _note(self, key: Key, sock: socket.socket) -> bool:
        """Count what was moved on a connection since it was read last; return whether the kernel
        counts. A request that a new connection brought is no progress: the kernel takes it for a
        server that does not read. That holds, too, where the connection was read before it had sent
        anything: its opening alone counts as one byte taken."""
        try:
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_SIZE)
            taken, given = _BYTES.unpack_from(info, _BYTES_AT)
        except (OSError, struct.error):
            return False
        given -= info[0] in _PEER_ENDED  # the end of the connection counts as a byte
        if given <= 1:
            given = 0  # it was reset after its end; no answer has one byte only
        before_taken, before_given = self._seen.get(key, (0, 0))
        if before_taken <= 1:
            before_taken = taken
        self._seen[key] = taken, given
        came = given - before_given
        self.moved += taken - before_taken
        if came and key not in self._first:
            self._first[key] = came
        elif came:
            self._count(came + self._first[key])
            self._first[key] = 0
        return True

    def _count(self, given: int) -> None:
        """Count bytes of an answer."""
        self.given += given
        self.moved += given


def _unread(sock: socket.socket) -> int:
    """Return the number of bytes that wait in a socket; 0 if that is unknown."""
    try:
        return int(_INT.unpack(fcntl.ioctl(sock, termios.FIONREAD, bytes(_INT.size)))[0])
    except OSError:
        return 0
