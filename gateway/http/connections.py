"""Connections of clients: how many there may be, and whether a client still reads.

`ConnectionLimit` bounds them, so that descriptors are left for everything else.

The last segment of a TCP connection says that no more comes, not whether its sender still reads
(RFC 9293 section 3.6). A client that is gone answers the next bytes with a reset. So
`may_be_reading` sends "100 Continue", which a client skips that did not ask for it (RFC 9110
section 15.2.1), and polls the connection again.
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
"""Descriptors for replicas, logs and files, besides those in use when the limit is made."""
EVICTED_SHARE: Final = 32
"""The part of all connections that one eviction closes: to find the quietest, it sorts all."""
AGAIN_S: Final = 0.1
"""Seconds for which newcomers are refused at once after no connection was idle."""
LOG_S: Final = 60.0
"""Seconds between two log lines about refused connections."""


class ClientConnection(Protocol):
    """One connection of a client."""

    @property
    def is_idle(self) -> bool:
        """Whether no request of it is being read or answered."""

    @property
    def quiet_s(self) -> int:
        """Seconds since its last byte."""

    @property
    def opened_s(self) -> float:
        """When it was opened, in seconds of any clock."""

    def evict(self) -> None:
        """Close it; it is idle."""


class ConnectionLimit:
    """Bounds the connections of this process to `most`. `clock` gives seconds."""

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
        """Whether there is room for a connection that is in a tracked group already. The quietest
        idle connections are closed for it."""
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
            one.evict()
        return True


def connections_max(wanted: int) -> int:
    """The number of connections that this process may have: `wanted`, or what its limit of
    descriptors (RLIMIT_NOFILE) leaves beside those in use and those kept back. At least 1."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    kept = max(KEPT_BACK, soft // 8) + len(os.listdir("/proc/self/fd"))
    most = max(1, min(wanted, soft - kept))
    if most < wanted:
        log.info("connections are bounded by descriptors", most=most, descriptors=soft, kept=kept)
    return most


def is_gone(transport: asyncio.Transport) -> bool:
    """Whether the connection was reset, or closed in both directions. Does not block."""
    poll = select.poll()
    try:
        poll.register(transport.get_extra_info("socket").fileno(), 0)
    except (OSError, ValueError):
        return True
    return bool(poll.poll(0))


def may_be_reading(transport: asyncio.Transport) -> bool:
    """Whether the client may still read an answer after it has closed its sending side.

    On the same machine the result is right at once. Elsewhere the reset takes a round trip, and
    `is_gone` is true later.
    """
    if transport.is_closing() or is_gone(transport):
        return False
    sock = transport.get_extra_info("socket")
    if sock.family == socket.AF_UNIX:
        return True  # there the system tells both apart
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
