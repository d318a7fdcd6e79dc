"""How a machine or network that is gone is noticed on a TCP connection."""

from __future__ import annotations

import socket
from typing import Final

KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
"""Options of its socket. A peer whose machine or network is gone is noticed within 20 s while
nothing waits to be sent to it; while something does, by the time limit of each exchange, and on a
control link by PING. Not by TCP_USER_TIMEOUT: that ends connections whose peer is there and does
not read for a while."""
