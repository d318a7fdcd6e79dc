"""Client connections: their number, and detection of clients that no longer read.

`ConnectionLimit` bounds the connections, so that descriptors remain for everything else.

The last segment of a TCP connection (FIN) says that the sender sends no more data, not whether it
still reads (RFC 9293 section 3.6). A client that has closed its socket answers further bytes with a
reset. So `may_be_reading` sends "100 Continue", which clients ignore if they did not request it
(RFC 9110 section 15.2.1), and polls the connection again.
"""

from __future__ import annotations

import asyncio
import os
import resource
import select
import socket
from collections.abc import Callable, Collection
from typing import Final, Protocol

import structlog

from gateway.http.bodies import CONTINUE

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


def may_be_reading(transport: asyncio.Transport) -> bool:
    """Return whether the client may still read an answer after it closed its sending side.

    For a client on the same machine the result is correct at once. For others the reset takes a
    round trip, and `is_gone` returns True later.
    """
    if transport.is_closing() or is_gone(transport):
        return False
    sock = transport.get_extra_info("socket")
    if sock.family == socket.AF_UNIX:
        return True  # poll distinguishes both cases for Unix sockets
    written = 0
    if not transport.get_write_buffer_size():
        try:
            written = os.write(sock.fileno(), CONTINUE)
        except BlockingIOError:
            written = 0
        except OSError:
            return False
    if written < len(CONTINUE):
        transport.write(CONTINUE[written:])
    return not is_gone(transport)
