"""The connection between the supervisor and one gateway process: messages over a socket pair.

Each message is its length (u32, little-endian) and so many bytes. Nobody else has either end of
the pair, so its end tells at once that the other process is gone.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from struct import Struct
from typing import Final, cast

import structlog

log = structlog.get_logger()

MESSAGE_MAX: Final = 64 * 2**20
"""Bytes of one message."""
BEHIND_MAX: Final = 256 * 2**20
"""Bytes that the other side may leave unread; at a start everything deployed is among them."""
CLOSED: Final = "closed by the other side"
_LENGTH: Final = Struct("<I")


class Channel(asyncio.Protocol):
    """One end. `on_message` has each message in order; whatever it raises ends the channel, since
    both sides would no longer know the same. `on_lost(reason)` is called once."""

    def __init__(
        self,
        on_message: Callable[[bytes], None],
        on_lost: Callable[[str], None],
        *,
        message_max: int = MESSAGE_MAX,
        behind_max: int = BEHIND_MAX,
    ) -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._message_max = message_max
        self._behind_max = behind_max
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._reason = CLOSED

    async def open(self, sock: socket.socket) -> None:
        """Speak over one end of a socket pair, which the channel owns from now on. Messages may
        come before this returns."""
        sock.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=sock)

    @property
    def is_open(self) -> bool:
        """Whether messages can still be sent."""
        return self._transport is not None

    def send(self, message: bytes) -> None:
        """Send a message; dropped once the channel is lost, which its owner is told."""
        if self._transport is None:
            return
        if len(message) > self._message_max:
            self.abort(f"a message of {len(message)} bytes is over the limit")
        elif self._transport.get_write_buffer_size() > self._behind_max:
            self.abort("the other side has fallen behind")
        else:
            self._transport.write(_LENGTH.pack(len(message)) + message)

    def abort(self, reason: str) -> None:
        """Give the channel up at once; `on_lost` follows with this reason."""
        self._reason = reason
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """End the channel when what was sent is written."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's: the socket is ours."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """asyncio's: bytes came."""
        self._received += data
        try:
            for message in self._cut():
                self._on_message(message)
        except Exception as error:  # going on would be guessing what the other side knows
            log.exception("a message could not be taken")
            self.abort(f"{type(error).__name__}: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio's: the socket is gone."""
        if self._transport is None:
            return
        self._transport = None
        self._on_lost(str(exc) if exc else self._reason)

    def _cut(self) -> list[bytes]:
        """The whole messages among what came. Raises ValueError on one over the limit."""
        messages = []
        at = 0
        while len(self._received) - at >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._received, at)
            if size > self._message_max:
                raise ValueError(f"a message of {size} bytes is over the limit")
            end = at + _LENGTH.size + size
            if len(self._received) < end:
                break
            messages.append(bytes(self._received[at + _LENGTH.size : end]))
            at = end
        del self._received[:at]
        return messages
