"""Joins two transports, so that what one receives the other sends; half-closes and back-pressure
are passed on in both directions."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
from typing import Any


class End(asyncio.Protocol):
    """One of two joined ends. Until `join` it keeps what arrives in the first turn of the loop and
    reads nothing more."""

    def __init__(self, early: bytes = b"") -> None:
        """`early`: what was received before."""
        self._transport: asyncio.Transport | None = None
        self._peer: End | None = None
        self._is_lost = False
        self._has_ended = False
        self._is_draining = False
        self._early = early

    def join(self, peer: End) -> None:
        """Pass everything on between this end and `peer` from now on."""
        self._peer, peer._peer = peer, self
        for end, other in ((self, peer), (peer, self)):
            if end._is_lost:
                other.write(end._early)
                other.finish()
            else:
                other.write(end._early)
                if end._has_ended:
                    other.write_eof()
                end.resume_reading()

    def abort(self) -> None:
        """Close this end at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: Any) -> None:
        """Store the transport (asyncio callback)."""
        self._transport = transport
        # uvloop ignores a pause within connection_made of a server's connection.
        asyncio.get_running_loop().call_soon(self._pause_before_join)

    def _pause_before_join(self) -> None:
        if self._peer is None:
            self.pause_reading()

    def data_received(self, data: bytes) -> None:
        """Pass bytes on, or drop them after the peer's end (asyncio callback)."""
        if self._peer is None:
            self._early += data
        elif not self._is_draining:
            self._peer.write(data)

    def eof_received(self) -> bool:
        """Pass on the end of the stream; close if both streams have ended (asyncio callback)."""
        self._has_ended = True
        if self._is_draining:
            return False
        if self._peer is None:
            return True
        self._peer.write_eof()
        if self._peer._has_ended or self._is_hung_up():
            self._peer.close()
            return False
        return True

    def _is_hung_up(self) -> bool:
        """Whether the other end of a Unix socket is closed, and not only its direction to here.

        Its peer may be a channel whose far end neither sends nor closes: nothing else would end it.
        """
        near = None if self._transport is None else self._transport.get_extra_info("socket")
        if near is None:
            return False
        poll = select.poll()
        poll.register(near.fileno(), 0)
        return any(events & select.POLLHUP for _, events in poll.poll(0))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        """End the peer, too (asyncio callback)."""
        self._transport = None
        self._is_lost = True
        if self._peer is not None:
            self._peer.finish()

    def pause_writing(self) -> None:
        """Pause the peer: this end's reader is slower (asyncio callback)."""
        if self._peer is not None:
            self._peer.pause_reading()

    def resume_writing(self) -> None:
        """Resume the peer (asyncio callback)."""
        if self._peer is not None:
            self._peer.resume_reading()

    def write(self, data: bytes) -> None:
        """Send what the peer received."""
        if self._transport is not None:
            self._transport.write(data)

    def write_eof(self) -> None:
        """Send the end of the peer's stream."""
        if self._transport is not None:
            with contextlib.suppress(OSError):
                self._transport.write_eof()

    def pause_reading(self) -> None:
        """Receive nothing."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Receive again."""
        if self._transport is not None:
            self._transport.resume_reading()

    def close(self) -> None:
        """Close after all that was written."""
        if self._transport is not None:
            self._transport.close()

    def finish(self) -> None:
        """Close after all that was written: the peer is gone.

        A server may refuse an upload half-way, answer and close. A socket closed with unread bytes
        can lose the answer, so its writer is stopped and its bytes are dropped until they end.
        """
        near = None if self._transport is None else self._transport.get_extra_info("socket")
        if self._transport is None:
            return
        if near is None or self._has_ended:
            self._transport.close()
            return
        self._is_draining = True
        # A copy of the descriptor: uvloop's sockets have no shutdown().
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(near.fileno())) as copy:
            copy.shutdown(socket.SHUT_RD)
        self._transport.resume_reading()


async def attach(far: End) -> socket.socket:
    """Return one end of a socket pair, non-blocking; the other end is joined to `far`.

    Raises OSError.
    """
    ours, theirs = socket.socketpair()
    near = End()
    try:
        ours.setblocking(False)
        theirs.setblocking(False)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: near, theirs)
    except BaseException:
        ours.close()
        theirs.close()
        raise
    near.join(far)
    return ours
