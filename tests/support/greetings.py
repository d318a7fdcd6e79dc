"""What a replica says first, and the two ends it says it over."""

from __future__ import annotations

import socket

from runtime_image.contract.control import Hello
from runtime_image.contract.link import VERSION

HELLO: Hello = {
    "token": "secret",
    "version": VERSION,
    "pid": 7,
    "features": [],
    "bound": "default/digits@1",
    "phases": {"start": 1.5},
}
Pair = tuple[socket.socket, socket.socket]
"""The replica's blocking end and the manager's."""
