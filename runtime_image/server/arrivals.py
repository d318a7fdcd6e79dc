"""New connections of gateways on other machines, until their first frame identifies them."""

from __future__ import annotations

import socket
from collections.abc import Callable

from runtime_image.contract.link import CHANNEL_KEY_SIZE, HEADER, Kind
from runtime_image.link.frames import Frame, FrameReader, LinkError
from runtime_image.replica.loop import Loop

OnLink = Callable[[socket.socket, FrameReader, list[Frame]], None]
OnChannel = Callable[[socket.socket, int, bytes], None]


class Arrival:
    """One connection. Nothing is read beyond a CONNECT: the bytes behind it belong to the server.

    One of `on_link(sock, reader, frames)`, `on_channel(sock, id, key)` and `gone(self)` is called
    once; the receiver of a socket owns it.
    """

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        *,
        on_link: OnLink,
        on_channel: OnChannel,
        over: Callable[[Arrival], None],
    ) -> None:
        """`over` is called when the connection is gone or was handed on."""
        self._loop = loop
        self._sock = sock
        self._on_link = on_link
        self._on_channel = on_channel
        self._over = over
        self._read = b""
        self.since_s = loop.clock()
        loop.watch(sock, self._readable)

    def close(self) -> None:
        """Give up."""
        self._loop.forget(self._sock)
        self._sock.close()
        self._over(self)

    def _readable(self) -> None:
        try:
            is_whole = self._receive(HEADER.size) and self._handle()
        except (OSError, LinkError):
            self.close()
            return
        if is_whole:
            self._over(self)

    def _receive(self, size: int) -> bool:
        """Read up to `size` bytes in all; return whether they are there. Raises EOFError."""
        try:
            while len(self._read) < size:
                data = self._sock.recv(size - len(self._read))
                if not data:
                    raise LinkError("closed before the first frame")
                self._read += data
        except (BlockingIOError, InterruptedError):
            return False
        return True

    def _handle(self) -> bool:
        """Hand the connection on; return False if more has to be read. Raises LinkError."""
        body_len, id, kind, _, meta_len, _ = HEADER.unpack_from(self._read)
        if kind != Kind.CONNECT:
            reader = FrameReader()
            reader.buffer()[: HEADER.size] = self._read
            frames = reader.received(HEADER.size)
            self._loop.forget(self._sock)
            self._on_link(self._sock, reader, frames)
            return True
        if body_len != CHANNEL_KEY_SIZE or meta_len:
            raise LinkError(f"expected a key of {CHANNEL_KEY_SIZE} bytes, got {body_len}")
        if not self._receive(HEADER.size + CHANNEL_KEY_SIZE):
            return False
        self._loop.forget(self._sock)
        self._on_channel(self._sock, id, self._read[HEADER.size :])
        return True
