"""Tests of the connection limit, of half-closed connections, and of clients that leave."""

from __future__ import annotations

import asyncio
import resource
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
import uvloop

from gateway.http.connections import (
    AGAIN_S,
    KEPT_BACK,
    ConnectionLimit,
    begin_answer,
    connections_max,
    is_gone,
)
from gateway.http.handler import AHEAD_MAX
from tests.support.proxied import gate, quiet, until

ROW = b'{"inputs": {"x": [[1, 2, 3, 4]]}}'


async def never(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    """Serve a connection of a server that is not called."""


class FakeConnection:
    """Stand-in for a connection."""

    def __init__(self, *, is_idle: bool = True, quiet_s: int = 0, opened_s: float = 0.0) -> None:
        self.opened_s = opened_s
        self.is_idle = is_idle
        self.quiet_s = quiet_s
        self.is_closed = False

    def abort(self) -> None:
        self.is_closed = True


class World:
    """Connection limit with a group of connections and a clock that the test sets."""

    def __init__(self, most: int, *there: FakeConnection) -> None:
        self.there: set[FakeConnection] = set(there)
        self.now = 0.0
        self.limit = ConnectionLimit(most, lambda: self.now)
        self.limit.track(self.there)

    def enter(self) -> bool:
        one = FakeConnection(is_idle=True)
        self.there.add(one)
        admitted = self.limit.admit(one)
        assert not one.is_closed
        if not admitted:
            self.there.remove(one)
        return admitted


def test_the_quietest_idle_connection_makes_room() -> None:
    """The idle connection that is quiet for longest is evicted; an active one never is."""
    busy, old, young = (
        FakeConnection(is_idle=False, quiet_s=90),
        FakeConnection(quiet_s=60),
        FakeConnection(quiet_s=5),
    )
    world = World(3, busy, old, young)
    assert world.enter()
    assert [one.is_closed for one in (busy, old, young)] == [False, True, False]


def test_among_equally_quiet_connections_the_oldest_goes() -> None:
    """A new connection whose request is still on its way is not evicted as a silent one."""
    young, old = FakeConnection(opened_s=2.0), FakeConnection(opened_s=1.0)
    world = World(2, young, old)
    assert world.enter()
    assert [one.is_closed for one in (young, old)] == [False, True]


def test_a_large_limit_evicts_several_at_once() -> None:
    """One thirty-second of the limit is evicted at a time, so that scanning all connections is
    rare."""
    world = World(64, *(FakeConnection(quiet_s=n) for n in range(64)))
    assert world.enter()
    assert sorted(one.quiet_s for one in world.there if one.is_closed) == [62, 63]


def test_new_connections_are_refused_where_all_are_active(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The refusal is immediate, without another scan for AGAIN_S; it is logged once a minute."""
    busy = FakeConnection(is_idle=False)
    world = World(1, busy)
    assert not any(world.enter() for _ in range(100))
    busy.is_idle = True
    assert not world.enter()
    world.now += AGAIN_S
    assert world.enter()
    assert busy.is_closed
    assert capsys.readouterr().out.count("connections are refused") == 1


def test_descriptors_are_kept_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit leaves descriptors for other uses beside those already open, and as many again for
    connections to servers; it is at least one."""
    limits = {"now": (256, 256)}
    monkeypatch.setattr(resource, "getrlimit", lambda _what: limits["now"])
    assert 1 <= connections_max(1000) <= (256 - KEPT_BACK) // 2
    assert connections_max(5) == 5
    limits["now"] = (10, 10)
    assert connections_max(1000) == 1
    limits["now"] = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    assert connections_max(1000) == 1000


class HalfClosable(asyncio.Protocol):
    """Protocol that keeps the connection open after EOF."""

    def __init__(self) -> None:
        self.made: asyncio.Future[asyncio.Transport] = asyncio.get_running_loop().create_future()
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.made.set_result(cast("asyncio.Transport", transport))

    def eof_received(self) -> bool:
        self.ended.set()
        return True


@asynccontextmanager
async def pair(family: int) -> AsyncIterator[tuple[socket.socket, asyncio.Transport, HalfClosable]]:
    """Yield the client's socket, the server's transport and the server's protocol."""
    loop = asyncio.get_running_loop()
    protocol = HalfClosable()
    if family == socket.AF_UNIX:
        client, theirs = socket.socketpair()
        await loop.connect_accepted_socket(lambda: protocol, theirs)
    else:
        server = await loop.create_server(lambda: protocol, "127.0.0.1", 0)
        client = socket.create_connection(server.sockets[0].getsockname())
        await protocol.made
        server.close()
    with client:
        transport = await protocol.made
        yield client, transport, protocol
        transport.abort()


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_half_closed_client_differs_from_one_that_left(family: int, run: object) -> None:
    """Both sent EOF; only one of them still reads the answer."""

    async def waits() -> None:
        async with pair(family) as (client, transport, protocol):
            client.shutdown(socket.SHUT_WR)
            await protocol.ended.wait()
            begun = begin_answer(transport)
            assert begun is not None
            assert begin_answer(begun) is begun
            assert not is_gone(transport)
            begun.writelines([b"", b"H", b"TTP/1.1 "])
            begun.write(b"200 OK")
            begun.close()
            received = b""
            while piece := await asyncio.to_thread(client.recv, 100):
                received += piece
            assert received == b"HTTP/1.1 200 OK"

    async def leaves() -> None:
        async with pair(family) as (client, transport, protocol):
            client.close()
            await protocol.ended.wait()
            assert begin_answer(transport) is None
            assert is_gone(transport)

    assert callable(run)
    run(waits())
    run(leaves())


async def test_a_reset_is_noticed_while_nothing_is_read(tmp_path: Path, is_fast: bool) -> None:
    """A client that resets its connection ends its call, also behind more pipelined bytes than are
    read ahead."""
    call = b"POST /fn/digits HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n"
    async with gate(tmp_path, never, is_fast=is_fast) as one:
        wire = await one.connect()
        wire.send(call % len(ROW) + ROW + call % (16 * AHEAD_MAX) + bytes(16 * AHEAD_MAX))
        await until(lambda: bool(one.left().get("loads")))
        await quiet(lambda: 0)
        assert wire.writer.transport.get_write_buffer_size()
        wire.writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        wire.writer.transport.abort()
        await quiet(lambda: 0)
        one.sweep()
        await until(lambda: not one.left())
