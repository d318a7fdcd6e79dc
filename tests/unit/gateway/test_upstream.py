"""Tests of a connection that hands on what it received in steps."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator
from contextlib import closing

import pytest

from gateway.upstream import UpstreamConnection
from tests.support.proxied import until

SIZE = 1000


class Receiver:
    """Owner and handler of a connection."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.turns: set[int] = set()
        self.ends: list[str] = []
        self.pauses_after = 0
        self.connection: UpstreamConnection | None = None

    def upstream_data(self, data: bytes) -> None:
        self.parts.append(data)
        if len(self.parts) == self.pauses_after and self.connection is not None:
            self.connection.pause_reading()

    def upstream_eof(self) -> None:
        self.ends.append("eof")

    def upstream_lost(self, error: Exception | None) -> None:
        self.ends.append("lost")

    def upstream_paused(self) -> None:
        raise AssertionError

    upstream_resumed = on_connected = on_idle_ended = upstream_paused


@pytest.fixture
def receiver() -> Receiver:
    """Owner and handler of the connection."""
    return Receiver()


@pytest.fixture
async def server(receiver: Receiver) -> AsyncIterator[socket.socket]:
    """The server's end of the connection, which the receiver reads in steps."""
    near, far = socket.socketpair()
    connection = UpstreamConnection(receiver, 1)
    with closing(far):
        await asyncio.get_running_loop().create_connection(lambda: connection, sock=near)
        connection.handler = receiver
        receiver.connection = connection
        connection.begin(1, is_reused=False)
        connection.read_in_steps(SIZE)
        yield far
        connection.abort()
        await until(lambda: "lost" in receiver.ends)


async def test_each_turn_of_the_loop_has_one_part(
    receiver: Receiver, server: socket.socket
) -> None:
    """All bytes arrive in order, in parts; other callbacks of the loop run between them, and the
    end comes last."""
    seen: list[int] = []

    def look() -> None:
        seen.append(len(receiver.parts))
        if not receiver.ends:
            asyncio.get_running_loop().call_soon(look)

    look()
    sent = bytes(range(256)) * 80
    server.sendall(sent)
    server.shutdown(socket.SHUT_WR)
    await until(lambda: bool(receiver.ends))

    assert b"".join(receiver.parts) == sent
    assert max(map(len, receiver.parts)) == SIZE
    assert max(b - a for a, b in itertools.pairwise(seen)) == 1
    assert receiver.ends == ["eof"]


async def test_a_pause_holds_the_steps(receiver: Receiver, server: socket.socket) -> None:
    """Nothing is handed on while the handler pauses; the rest and the end follow."""
    receiver.pauses_after = 2
    server.sendall(b"x" * 5 * SIZE)
    server.shutdown(socket.SHUT_WR)
    await until(lambda: len(receiver.parts) == 2)
    for _ in range(20):
        await asyncio.sleep(0)
    connection = receiver.connection
    assert connection is not None
    assert (len(receiver.parts), connection.has_unread, receiver.ends) == (2, True, [])

    connection.resume_reading()
    await until(lambda: bool(receiver.ends))
    assert (len(receiver.parts), connection.has_unread) == (5, False)


async def test_a_lost_connection_hands_on_what_it_has(
    receiver: Receiver, server: socket.socket
) -> None:
    """What was received before the loss comes before it."""
    receiver.pauses_after = 1
    server.sendall(b"x" * 5 * SIZE)
    await until(lambda: bool(receiver.parts))

    assert receiver.connection is not None
    receiver.connection.abort()
    await until(lambda: bool(receiver.ends))

    assert (len(receiver.parts), receiver.ends) == (5, ["lost"])


async def test_the_next_exchange_reads_as_ever(receiver: Receiver, server: socket.socket) -> None:
    """Steps are of one exchange."""
    assert receiver.connection is not None
    receiver.connection.begin(2, is_reused=True)
    server.sendall(b"x" * 5 * SIZE)
    await until(lambda: bool(receiver.parts))

    assert [len(part) for part in receiver.parts] == [5 * SIZE]
