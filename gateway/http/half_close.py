"""Clients that have sent all they will send: some wait for the answer, others are gone.

Both look alike: the last segment of a TCP connection says "no more comes", not whether its sender
still reads (RFC 9293 section 3.6). A client that is gone answers the next bytes with a reset. So a
client is sent "100 Continue", which every client skips that did not ask for it (RFC 9110 section
15.2.1), and the connection is looked at again.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket

from gateway.http.bodies import CONTINUE


def is_gone(transport: asyncio.Transport) -> bool:
    """Whether the connection was reset, or closed in both directions. It does not wait."""
    poll = select.poll()
    try:
        poll.register(transport.get_extra_info("socket").fileno(), 0)
    except (OSError, ValueError):
        return True
    return bool(poll.poll(0))


def may_be_reading(transport: asyncio.Transport) -> bool:
    """Whether the client may still read an answer, after "no more comes" was received.

    On the same machine the answer is right at once. Elsewhere the reset takes a round trip, and
    `is_gone` tells it later.
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
