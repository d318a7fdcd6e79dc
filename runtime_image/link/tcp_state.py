"""What the kernel knows of the other end of a TCP connection (tcp(7), TCP_INFO)."""

from __future__ import annotations

import socket
import struct
from typing import Final

_INFO: Final = struct.Struct("8B24I")
"""Beginning of `struct tcp_info` (linux/tcp.h)."""
_RETRANSMITS, _PROBES, _LAST_ACK_MS, _RTT_US = 2, 3, 20, 23
"""Fields of it."""


def is_silent(sock: socket.socket, silent_s: float) -> bool:
    """Whether a peer owes an acknowledgement, and no packet of it has come for `silent_s`.

    TCP alone sends again for 15 minutes, and its TCP_USER_TIMEOUT would also end a connection to a
    peer that only reads slowly. Such a peer is asked by a probe at growing intervals, and owes an
    answer for a round trip: it is gone if two looks find it silent, with more than a round trip
    between them.
    """
    try:
        info = _tcp_info(sock)
    except OSError:
        return False  # it is being closed, or is no connection over TCP
    owes = info[_RETRANSMITS] or info[_PROBES]
    return bool(owes) and info[_LAST_ACK_MS] >= silent_s * 1e3


def rtt_of(sock: socket.socket) -> float:
    """Return the round trip time that the kernel has measured, in seconds. Raises OSError."""
    return _tcp_info(sock)[_RTT_US] / 1e6


def _tcp_info(sock: socket.socket) -> tuple[int, ...]:
    packed = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
    return _INFO.unpack(packed)
