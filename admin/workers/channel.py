"""Connection between the supervisor and one gateway process: messages over a socket pair.

Each message is its length (u32, little-endian), then that many bytes. No other process has either
end of the pair, so the end of the stream shows at once that the other process has exited.
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
"""Max bytes of one message."""
BEHIND_MAX: Final = 256 * 2**20
"""Max bytes that the peer may leave unread; at a start they include all deployed functions."""
CLOSED: Final = "closed by the other side"
_LENGTH: Final = Struct("<I")


class Channel(asyncio.Protocol):
    """One end of the connection. `on_message` receives the messages in order; if it raises, the
    channel is aborted, as the two sides' states would differ. `on_lost(reason)` is called once."""

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
        """Connect to one end of a socket pair, which the channel then owns. Messages may arrive
        before this returns."""
        sock.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=sock)

    @property
    def is_open(self) -> bool:
        """True while messages can be sent."""
        return self._transport is not None

    def send(self, message: bytes) -> None:
        """Send a message. It is dropped if the channel is lost, which `on_lost` reports."""
        if self._transport is None:
            return
        if len(message) > self._message_max:
            self.abort(f"a message of {len(message)} bytes is over the limit")
        elif self._transport.get_write_buffer_size() > self._behind_max:
            self.abort("the other side has fallen behind")
        else:
            self._transport.write(_LENGTH.pack(len(message)) + message)

    def abort(self, reason: str) -> None:
        """Abort the channel; `on_lost` follows with this reason."""
        self._reason = reason
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close the channel after all sent messages are written."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport (asyncio callback)."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Dispatch the messages in the received bytes (asyncio callback)."""
        self._received += data
        try:
            for message in self._cut():
                self._on_message(message)
        except Exception as error:  # the two sides' states may differ now
            log.exception("a message could not be taken")
            self.abort(f"{type(error).__name__}: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end of the channel (asyncio callback)."""
        if self._transport is None:
            return
        self._transport = None
        self._on_lost(str(exc) if exc else self._reason)

    def _cut(self) -> list[bytes]:
        """Return the complete messages received so far. Raises ValueError on one over the limit."""
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
