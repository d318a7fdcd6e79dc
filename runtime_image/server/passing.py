"""How an established connection to the server gets to its gateway.

On one machine the connected socket itself is passed over the link's side channel (SCM_RIGHTS,
unix(7)), and no byte passes through the sidecar. From another machine the gateway opens a second
connection to the sidecar, which relays bytes (`splicing`). `Links` uses either by `Passing`.
"""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from runtime_image.contract.link import SOCKET_NOTICE
from runtime_image.link.frames import LinkError
from runtime_image.replica.loop import Loop
from runtime_image.server.connecting import shut
from runtime_image.server.slots import Key

PASS_AGAIN_S: Final = 0.01
"""Pause after the kernel's limit of descriptors in flight was reached (ETOOMANYREFS)."""


class Passing(Protocol):
    """The connections of one gateway link."""

    def put(self, key: Key, sock: socket.socket) -> None:
        """Pass an established connection, as soon as possible; then `passed(key)` is called."""

    def rename(self, old: Key, key: Key) -> None:
        """Handle that the connection `old` carries the exchange `key` from now on."""

    def shut(self, key: Key) -> None:
        """Shut a connection down for all its holders, and forget it. Ignores unknown ones."""

    def tick(self) -> None:
        """Apply time limits; called twice a second."""

    def socket(self, key: Key) -> socket.socket | None:
        """Return this process's descriptor of a connection to the server, None if there is none."""

    def close(self) -> None:
        """Shut everything down: the link has ended."""


class DescriptorPassing:
    """`Passing` of sockets over a side channel. A duplicate of each socket is kept, with which the
    connection can be shut down for every holder."""

    def __init__(
        self,
        loop: Loop,
        side: socket.socket,
        *,
        passed: Callable[[Key], None],
        broken: Callable[[], None],
    ) -> None:
        """`broken` is called if the gateway's end of `side` is gone."""
        self._loop = loop
        self._side = side
        self._passed = passed
        self._broken = broken
        self._duplicates: dict[Key, socket.socket] = {}
        self._unpassed: deque[Key] = deque()
        self._is_blocked = False
        self._is_closed = False

    def put(self, key: Key, sock: socket.socket) -> None:
        """Passing: pass the connection once the side channel has room."""
        self._duplicates[key] = sock
        self._unpassed.append(key)
        if not self._is_blocked:
            self._pass_all()

    def rename(self, old: Key, key: Key) -> None:
        """Passing: rename the duplicate."""
        self._duplicates[key] = self._duplicates.pop(old)

    def shut(self, key: Key) -> None:
        """Passing: shut the connection down by its duplicate."""
        duplicate = self._duplicates.pop(key, None)
        if duplicate is not None:
            shut(duplicate)

    def socket(self, key: Key) -> socket.socket | None:
        """Passing: return the duplicate."""
        return self._duplicates.get(key)

    def tick(self) -> None:
        """Passing: what is not passed in time is refused by the table of slots."""

    def close(self) -> None:
        """Passing: shut all connections and the side channel."""
        self._is_closed = True
        if self._is_blocked:
            self._loop.forget(self._side)
        shut(self._side)
        for key in list(self._duplicates):
            self.shut(key)

    def _pass_all(self) -> None:
        """Pass the connections that wait, in order. At most one per OPEN is unread: the kernel
        limits the descriptors in flight of a user."""
        if self._is_closed:
            return
        if self._is_blocked:
            self._loop.forget(self._side)
            self._is_blocked = False
        while self._unpassed:
            key = self._unpassed[0]
            sock = self._duplicates.get(key)
            if sock is not None:
                error = _pass(self._side, key.id, sock)
                if error:
                    self._wait(error)
                    return
                self._passed(key)
            self._unpassed.popleft()

    def _wait(self, error: int) -> None:
        if error == errno.EAGAIN:
            self._is_blocked = True
            self._loop.when_writable(self._side, self._pass_all)
        elif error in (errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM):
            self._loop.after(PASS_AGAIN_S, self._pass_all)
        else:
            # The other end is gone; not at once, as the caller may be in the middle of this link.
            self._loop.post(self._broken)


def side_channel(descriptor: int) -> socket.socket:
    """Return the side channel that came with HELLO. Raises LinkError for any other descriptor."""
    try:
        side = socket.socket(fileno=descriptor)
    except OSError as error:
        os.close(descriptor)
        raise LinkError(f"expected a socket as side channel: {error}") from error
    if (side.family, side.type) != (socket.AF_UNIX, socket.SOCK_SEQPACKET):
        side.close()
        raise LinkError(f"expected a SOCK_SEQPACKET side channel, got {side.type}")
    side.setblocking(False)
    return side


def _pass(side: socket.socket, id: int, sock: socket.socket) -> int:
    """Pass a connection; return the error, 0 for none."""
    try:
        socket.send_fds(side, [SOCKET_NOTICE.pack(id)], [sock.fileno()])
    except OSError as error:
        return error.errno or errno.EIO
    return 0
