"""The greeting of a replica on another host, and channels that begin with it.

A channel is one stream of bytes each way to a replica: over SSH one of many on a connection, over
TLS a connection of its own. sshd follows symbolic links, so a replica can make the path of its
socket lead to any socket that the login may open, the container engine's included. Hence nothing is
sent on a channel before the other end has proven by the greeting, a secret of the manager, that it
is the replica.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from typing import Final, Protocol

from registry.exchange import HostRoute
from runtime_image.contract.link import HEADER, Kind
from runtime_image.link.frames import Frame, LinkError
from runtime_image.link.stream import CLOSED, FrameStream

DIAL_S: Final = 10.0
"""Max seconds to open a channel: more than a silent connection needs to count as broken (8 s)."""
GREETING_S: Final = 5.0
"""Max seconds from the open channel to the end of the greeting."""


class Connection(Protocol):
    """What opens channels to the replicas of one host.

    Over SSH that is one connection, which is kept up and carries all channels. Over TLS every
    channel is a connection of its own, and this is what they have in common.
    """

    @property
    def is_up(self) -> bool:
        """Whether a dial is possible now."""

    @property
    def rtt_s(self) -> float:
        """Round trip time in seconds, as last measured; 0 if unknown."""

    def open(self) -> None:
        """Begin, and connect again after each loss."""

    def renew(self, way: HostRoute) -> bool:
        """Go on with the way that the manager lists now, without a cut: dials use it from now on.
        False if a new connection is needed for it; this one is then closed."""

    async def close(self) -> None:
        """Close the connection and all its channels."""

    async def wait_up(self, timeout_s: float) -> None:
        """Return once a dial is possible. Raises OSError with the reason if it is not in time."""

    async def dial(self, path: str, protocol: asyncio.BaseProtocol) -> asyncio.Transport:
        """Open a channel to the replica at `path`: that of a Unix socket on the host, or an address
        of TLS. `protocol` is a Protocol or a BufferedProtocol, whose `connection_lost` gets None
        if, and only if, this side has closed the channel or all that the other side sent before it
        did was delivered. Raises OSError, limited in time."""


class Greeting:
    """The expected first frame: WELCOME with the greeting as its body.

    `buffer` never has room for more than that frame, so that a peer that sends more is slowed by
    back-pressure.
    """

    def __init__(self, greeting: str) -> None:
        """Raises ConnectionRefusedError without a greeting: the manager has published none."""
        if not greeting:
            raise ConnectionRefusedError("the manager has published no greeting")
        self._expected = greeting.encode()
        self._received = bytearray(HEADER.size + len(self._expected))
        self._filled = 0

    @property
    def is_complete(self) -> bool:
        """Whether the frame has arrived and is the expected one."""
        return self._filled == len(self._received)

    def buffer(self) -> memoryview:
        """Return the buffer for the next bytes."""
        return memoryview(self._received)[self._filled :]

    def received(self, count: int) -> None:
        """Process `count` bytes written to `buffer()`. Raises LinkError for another frame."""
        self._filled += count
        if self._filled < HEADER.size:
            return
        body_len, _, kind, _, meta_len, _ = HEADER.unpack_from(self._received)
        if (body_len, kind, meta_len) != (len(self._expected), Kind.WELCOME, 0):
            raise LinkError("the socket of the replica does not begin with a greeting")
        body = bytes(self._received[HEADER.size :])
        if self.is_complete and not hmac.compare_digest(body, self._expected):
            raise LinkError("the greeting is not that of the replica")

    def feed(self, data: bytes) -> bytes:
        """Process received bytes; return those after the frame. Raises LinkError."""
        room = self.buffer()
        count = min(len(room), len(data))
        room[:count] = data[:count]
        self.received(count)
        return data[count:]


class GreetedStream(FrameStream):
    """Frames over one channel to a replica on another host, after its greeting.

    `is_broken`, once it has ended: not all that the replica sent has arrived, because the
    connection to the host broke or this side has ended the channel. `is_aborted`: this side has
    ended it. `is_large`: it is for large bodies.
    """

    def __init__(
        self,
        greeting: str,
        on_frame: Callable[[GreetedStream, Frame], None],
        on_ended: Callable[[GreetedStream, str], None],
        name: str,
        body_max: int,
    ) -> None:
        """Create the stream; see `FrameStream`. `on_ended` is called only after the greeting."""
        super().__init__(
            lambda frame: on_frame(self, frame),
            lambda reason: on_ended(self, reason),
            name,
            body_max,
        )
        self._greeting = Greeting(greeting)
        self._greeted = asyncio.get_running_loop().create_future()
        self.is_broken = self.is_aborted = False
        self.is_large = False

    async def open(self, connection: Connection, path: str) -> None:
        """Open the channel and wait for the greeting. Raises OSError."""
        try:
            async with asyncio.timeout(DIAL_S):
                await connection.wait_up(DIAL_S)
                await connection.dial(path, self)
            async with asyncio.timeout(GREETING_S):
                await self._greeted
        except BaseException as error:
            if not self._greeted.done():
                self._greeted.cancel()
            elif not self._greeted.cancelled():
                self._greeted.exception()  # retrieved: otherwise asyncio logs it
            self.abort("it was not opened")
            if isinstance(error, TimeoutError):
                raise TimeoutError("no channel, or no greeting, in time") from error
            raise

    def abort(self, reason: str) -> None:
        """Close the channel at once."""
        self.is_aborted = True
        super().abort(reason)

    def get_buffer(self, sizehint: int) -> memoryview:
        """asyncio callback: the buffer to receive into."""
        return (
            super().get_buffer(sizehint) if self._greeting.is_complete else self._greeting.buffer()
        )

    def buffer_updated(self, nbytes: int) -> None:
        """asyncio callback: bytes were received."""
        if self._greeting.is_complete:
            super().buffer_updated(nbytes)
            return
        try:
            self._greeting.received(nbytes)
        except LinkError as error:
            self._refuse(str(error))
            return
        if self._greeting.is_complete and not self._greeted.done():
            self._greeted.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio callback: the channel is closed."""
        self.is_broken = exc is not None or self.is_aborted
        if not self._greeted.done():
            self._refuse(f"the channel ended before the greeting: {exc or CLOSED}")
        if self._greeted.cancelled() or self._greeted.exception() is not None:
            self._transport = None
            return
        super().connection_lost(exc)

    def _refuse(self, reason: str) -> None:
        """Fail `open`."""
        if not self._greeted.done():
            self._greeted.set_exception(ConnectionRefusedError(reason))
        self.abort(reason)
