"""Splices: bytes between the channels of gateways on other machines and servers."""

from __future__ import annotations

import fcntl
import select
import socket
import struct
import termios
import threading
import time

from runtime_image.contract.enrolment import GATEWAY_NAME
from runtime_image.replica.loop import Loop
from runtime_image.server.progress import Progress
from runtime_image.server.slots import Key
from runtime_image.server.splicing import Splice, Splicing
from tests.support.blocking import in_loop, turning
from tests.support.small_authority import SmallAuthority

NAME = "aaaa0001.replica.fngate"
SIZE = 20_000_000
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


def connected() -> tuple[socket.socket, socket.socket]:
    """Return a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    for sock in (one, other):
        sock.settimeout(30)
    return one, other


def test_the_rest_of_a_refused_request_is_dropped() -> None:
    """A server that answers early resets its connection; its answer arrives, while the request that
    it does not read is sent to its end."""
    gateway, channel = connected()
    ours, server = connected()
    loop = Loop(time.monotonic)
    for sock in (ours, channel):
        sock.setblocking(False)
    with gateway, turning(loop):
        splice = in_loop(loop, lambda: Splice(loop, channel, ours))
        server.sendall(b"no")
        server.shutdown(socket.SHUT_WR)
        assert gateway.recv(10) == b"no"
        assert gateway.recv(10) == b""
        server.close()
        gateway.sendall(bytes(20_000_000))
        gateway.shutdown(socket.SHUT_WR)

        while not in_loop(loop, lambda: splice._is_over):
            pass
        assert gateway.recv(10) == b""
        in_loop(loop, splice.close)


def test_progress_is_read_until_the_gateway_ends_the_exchange() -> None:
    """Both directions are over before the gateway says so: meanwhile the server's connection can
    still be read, and nothing that it has sent goes uncounted."""
    gateway, channel = connected()
    ours, server = connected()
    loop, key, progress = Loop(time.monotonic), Key(1, 7), Progress()
    for sock in (ours, channel):
        sock.setblocking(False)
    splicing = Splicing(loop, 1, 1, opened=print, passed=print, guard=None)
    with gateway, server, turning(loop):
        in_loop(loop, lambda: splicing.put(key, ours))
        in_loop(loop, lambda: splicing.connect(key.id, channel))
        server.sendall(b"answer")
        server.shutdown(socket.SHUT_WR)
        gateway.shutdown(socket.SHUT_WR)
        assert server.recv(1) == b""
        assert b"".join(iter(lambda: gateway.recv(10), b"")) == b"answer"
        while not in_loop(loop, lambda: splicing._splices[key]._is_over):
            pass

        there = in_loop(loop, lambda: splicing.socket(key))
        assert there is not None
        assert not in_loop(loop, lambda: progress.read([(key, there)]))
        in_loop(loop, lambda: progress.ended(key, splicing.socket(key)))
        in_loop(loop, lambda: splicing.shut(key))

    assert progress.given >= len(b"answer")
    assert there.fileno() < 0


def test_the_end_of_an_answer_waits_for_its_reader() -> None:
    """Over TLS the end of a stream takes room, too: a reader that is slow gets it last."""
    authority = SmallAuthority()
    plain, accepted = connected()
    gateway = authority.credentials(GATEWAY_NAME).client(plain, NAME)
    channel = authority.credentials(NAME).server(accepted)
    shaking = threading.Thread(target=channel.complete)
    shaking.start()
    gateway.complete()
    shaking.join()
    ours, server = connected()
    loop = Loop(time.monotonic)
    for sock in (ours, channel):
        sock.setblocking(False)
    with gateway, server, turning(loop):
        splice = in_loop(loop, lambda: Splice(loop, channel, ours))
        sending = threading.Thread(
            target=lambda: (server.sendall(bytes(SIZE)), server.shutdown(socket.SHUT_WR))
        )
        sending.start()
        while select.select([], [server], [], 0.1)[1]:  # until nothing moves
            pass
        size = 0
        while count := len(gateway.recv(100_000)):
            size += count
        sending.join()
        in_loop(loop, splice.close)

    assert size == SIZE
