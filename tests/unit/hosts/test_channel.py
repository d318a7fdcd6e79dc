"""Tests of the transports of channels: over a real SSH server, and over TLS."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from gateway.hosts import tls_channel
from gateway.hosts.tls import TlsConnection
from hosts import channel
from hosts.channel import HIGH
from hosts.connection import HostConnection
from hosts.errors import ConnectionLost
from registry.tasks import Tasks
from tests.support.operator import until
from tests.support.sshd import Sshd
from tests.support.tls_front import TlsFront, tls_front
from tests.unit.hosts.conftest import WAIT_S, FarServer, settled

pytestmark = pytest.mark.slow
MIB = 2**20
BODY = os.urandom(3 * MIB)
CHUNK = 512 * 1024
TURNS = 500
"""Turns of all threads without a change after which nothing moves any more."""
BOUND = 8 * MIB
"""More than SSH's window of 2 MiB, both sides' buffers and those of a socket."""


class OverSsh:
    """Channels over one SSH connection. `piece`: max bytes that are encrypted in one turn."""

    piece = channel.PIECE

    def __init__(self, connection: HostConnection) -> None:
        self._connection = connection

    async def dial(self, path: str, protocol: asyncio.BaseProtocol) -> asyncio.Transport:
        return await self._connection.dial(path, protocol)

    async def settled(self, size: Callable[[], int]) -> int:
        """Return a size that no longer changes."""
        return await settled(self._connection, size)


class OverTls:
    """Channels that are TLS connections, to the same Unix sockets."""

    piece = tls_channel.PIECE

    def __init__(self, front: TlsFront, connection: TlsConnection) -> None:
        self._front = front
        self._connection = connection

    async def dial(self, path: str, protocol: asyncio.BaseProtocol) -> asyncio.Transport:
        return await self._connection.dial(self._front.address(path), protocol)

    async def settled(self, size: Callable[[], int]) -> int:
        """Return a size that no longer changes: the relay's threads move bytes in microseconds."""
        last, since = -1, 0
        async with asyncio.timeout(WAIT_S):
            while since < TURNS:
                await asyncio.to_thread(os.sched_yield)
                since = since + 1 if size() == last else 0
                last = size()
        return last


Way = OverSsh | OverTls


@pytest.fixture
def ssh(connection: HostConnection) -> OverSsh:
    """Return the way over SSH."""
    return OverSsh(connection)


@pytest.fixture
async def tls(tasks: Tasks) -> AsyncIterator[OverTls]:
    """Return the way over TLS."""
    with tls_front() as front:
        connection = TlsConnection("gpu2", front.route, tasks)
        connection.open()
        yield OverTls(front, connection)
        await connection.close()


@pytest.fixture(params=["ssh", "tls"])
def way(request: pytest.FixtureRequest) -> Way:
    """Return a way to the Unix sockets of a host."""
    way: Way = request.getfixturevalue(request.param)
    return way


class Near(asyncio.Protocol):
    """This side's protocol. `calls` has its callbacks, `lost` the argument of the last one."""

    def __init__(self, *, writes_on: bool = False) -> None:
        self._writes_on = writes_on
        self.received = bytearray()
        self.calls: list[str] = []
        self.can_write = asyncio.Event()
        self.can_write.set()
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.received += data

    def eof_received(self) -> bool:
        self.calls.append("eof")
        return self._writes_on

    def pause_writing(self) -> None:
        self.can_write.clear()

    def resume_writing(self) -> None:
        self.can_write.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.calls.append("lost")
        self.lost.set_result(exc)

    async def end(self) -> Exception | None:
        async with asyncio.timeout(WAIT_S):
            return await asyncio.shield(self.lost)


class Small(Near, asyncio.BufferedProtocol):
    """The same with buffers of 7 bytes."""

    def get_buffer(self, sizehint: int) -> bytearray:
        self.buffer = bytearray(7)
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self.buffer[:nbytes]


@pytest.mark.parametrize("kind", [Near, Small])
async def test_bodies_cross_in_both_directions(
    way: Way, server: FarServer, kind: type[Near]
) -> None:
    """Bytes arrive whole and in order, in buffers of any size; half-closes are passed on."""
    near = kind(writes_on=True)
    transport = await way.dial(server.path, near)
    peer = await server.accept()
    body = BODY if kind is Near else BODY[: 64 * 1024]

    transport.writelines([body[:100], memoryview(body)[100:-1], bytearray(body[-1:])])
    transport.write_eof()
    await asyncio.wait_for(peer.ended.wait(), WAIT_S)
    peer.transport.write(body)
    peer.transport.write_eof()
    await until(lambda: bool(near.calls))
    transport.close()

    assert await near.end() is None
    assert peer.received == body
    assert near.received == body
    assert near.calls == ["eof", "lost"]


async def test_a_protocol_can_write_after_the_end_of_its_peer(way: Way, server: FarServer) -> None:
    """A protocol that returns True from eof_received still writes."""
    near = Near(writes_on=True)
    transport = await way.dial(server.path, near)
    peer = await server.accept()
    peer.transport.write_eof()
    await until(lambda: near.calls == ["eof"])

    transport.write(b"still")
    await until(lambda: peer.received == b"still")
    transport.close()

    assert await near.end() is None


async def test_a_peer_that_never_reads_stops_the_writer(way: Way, server: FarServer) -> None:
    """Little more than the windows is accepted; all of it arrives when the peer reads."""
    near = Near()
    transport = await way.dial(server.path, near)
    peer = await server.accept()
    peer.transport.pause_reading()
    written = 0
    while near.can_write.is_set():
        transport.write(bytes(CHUNK))
        written += CHUNK
        await way.settled(transport.get_write_buffer_size)
        assert written < BOUND

    assert transport.get_write_buffer_size() <= HIGH + CHUNK
    peer.transport.resume_reading()
    await until(near.can_write.is_set)
    transport.close()
    await until(lambda: len(peer.received) == written)
    assert await near.end() is None


async def test_a_paused_reader_stops_the_peer(way: Way, server: FarServer) -> None:
    """What arrives while reading is paused is bounded, and delivered later to the last byte."""
    near = Near()
    transport = await way.dial(server.path, near)
    peer = await server.accept()
    transport.pause_reading()
    await asyncio.sleep(0)

    peer.transport.write(bytes(2 * BOUND))
    left = await way.settled(peer.transport.get_write_buffer_size)
    taken = 2 * BOUND - left
    before = len(near.received)
    transport.resume_reading()
    peer.transport.close()

    assert await near.end() is None
    assert before == 0
    assert taken < BOUND
    assert len(near.received) == 2 * BOUND


async def test_a_large_write_leaves_the_loop_to_others(way: Way, server: FarServer) -> None:
    """One piece goes to the cipher in a turn of the loop, whatever the size of a write."""
    transport = await way.dial(server.path, Near())
    await server.accept()
    sizes = []

    transport.write(BODY[:MIB])
    for _ in range(4):
        sizes.append(transport.get_write_buffer_size())
        await asyncio.sleep(0)
    transport.abort()

    assert MIB - sizes[0] <= way.piece
    assert all(a - b <= way.piece for a, b in itertools.pairwise(sizes))


@pytest.mark.parametrize("is_paused", [False, True])
async def test_bytes_before_a_close_are_delivered(
    way: Way, server: FarServer, is_paused: bool
) -> None:
    """connection_lost(None) means that nothing is missing, also after a pause."""
    near = Small()
    transport = await way.dial(server.path, near)
    peer = await server.accept()
    if is_paused:
        transport.pause_reading()
    peer.transport.write(BODY[:50_000])
    peer.transport.close()
    if is_paused:
        await peer.lost.wait()
        assert not near.calls
        transport.resume_reading()

    assert await near.end() is None
    assert near.received == BODY[:50_000]


async def test_an_abort_ends_both_sides_once(way: Way, server: FarServer) -> None:
    """Whatever is called afterwards, connection_lost comes once and the peer sees the end."""
    near = Near()
    transport = await way.dial(server.path, near)
    peer = await server.accept()

    transport.abort()
    transport.abort()
    transport.close()
    transport.write(b"too late")

    assert await near.end() is None
    await asyncio.wait_for(peer.ended.wait(), WAIT_S)
    assert near.calls == ["lost"]
    assert transport.is_closing()


@pytest.mark.parametrize("state", ["reading", "paused", "closing"])
async def test_a_broken_connection_is_a_connection_lost(
    connection: HostConnection, server: FarServer, far: Sshd, state: str
) -> None:
    """Each protocol gets one ConnectionLost, and `is_up` is False by then; later dials fail."""
    near = Near()
    was_up = []
    near.lost.add_done_callback(lambda _: was_up.append(connection.is_up))
    transport = await connection.dial(server.path, near)
    peer = await server.accept()
    if state == "paused":
        transport.pause_reading()
        peer.transport.write(BODY)
        await settled(connection, peer.transport.get_write_buffer_size)
    if state == "closing":
        peer.transport.pause_reading()
        transport.write(bytes(2 * BOUND))
        transport.close()

    far.stop()

    assert isinstance(await near.end(), ConnectionLost)
    with pytest.raises(ConnectionLost, match="gpu2"):
        await connection.dial(server.path, Near())
    assert near.calls.count("lost") == 1
    assert was_up == [False]


async def test_an_error_of_a_protocol_ends_its_channel_alone(way: Way, server: FarServer) -> None:
    """The transport is closed with that error; other channels go on."""
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: reported.append(what))

    class Faulty(Near):
        def data_received(self, data: bytes) -> None:
            raise ValueError(data.decode())

    near, other = Faulty(), Near()
    await way.dial(server.path, near)
    peer = await server.accept()
    transport = await way.dial(server.path, other)
    beside = await server.accept()

    peer.transport.write(b"boom")
    assert str(await near.end()) == "boom"
    beside.transport.write(b"fine")
    await until(lambda: other.received == b"fine")
    transport.abort()

    assert len(reported) == 1


async def test_unserved_sockets_are_refused(connection: HostConnection, server: FarServer) -> None:
    """An absent and a stale socket raise ConnectionRefusedError with the path."""
    await server.close()

    for path in (server.path, f"{server.path}.absent"):
        with pytest.raises(ConnectionRefusedError, match=path):
            await connection.dial(path, Near())


async def test_a_cancelled_dial_leaves_no_channel(
    connection: HostConnection, server: FarServer
) -> None:
    """The far end of a connection that was opened too late is closed."""
    dials = [asyncio.ensure_future(connection.dial(server.path, Near())) for _ in range(20)]
    await asyncio.sleep(0)
    for dial in dials:
        dial.cancel()
    await asyncio.wait(dials)
    await connection.dial(server.path, near := Near())
    peers = [await server.accept() for _ in range(21)]
    for peer in peers[:-1]:
        await asyncio.wait_for(peer.ended.wait(), WAIT_S)

    assert not near.calls
    assert not peers[-1].ended.is_set()


async def test_sessions_come_before_channels(
    connection: HostConnection, server: FarServer, far: Sshd
) -> None:
    """OpenSSH disables Nagle's algorithm with the first session, or small answers take 40 ms."""
    await connection.dial(server.path, Near())

    log = far.log.read_text()
    session, channel = log.index("ctype session"), log.index("ctype direct-streamlocal")
    started = log.index("Starting session: command")

    assert session < started < channel


async def test_a_socket_of_the_host_is_used_as_one_of_this_machine(
    connection: HostConnection, server: FarServer, far: Sshd
) -> None:
    """Bytes cross with back-pressure; when the SSH connection breaks, the socket ends."""
    loop = asyncio.get_running_loop()
    with await connection.connect(server.path) as sock:
        peer = await server.accept()
        peer.transport.write(BODY)
        await loop.sock_sendall(sock, b"question")

        received = bytearray()
        while len(received) < len(BODY):
            received += await loop.sock_recv(sock, CHUNK)
        assert received == BODY
        await until(lambda: peer.received == b"question")

        far.stop()
        async with asyncio.timeout(WAIT_S):
            assert await loop.sock_recv(sock, 1) == b""
    with pytest.raises(ConnectionLost):
        await connection.connect(server.path)
