"""The asyncio end of a link: the gateway's data links, the manager's control links."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final, NamedTuple, cast

import structlog

from runtime_image.contract.link import BODY_MAX
from runtime_image.link.frames import Frame, FrameReader, LinkError, Piece

log = structlog.get_logger()

WRITE_BUFFER_MAX = 512 * 1024 * 1024
"""Bytes not yet read by the other side above which the link is aborted."""
CLOSED: Final = "closed by the other side"
"""Reason passed to `on_lost` unless the link was aborted."""


class Greeting(NamedTuple):
    """First message of a link: a packed frame, and descriptors to pass with it."""

    frame: list[Piece]
    descriptors: list[int]


class FrameStream(asyncio.BufferedProtocol):
    """Frames over one socket; all frames sent within one loop turn are written together.

    `on_frame` and `on_lost` are plain callbacks. A LinkError raised by `on_frame` ends the link.
    Any other exception is logged and does not, because other requests share the link.
    """

    def __init__(
        self,
        on_frame: Callable[[Frame], None],
        on_lost: Callable[[str], None],
        name: str,
        body_max: int = BODY_MAX,
    ) -> None:
        """`body_max` is the max bytes of a received body."""
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._name = name
        self._reader = FrameReader(body_max)
        self._transport: asyncio.Transport | None = None
        self._out: list[Piece] = []
        self._loop = asyncio.get_running_loop()
        self._reason = CLOSED

    @property
    def is_open(self) -> bool:
        """Whether frames can still be sent."""
        return self._transport is not None

    def send(self, pieces: list[Piece]) -> None:
        """Queue a packed frame for this turn's write. Dropped silently if the link is lost;
        `on_lost` reports the loss."""
        if self._transport is None:
            return
        if not self._out:
            self._loop.call_soon(self.flush)
        self._out += pieces

    def flush(self) -> None:
        """Write the frames of this turn."""
        out, self._out = self._out, []
        if self._transport is None or not out:
            return
        if self._transport.get_write_buffer_size() > WRITE_BUFFER_MAX:
            self.abort("the other side reads too slowly")
        elif len(out) == 1:
            self._transport.write(out[0])
        else:
            self._transport.writelines(out)

    def abort(self, reason: str) -> None:
        """Close the link at once; `on_lost` is then called with this reason."""
        self._reason = reason
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio callback: the socket is connected."""
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the protocol's signature
        """asyncio callback: the buffer to receive into."""
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """asyncio callback: bytes were received."""
        try:
            frames = self._reader.received(nbytes)
            for frame in frames:
                self._deliver(frame)
        except LinkError as error:
            log.warning("a link broke the protocol", link=self._name, reason=str(error))
            self.abort(str(error))

    def _deliver(self, frame: Frame) -> None:
        try:
            self._on_frame(frame)
        except LinkError:
            raise
        except Exception:  # one receiver's error must not close a link that others share
            log.exception("a frame's receiver failed", link=self._name, kind=frame.kind.name)

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio callback: the socket is closed."""
        if self._transport is None:
            return
        self._transport = None
        self._out.clear()
        self._on_lost(str(exc) if exc else self._reason)


async def connect(stream: FrameStream, path: str, greeting: Greeting | None = None) -> None:
    """Connect to the Unix socket at `path`. Raises OSError without a listener.

    `greeting` is sent before the transport owns the socket, because transports drop descriptors.
    Frames that answer it may arrive before this returns.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        # Unix sockets connect at once or fail: EAGAIN (full backlog) is an OSError too.
        sock.connect(path)
        if greeting is not None:
            # These few bytes always fit the buffer of a new socket.
            socket.send_fds(sock, [b"".join(greeting.frame)], greeting.descriptors)
    except BaseException:
        sock.close()
        raise
    await adopt(sock, stream)


async def adopt(sock: socket.socket, protocol: asyncio.BaseProtocol) -> None:
    """Make a transport for a connected, non-blocking stream socket. It owns the socket from the
    first step on: also if this fails or is cancelled, the socket is closed once. Raises OSError.

    Not `create_connection(sock=)`: uvloop attaches the socket object to the transport at the end of
    that call. Of a transport that was aborted in `connection_made` the descriptor is closed by
    then, and the socket object closes the number once more, when it may be that of another file.
    """
    try:
        await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, sock)
    except OSError:
        sock.close()
        raise
