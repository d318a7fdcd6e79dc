"""What the kernel knows of the other end of a TCP connection."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from select import select

import pytest

from runtime_image.link.tcp_state import is_silent, rtt_of
from tests.support.tls_front import drop_packets

Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """A TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    with one, other:
        yield one, other


def test_a_peer_that_acknowledges_is_not_silent(ends: Ends) -> None:
    """It owes nothing, whether it reads or not."""
    one, _ = ends
    one.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            one.send(bytes(100_000))

    assert not is_silent(one, 1.0)
    assert 0 < rtt_of(one) < 1


def test_a_peer_that_owes_an_acknowledgement_is_silent_after_a_time(ends: Ends) -> None:
    """Not before: a packet may be lost."""
    one, other = ends
    drop_packets(other)
    one.sendall(b"x")
    assert not is_silent(one, 30.0)

    while not is_silent(one, 0.1):
        select([one], [], [], 0.01)

    assert not is_silent(one, 30.0)


def test_what_is_no_connection_over_tcp_is_not_silent() -> None:
    """Such as a Unix socket, or one that is closed."""
    one, other = socket.socketpair()
    with other:
        assert not is_silent(one, 0.0)
        one.close()
        assert not is_silent(one, 0.0)
