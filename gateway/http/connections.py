"""Client connections: their number, and detection of clients that no longer read.

`ConnectionLimit` bounds the connections, so that descriptors remain for everything else.

The last segment of a TCP connection (FIN) says that the sender sends no more data, not whether it
still reads (RFC 9293 section 3.6). A client that has closed its socket answers further bytes with a
reset. So `begin_answer` sends the first byte of the answer, which every answer begins with, and
polls the connection again.
"""

from __future__ import annotations

import asyncio
import os
import resource
import select
import socket
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, Protocol, cast

import structlog

log = structlog.get_logger()

KEPT_BACK: Final = 64
"""Descriptors reserved for replicas, logs and files, besides those in use when the limit is
computed."""
EVICTED_SHARE: Final = 32
"""One eviction closes 1/N of all connections, because it sorts them all to find the quietest."""
AGAIN_S: Final = 0.1
"""Seconds for which new connections are refused at once after an eviction found none idle."""
LOG_S: Final = 60.0
"""Seconds between two log lines about refused connections."""
FIRST: Final = b"H"
"""First byte of every answer, whatever its status and version (RFC 9112 section 4)."""


class ClientConnection(Protocol):
    """One client connection, as seen by the limit."""

    @property
    def is_idle(self) -> bool:
        """Whether no request of this connection is being read or answered, and its client has taken
        every answer as far as this process knows."""

    @property
    def quiet_s(self) -> int:
        """Seconds since the last received byte."""

    @property
    def opened_s(self) -> float:
        """When it was opened, in seconds of any clock."""

    def abort(self) -> None:
        """Close the connection at once, discarding unsent answers."""


class ConnectionLimit:
    """Limits the connections of this process to `most`. `clock` returns seconds."""

    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        self._most = most
        self._clock = clock
        self._groups: list[Collection[ClientConnection]] = []
        self._full_until_s = 0.0
        self._logged_s = -LOG_S
        self._refused = 0

    def track(self, group: Collection[ClientConnection]) -> None:
        """Count the connections in `group`, which its owner maintains."""
        self._groups.append(group)

    def admit(self, newcomer: ClientConnection) -> bool:
        """Return whether there is room for a new connection, which is already in a tracked group.

        Closes the quietest idle connections to make room.
        """
        if sum(map(len, self._groups)) <= self._most or self._evict(newcomer):
            return True
        self._refused += 1
        now = self._clock()
        if now - self._logged_s >= LOG_S:
            log.warning("connections are refused", count=self._refused, most=self._most)
            self._logged_s, self._refused = now, 0
        return False

    def _evict(self, newcomer: ClientConnection) -> bool:
        now = self._clock()
        if now < self._full_until_s:
            return False
        every = (one for group in self._groups for one in group)
        idle = [one for one in every if one is not newcomer and one.is_idle]
        if not idle:
            self._full_until_s = now + AGAIN_S
            return False
        idle.sort(key=lambda one: (-one.quiet_s, one.opened_s))
        for one in idle[: max(1, self._most // EVICTED_SHARE)]:
            one.abort()
        return True


def connections_max(wanted: int) -> int:
    """Return the number of connections that this process may have, at least 1.

    That is `wanted`, or half of what the limit of descriptors (RLIMIT_NOFILE) leaves besides those
    in use and those reserved. The other half is for connections to functions' servers: an exchange
    has one of each.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    kept = max(KEPT_BACK, soft // 8) + len(os.listdir("/proc/self/fd"))
    most = max(1, min(wanted, (soft - kept) // 2))
    if most < wanted:
        log.info("connections are bounded by descriptors", most=most, descriptors=soft, kept=kept)
    return most


def peer_of(transport: asyncio.BaseTransport | None) -> bytes:
    """Return the IP address of a connection's client, b"" if it has none."""
    name = None if transport is None else transport.get_extra_info("peername")
    return str(name[0]).encode() if isinstance(name, tuple) and name else b""


def is_gone(transport: asyncio.Transport) -> bool:
    """Return whether the connection was reset, or closed in both directions. Does not block."""
    poll = select.poll()
    try:
        poll.register(transport.get_extra_info("socket").fileno(), 0)
    except (OSError, ValueError):
        return True
    return bool(poll.poll(0))


def begin_answer(transport: asyncio.Transport) -> asyncio.Transport | None:
    """Return what to write the answer to after the client closed its sending side, None if the
    client is gone. Nothing of the answer may have been written before.

    For a client on the same machine the result is correct at once. For others the reset takes a
    round trip, and `is_gone` returns True later.
    """
    if transport.is_closing() or is_gone(transport):
        return None
    sock = transport.get_extra_info("socket")
    # Poll distinguishes both cases for Unix sockets. Unsent bytes cause the reset by themselves.
    if (
        isinstance(transport, BegunAnswer)
        or sock.family == socket.AF_UNIX
        or transport.get_write_buffer_size()
    ):
        return transport
    try:
        os.write(sock.fileno(), FIRST)
    except BlockingIOError:
        return transport
    except OSError:
        return None
    return None if is_gone(transport) else cast("asyncio.Transport", BegunAnswer(transport))


class BegunAnswer:
    """A transport for an answer whose first byte is sent. It is used to the connection's end."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._is_next = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write bytes (asyncio): of the answer's first ones, what is not sent yet."""
        if self._is_next and data:
            self._is_next, data = False, memoryview(data)[len(FIRST) :]
        self._transport.write(data)

    def writelines(self, pieces: Iterable[bytes | bytearray | memoryview]) -> None:
        """Write pieces of bytes (asyncio)."""
        for piece in pieces:
            self.write(piece)
