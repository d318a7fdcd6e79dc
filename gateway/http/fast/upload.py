"""Receives the rest of a large body where it stays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

LARGE_READ: Final = 32 * 1024
"""Bytes in one read that tell a fast client from one that sends drop by drop."""
READS_AHEAD: Final = 4
"""Reads of that size that are counted ahead."""


class Upload(asyncio.BufferedProtocol):
    """Takes the place of a connection's protocol while `view` is filled from the socket.

    `arrived(count)` counts bytes that came or will come next: after a large read the next ones are
    counted ahead, because counting costs as much as a twentieth of a read. `received()` is called
    when the view is full, `lost(error)` when the client is gone before.
    """

    __slots__ = ("_ahead", "_arrived", "_filled", "_lost", "_received", "_view")

    def __init__(
        self,
        view: memoryview,
        arrived: Callable[[int], None],
        received: Callable[[], None],
        lost: Callable[[Exception | None], None],
    ) -> None:
        self._view = view
        self._arrived = arrived
        self._received = received
        self._lost = lost
        self._filled = 0
        self._ahead = 0

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the protocol's signature
        """asyncio's: where to receive; never empty, for the last byte ends it."""
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """asyncio's: bytes came."""
        self._filled += nbytes
        if self._filled == len(self._view):
            self._view = memoryview(b"")
            self._received()
        elif nbytes <= self._ahead:
            self._ahead -= nbytes
        else:
            counted, self._ahead = self._ahead, 0
            if nbytes >= LARGE_READ:
                self._ahead = min(READS_AHEAD * nbytes, len(self._view) - self._filled)
            self._arrived(nbytes - counted + self._ahead)

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio's: the client is gone."""
        self._view = memoryview(b"")
        self._lost(exc)


class Discarding(asyncio.Protocol):
    """Drops what still comes of a body that was refused: a connection closed with bytes unread is
    reset, and the client might lose the answer. `lost(error)` is called when the client is gone."""

    __slots__ = ("_lost",)

    def __init__(self, lost: Callable[[Exception | None], None]) -> None:
        self._lost = lost

    def data_received(self, data: bytes) -> None:
        """asyncio's: more of it."""

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio's: the client is gone."""
        self._lost(exc)


def exchange(transport: asyncio.Transport, protocol: asyncio.BaseProtocol) -> None:
    """Give a transport another protocol: between the two nothing may be received, since one takes
    bytes and the other receives them into its own buffer."""
    transport.pause_reading()
    transport.set_protocol(protocol)
    transport.resume_reading()
