"""Side channels of links: what both kinds have in common, and that of a sidecar's link, on which
connected sockets arrive as descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final, Protocol

import structlog

from registry.exchange import ReplicaEndpoint
from runtime_image.contract.link import SOCKET_NOTICE
from runtime_image.link.descriptors import SIDE_CLOSED, TWO, receive_message
from runtime_image.link.frames import LinkError, Piece

log = structlog.get_logger()

READS_MAX: Final = 64
"""Max messages read in one turn of the event loop; the rest are read in the next one."""
HELLO_MAX: Final = 4096
"""Max bytes of a HELLO's body."""


class Stream(Protocol):
    """The frames of one link."""

    def send(self, pieces: list[Piece]) -> None:
        """Queue a packed frame; dropped silently if the link is lost."""

    def abort(self, reason: str) -> None:
        """Close the link at once."""


class Side(ABC):
    """This process's half of a link's side channel: of one without descriptors, unless it is
    overridden."""

    @property
    def descriptors(self) -> list[int]:
        """Descriptors that HELLO carries to the replica."""
        return []

    def hello_sent(self) -> None:  # noqa: B027 - not every side has to
        """Close this process's copies of `descriptors`."""

    def on_hello(self, body: bytes | bytearray) -> None:  # noqa: B027 - not every side reads it
        """Process the replica's HELLO. Raises LinkError."""

    def on_woken(self, endpoint: ReplicaEndpoint, now: float) -> None:  # noqa: B027 - models do not
        """Process that a replica whose link stayed has slept, and serves again since `now`."""

    def on_link_lost(self) -> None:
        """Release what the lost link held."""
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Close the side channel. Idempotent."""


class SideSocket(Side):
    """This process's end of a side channel that is a socket. Event loop thread only.

    Created before the link; read from the replica's HELLO on.
    """

    def __init__(self, replica: str, on_ended: Callable[[str], None]) -> None:
        """Create the socket pair. Raises OSError if there are no descriptors left.

        `on_ended(reason)` is called once, when the replica closes its end or violates the protocol.
        """
        self.replica = replica
        self._on_ended = on_ended
        self._loop = asyncio.get_running_loop()
        self._own, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._own.setblocking(False)
        self._is_reading = False
        self._is_open = True

    @property
    def descriptors(self) -> list[int]:
        """The replica's end, to be sent with HELLO."""
        return [self._theirs.fileno()]

    def hello_sent(self) -> None:
        """Close this process's copy of the replica's end, which HELLO has carried over."""
        self._theirs.close()

    def close(self) -> None:
        """Close the channel; unread descriptors are closed by the system. Idempotent."""
        if not self._is_open:
            return
        self._is_open = False
        if self._is_reading:
            self._loop.remove_reader(self._own)
        self._theirs.close()
        with contextlib.suppress(OSError):
            # Also ends it where a child process has inherited the socket.
            self._own.shutdown(socket.SHUT_RDWR)
        self._own.close()

    @abstractmethod
    def _read(self) -> None:
        """Read messages. Raises EOFError if the replica has closed its end, and LinkError."""

    def _begin(self) -> None:
        """Begin to read."""
        self._is_reading = True
        self._loop.add_reader(self._own, self._on_readable)

    def _on_readable(self) -> None:
        try:
            self._read()
        except EOFError:
            self._end(SIDE_CLOSED)
        except LinkError as error:
            log.warning("a link broke the protocol", link=f"side {self.replica}", reason=str(error))
            self._end(str(error))

    def _end(self, reason: str) -> None:
        self.close()
        self._on_ended(reason)


class SocketChannel(SideSocket):
    """Side channel of a sidecar: every message is a SOCKET_NOTICE with exactly one descriptor."""

    def __init__(
        self,
        replica: str,
        on_descriptor: Callable[[int, int | None], None],
        on_ended: Callable[[str], None],
    ) -> None:
        """See `SideSocket`. `on_descriptor(id, descriptor)` owns the descriptor, and may raise
        LinkError. It gets None if the system had no room for one more."""
        super().__init__(replica, on_ended)
        self._on_descriptor = on_descriptor

    def on_hello(self, body: bytes | bytearray) -> None:
        """Begin to read. Raises LinkError for a malformed HELLO, whose body is not used."""
        if len(body) > HELLO_MAX:
            raise LinkError(f"malformed HELLO: {len(body)} bytes")
        self._begin()

    def _read(self) -> None:
        for _ in range(READS_MAX):
            if not self._is_open or not self._receive():
                return

    def _receive(self) -> bool:
        """Read one message; return False if none has arrived. Raises EOFError, LinkError."""
        message = receive_message(self._own, SOCKET_NOTICE.size, TWO)
        if message is None:
            return False
        data, descriptors, is_long, lacks_descriptors = message
        is_whole = len(data) == SOCKET_NOTICE.size and not is_long
        if not is_whole or len(descriptors) + lacks_descriptors != 1:
            raise message.refuse("the notice of one socket")
        # Without any descriptor: this process may open no further one (recvmsg(2)).
        descriptor = descriptors[0] if descriptors else None
        self._on_descriptor(SOCKET_NOTICE.unpack(data)[0], descriptor)
        return True


def hello_member(body: bytes | bytearray, name: str) -> Any:
    """Return a member of the object in the body of a replica's HELLO, None if it has none. Raises
    LinkError for a body that is no JSON."""
    try:
        if len(body) > HELLO_MAX:
            raise ValueError(f"{len(body)} bytes")
        found = json.loads(body or b"{}")
    except (ValueError, RecursionError) as error:
        raise LinkError(f"malformed HELLO: {error}") from error
    return found.get(name) if isinstance(found, dict) else None
