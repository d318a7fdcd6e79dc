"""A client of gRPC that sends parts of messages, as far as the server's windows permit."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, WINDOW = 0, 1, 3, 4, 6, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
INITIAL_WINDOW, FRAME_MAX = 65_535, 16_384
INITIAL_WINDOW_SIZE = 4
PREFIX = 5
"""Bytes before a message: whether it is compressed, and its length."""


class PartialMessage:
    """One RPC on a connection of its own. `sent`: bytes that the server's windows let through;
    `is_ended`: set once the server has ended it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._unsent = 0
        self._windows = [INITIAL_WINDOW, INITIAL_WINDOW]
        self._initial = INITIAL_WINDOW
        self.sent = 0
        self.is_ended = asyncio.Event()

    def begin(self, path: str, token: str, length: int, sent: int) -> None:
        """Begin a message of `length` bytes, of which `sent` are to be sent. `token`: "" for no
        key."""
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "localhost",
            "content-type": "application/grpc",
            "te": "trailers",
        }
        if token:
            fields["authorization"] = f"Bearer {token}"
        block = b"".join(b"\0" + _text(name) + _text(value) for name, value in fields.items())
        self._writer.write(PREFACE + _frame(SETTINGS, 0, 0, b""))
        self._writer.write(_frame(HEADERS, END_HEADERS, 1, block))
        self._writer.write(_frame(DATA, 0, 1, b"\0" + struct.pack(">I", length)))
        self._windows = [one - PREFIX for one in self._windows]
        self._unsent = sent

    async def run(self) -> None:
        """Send what the windows permit until the connection ends."""
        while True:
            head = await self._reader.readexactly(9)
            data = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
            self._take(head[3], head[4], int.from_bytes(head[5:], "big"), data)
            # Not before the server's settings, which lower the window of a stream.
            while self._unsent and min(self._windows) > 0:
                count = min(self._unsent, *self._windows, FRAME_MAX)
                self._writer.write(_frame(DATA, 0, 1, bytes(count)))
                self._windows = [one - count for one in self._windows]
                self._unsent -= count
                self.sent += count

    def _take(self, kind: int, flags: int, stream: int, data: bytes) -> None:
        if kind == WINDOW:
            self._windows[stream] += int.from_bytes(data, "big")
        elif kind == PING and not flags & ACK:
            self._writer.write(_frame(PING, ACK, 0, data))
        elif kind == SETTINGS and not flags & ACK:
            for at in range(0, len(data), 6):
                name, value = struct.unpack(">HI", data[at : at + 6])
                if name == INITIAL_WINDOW_SIZE:
                    self._windows[1] += value - self._initial
                    self._initial = value
            self._writer.write(_frame(SETTINGS, ACK, 0, b""))
        elif kind == RESET or (kind == HEADERS and flags & END_STREAM):
            self._unsent = 0
            self.is_ended.set()


@asynccontextmanager
async def partial_message(
    port: int, path: str, token: str, length: int, sent: int
) -> AsyncIterator[PartialMessage]:
    """Begin a message as `PartialMessage.begin`, and send meanwhile."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    one = PartialMessage(reader, writer)
    one.begin(path, token, length, sent)
    running = asyncio.create_task(one.run())
    try:
        yield one
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        writer.close()
        await writer.wait_closed()


def _frame(kind: int, flags: int, stream: int, data: bytes) -> bytes:
    """Return one frame (RFC 9113 section 4.1)."""
    return len(data).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + data


def _text(text: str) -> bytes:
    """Return a string of at most 126 bytes (RFC 7541 section 5.2)."""
    return bytes([len(text)]) + text.encode()
