"""A connection through SSH whose near end is an ordinary socket.

The near end is one of a pair that only this process has: no port is opened, so no other user of
this machine can use the tunnel, or take the place of one that broke and be sent a key. Neither
side is read faster than the other one takes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any, Final

import asyncssh

CHANNEL_S: Final = 10.0
"""Seconds that the far machine may take to open a connection."""


class Near(asyncio.Protocol):
    """The side of this process."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._far: asyncssh.SSHTCPChannel[bytes] | None = None

    def connection_made(self, transport: Any) -> None:
        """asyncio's: the socket pair is ready."""
        self._transport = transport
        transport.pause_reading()

    def join(self, far: asyncssh.SSHTCPChannel[bytes]) -> None:
        """Pass on to `far` from now on."""
        self._far = far
        self.resume_reading()

    def data_received(self, data: bytes) -> None:
        """asyncio's: bytes for the far side; what comes after its end is dropped."""
        if self._far is not None:
            # It takes nothing any more a moment before it says that it has ended. As an error here
            # that would close the socket, and lose the answer that is in it.
            with contextlib.suppress(BrokenPipeError):
                self._far.write(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        """asyncio's: whoever used the socket closed it. An HTTP client never closes half of it."""
        self._transport = None
        far, self._far = self._far, None
        if far is not None:
            far.close()

    def pause_writing(self) -> None:
        """asyncio's: the reader is slower than SSH."""
        if self._far is not None:
            self._far.pause_reading()

    def resume_writing(self) -> None:
        """asyncio's: the reader has caught up."""
        if self._far is not None:
            self._far.resume_reading()

    def write(self, data: bytes) -> None:
        """Bytes from the far side."""
        if self._transport is not None:
            self._transport.write(data)

    def pause_reading(self) -> None:
        """SSH is slower than the writer."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """SSH has caught up."""
        if self._transport is not None:
            self._transport.resume_reading()

    def far_ended(self) -> None:
        """Nothing more comes or goes: what came can still be read, then the end.

        A server may refuse an upload half-way, answer and close. Closed with unread bytes in it, a
        socket pair loses the answer, so the writer is stopped and what it wrote is read away.
        """
        self._far = None
        if self._transport is not None:
            with contextlib.suppress(OSError):
                self._transport.get_extra_info("socket").shutdown(socket.SHUT_RD)
            self._transport.resume_reading()


class Far(asyncssh.SSHTCPSession[bytes]):
    """The side of the other machine."""

    def __init__(self, near: Near) -> None:
        self._near = near

    def data_received(self, data: bytes, datatype: int | None = None) -> None:  # noqa: ARG002
        """asyncssh's: bytes for the near side."""
        self._near.write(data)

    def eof_received(self) -> bool:
        """asyncssh's: the server has said all; the channel closes."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncssh's
        """asyncssh's: the channel is closed, or the connection broke."""
        self._near.far_ended()

    def pause_writing(self) -> None:
        """asyncssh's: the window is full."""
        self._near.pause_reading()

    def resume_writing(self) -> None:
        """asyncssh's: there is room again."""
        self._near.resume_reading()


async def dial(connection: asyncssh.SSHClientConnection, host: str, port: int) -> socket.socket:
    """A blocking socket to `host`:`port` as the far machine sees them.

    Raises asyncssh.Error, OSError or TimeoutError.
    """
    ours, theirs = socket.socketpair()
    near = Near()
    try:
        loop = asyncio.get_running_loop()
        theirs.setblocking(False)
        transport, _ = await loop.connect_accepted_socket(lambda: near, theirs)
    except BaseException:
        ours.close()
        theirs.close()
        raise
    try:
        async with asyncio.timeout(CHANNEL_S):
            channel, _ = await connection.create_connection(lambda: Far(near), host, port)
    except BaseException:
        ours.close()
        transport.abort()
        raise
    near.join(channel)
    return ours
