"""The side channel of a sidecar's link: connected sockets arrive as descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from typing import Final

import structlog

from runtime_image.contract.link import SOCKET_NOTICE
from runtime_image.link.frames import LinkError
from runtime_image.link.shared_memory import descriptors_of

log = structlog.get_logger()

READS_MAX: Final = 64
"""Max messages read in one turn of the event loop; the rest are read in the next one."""
SPACE: Final = socket.CMSG_SPACE(2 * 4)
"""Room for two descriptors, so that a message with more than one is detected."""
HELLO_MAX: Final = 4096
"""Max bytes of a HELLO's body, which is not used."""


class SocketChannel:
    """This process's end of one side channel. Event loop thread only.

    Created before the link. Every message is a SOCKET_NOTICE with exactly one descriptor.
    """

    def __init__(
        self,
        replica: str,
        on_descriptor: Callable[[int, int | None], None],
        on_ended: Callable[[str], None],
    ) -> None:
        """Create the socket pair. Raises OSError if there are no descriptors left.

        `on_descriptor(id, descriptor)` owns the descriptor, and may raise LinkError. It gets None
        if the system had no room for one more. `on_ended(reason)` is called once, when the sidecar
        closes its end or violates the protocol.
        """
        self._replica = replica
        self._on_descriptor = on_descriptor
        self._on_ended = on_ended
        self._loop = asyncio.get_running_loop()
        self._own, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._own.setblocking(False)
        self._is_reading = False
        self._is_open = True

    @property
    def descriptors(self) -> list[int]:
        """The sidecar's end, to be sent with HELLO."""
        return [self._theirs.fileno()]

    def hello_sent(self) -> None:
        """Close this process's copy of the sidecar's end."""
        self._theirs.close()

    def on_hello(self, body: bytes | bytearray) -> None:
        """Begin to read. Raises LinkError for a malformed HELLO."""
        if len(body) > HELLO_MAX:
            raise LinkError(f"malformed HELLO: {len(body)} bytes")
        self._is_reading = True
        self._loop.add_reader(self._own, self._on_readable)

    def close(self) -> None:
        """Close the channel; unread descriptors are closed by the system."""
        if not self._is_open:
            return
        self._is_open = False
        if self._is_reading:
            self._loop.remove_reader(self._own)
        self._theirs.close()
        with contextlib.suppress(OSError):
            self._own.shutdown(socket.SHUT_RDWR)
        self._own.close()

    def _on_readable(self) -> None:
        try:
            for _ in range(READS_MAX):
                if not self._is_open or not self._receive():
                    return
        except EOFError:
            self._end("the side channel has ended")
        except LinkError as error:
            log.warning(
                "a link broke the protocol", link=f"side {self._replica}", reason=str(error)
            )
            self._end(str(error))

    def _end(self, reason: str) -> None:
        self.close()
        self._on_ended(reason)

    def _receive(self) -> bool:
        """Read one message; return False if none has arrived. Raises EOFError, LinkError."""
        try:
            data, ancillary, flags, _ = self._own.recvmsg(
                SOCKET_NOTICE.size, SPACE, socket.MSG_CMSG_CLOEXEC
            )
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            raise EOFError(str(error)) from error
        descriptors = descriptors_of(ancillary)
        if not data and not descriptors:
            raise EOFError("the side channel has ended")
        is_cut = flags & socket.MSG_CTRUNC != 0
        is_whole = len(data) == SOCKET_NOTICE.size and not flags & socket.MSG_TRUNC
        if is_whole and len(descriptors) + is_cut == 1:
            # Cut without any descriptor: this process has no room for one more (recvmsg(2)).
            self._on_descriptor(
                SOCKET_NOTICE.unpack(data)[0], descriptors[0] if descriptors else None
            )
            return True
        for descriptor in descriptors:
            os.close(descriptor)
        raise LinkError(
            f"expected the notice of one socket, got {len(data)} bytes with"
            f" {len(descriptors)} descriptors{' or more' if is_cut else ''}"
        )
