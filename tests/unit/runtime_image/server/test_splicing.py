"""Splices: bytes between the channels of gateways on other machines and servers."""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
import time

from runtime_image.replica.loop import Loop
from runtime_image.server.splicing import Splice
from tests.support.blocking import in_loop, turning

ROUNDS = 20
"""Answers after which a kernel acknowledges late, since it expects bytes of its own to send."""


def unacknowledged(sock: socket.socket) -> int:
    """Return how many bytes of a TCP socket were sent and not yet acknowledged: tcp(7),
    SIOCOUTQ."""
    return int(struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)))[0])


def test_the_head_of_an_answer_is_acknowledged_at_once() -> None:
    """A server whose kernel keeps the body back until then sends it without a delay."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    gateway, channel = socket.socketpair()
    loop = Loop(time.monotonic)
    for sock in (ours, channel):
        sock.setblocking(False)
    with server, gateway, turning(loop):
        splice = in_loop(loop, lambda: Splice(loop, channel, ours))
        waiting = []
        for _ in range(ROUNDS):
            gateway.sendall(b"GET")
            assert server.recv(3) == b"GET"
            server.sendall(b"head")
            assert gateway.recv(4) == b"head"
            # The relay acknowledges before it passes the bytes on.
            waiting.append(unacknowledged(server))
        in_loop(loop, splice.close)

    assert waiting == [0] * ROUNDS
