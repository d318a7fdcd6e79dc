"""Raw client end of a connection."""

from __future__ import annotations

import asyncio
from typing import cast


class Client(asyncio.Protocol):
    """One raw connection; stores the bytes received."""

    def __init__(self, all_clients: set[Client]) -> None:
        self._all = all_clients
        self.received = bytearray()
        self.is_ended = False
        """The server sent EOF."""
        self.is_lost = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._all.add(self)

    def data_received(self, data: bytes) -> None:
        self.received += data

    def eof_received(self) -> bool:
        self.is_ended = True
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = self.is_ended = True
        self._all.discard(self)

    def write(self, data: bytes) -> None:
        """Send bytes."""
        assert self.transport is not None
        self.transport.write(data)

    def leave(self) -> None:
        """Abort the connection."""
        assert self.transport is not None
        self.transport.abort()
