"""How a replica connects to its manager: by a Unix socket, or by TLS over TCP."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Protocol

from runtime_image.link.frames import Frame, LinkError
from runtime_image.replica.loop import Loop

Dialled = Callable[[socket.socket | None], None]
"""Receives the connection, or None if there is none."""


class Dialler(Protocol):
    """Connects to one address, again and again."""

    def connect(self, timeout_s: float) -> socket.socket:
        """Connect, blocking, and return the socket with this timeout. Raises OSError."""

    def begin(self, loop: Loop, dialled: Dialled) -> None:
        """Connect without blocking the loop; `dialled` is called once, perhaps at once."""

    def renew(self, frame: Frame) -> None:
        """Handle CERTIFICATE. Raises LinkError."""


class UnixDialler:
    """Connects to the Unix socket at `path`."""

    def __init__(self, path: str) -> None:
        self._path = path

    def connect(self, timeout_s: float) -> socket.socket:
        """Dialler."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(timeout_s)
        return self._connected(sock)

    def begin(self, loop: Loop, dialled: Dialled) -> None:  # noqa: ARG002 - it never waits
        """Dialler."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            dialled(self._connected(sock))
        except OSError:
            dialled(None)

    def renew(self, frame: Frame) -> None:
        """Dialler."""
        raise LinkError(f"unexpected {frame.kind.name} on the control link")

    def _connected(self, sock: socket.socket) -> socket.socket:
        try:
            sock.connect(self._path)
        except BaseException:
            sock.close()
            raise
        return sock
