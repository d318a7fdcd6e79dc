"""The data listener that a replica on another host binds itself."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, Final, Protocol

from runtime_image.contract.link import Kind
from runtime_image.link.frames import Piece, pack

BACKLOG: Final = 64


class DataListener(Protocol):
    """A listening socket, or what accepts connections as one does."""

    def fileno(self) -> int:
        """Return the descriptor that is readable when `accept` has something to do."""

    def setblocking(self, flag: bool, /) -> None:
        """As of a socket."""

    def settimeout(self, value: float | None, /) -> None:
        """As of a socket."""

    def accept(self) -> tuple[socket.socket, Any]:
        """As of a socket."""

    def close(self) -> None:
        """As of a socket."""


def bind_data(path: str) -> socket.socket:
    """Listen at `path`, for every user who can reach the folder. Raises OSError."""
    file = Path(path)
    file.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        file.chmod(0o666)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def pack_greeting(greeting: str) -> list[Piece]:
    """Encode the frame with which a replica on another host begins every data link: nothing is sent
    to it before, since whatever listens at the path could be another program."""
    return pack(Kind.WELCOME, body=greeting.encode())
