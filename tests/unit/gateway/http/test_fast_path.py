"""Tests of the fast path over real connections, byte by byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from urllib.parse import urlsplit

import pytest

from gateway.http.connections import ConnectionLimit
from gateway.http.fast_path import QUIET_MAX, Connection, FastPath
from runtime_image.contract.link import Kind
from tests.support.peers import KEY, Peer, published
from tests.unit.gateway.http.conftest import Front as Served
from tests.unit.gateway.http.conftest import serving

BODY = b'{"inputs": {"x": [[1, 2, 3, 4]]}}'


def request(body: bytes = BODY, *, length: int | None = None, extra: bytes = b"") -> bytes:
    """Return a plain call of digits."""
    size = len(body) if length is None else length
    return (
        b"POST /fn/digits HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        + extra
        + b"Content-Length: %d\r\n\r\n" % size
        + body
    )


class Client:
    """Raw connection to a gateway."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        """Write bytes."""
        self.writer.write(data)

    async def answer(self) -> tuple[int, bytes, bytes]:
        """Return status, head and body of the next answer."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        return int(head.split(b" ")[1]), head, await self.reader.readexactly(length)


@asynccontextmanager
async def connected(served: Served) -> AsyncIterator[Client]:
    """Yield a connection, closed with the block."""
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(served.url).port)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()


async def arrived(served: Served) -> None:
    """Wait until the server has read all bytes sent before this."""
    await served.ask("GET", "/healthz")


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    """Gateway with the fast path."""
    async with serving(is_fast=True) as served:
        yield served


@pytest.fixture
async def peer(served: Served, tmp_path: Path) -> AsyncIterator[Peer]:
    """Warm replica of digits, played by the test."""
    async with Peer(tmp_path / "r1").listening() as peer:
        served.delivery.receive_endpoints(published(peer.endpoint()))
        await peer.greet()
        yield peer
        served.delivery.receive_endpoints(published())


async def test_plain_calls_in_sequence(served: Served, peer: Peer) -> None:
    """One connection serves several calls, also where head and body arrive in pieces."""
    async with connected(served) as client:
        for pieces in ([request()], [request()[:-5], request()[-5:]], [request(b"")]):
            for piece in pieces:
                client.send(piece)
                await arrived(served)
            frame = await peer.next(Kind.REQUEST)
            peer.answer(frame.id, b"{}")
            status, head, body = await client.answer()
            assert (status, body) == (200, b"{}")
            assert b"Fn-Revision: digits@1\r\n" in head
            assert frame.body == pieces[0].partition(b"\r\n\r\n")[2] + b"".join(pieces[1:])


async def test_pipelined_calls_are_answered_in_order(served: Served, peer: Peer) -> None:
    """Pipelined bytes wait for the first answer, then aiohttp takes over the connection."""
    async with connected(served) as client:
        client.send(request(b'"1"') + request(b'"2"') + request(b'"3"')[:40])
        first = await peer.next(Kind.REQUEST)
        peer.answer(first.id, b"one")
        assert (await client.answer())[2] == b"one"
        second = await peer.next(Kind.REQUEST)
        client.send(request(b'"3"')[40:])
        peer.answer(second.id, b"two")
        assert (await client.answer())[2] == b"two"
        third = await peer.next(Kind.REQUEST)
        peer.answer(third.id, b"three")
        assert (await client.answer())[2] == b"three"

    assert [first.body, second.body, third.body] == [b'"1"', b'"2"', b'"3"']


async def test_a_body_with_the_next_request_behind_its_last_piece(
    served: Served, peer: Peer
) -> None:
    """Bytes after the body belong to the next request."""
    async with connected(served) as client:
        client.send(request(BODY)[:-4])
        await arrived(served)
        client.send(BODY[-4:] + request(b"2"))
        for expected in (BODY, b"2"):
            frame = await peer.next(Kind.REQUEST)
            peer.answer(frame.id)
            assert frame.body == expected
            assert (await client.answer())[0] == 200


LARGE = bytes(range(256)) * 1200


async def test_large_bodies_arrive_whole(served: Served, peer: Peer) -> None:
    """Bodies of 307,200 bytes arrive whole in any number of pieces and with a pipelined request."""
    async with connected(served) as client:
        for size in (30_000, 100_000, 1_000_000):
            whole = request(LARGE)
            for start in range(0, len(whole), size):
                client.send(whole[start : start + size])
                await arrived(served)
            frame = await peer.next(Kind.REQUEST)
            peer.answer(frame.id)
            assert frame.body == LARGE
            assert (await client.answer())[0] == 200
        client.send(request(LARGE) + request(b"next"))
        for expected in (LARGE, b"next"):
            frame = await peer.next(Kind.REQUEST)
            peer.answer(frame.id)
            assert frame.body == expected
            assert (await client.answer())[0] == 200
    slabs = served.delivery.slabs
    slot = slabs.allocate(KEY, 100_000)
    assert slot is not None
    assert slot.offset == 0, "a slot was not given back"
    slot.release()


async def test_large_bodies_that_do_not_fit_are_copied(
    served: Served, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a slot in shared memory a large body is copied, with the same answer."""
    monkeypatch.setattr(served.delivery.slabs, "allocate", lambda _pool, _length: None)
    async with connected(served) as client:
        client.send(request(LARGE))
        frame = await peer.next(Kind.REQUEST)
        peer.answer(frame.id, LARGE)
        assert (await client.answer())[2] == LARGE
        assert frame.body == LARGE


@pytest.mark.parametrize("sent", [70_000, 200_000])
async def test_an_aborted_large_body_frees_its_slot(served: Served, sent: int) -> None:
    """A disconnect and a timeout each free the slot of an unfinished body."""
    for leaves in (True, False):
        async with connected(served) as client:
            client.send(request(LARGE)[:sent])
            while not served.gateway.gate.active:
                await arrived(served)
            if not leaves:
                assert (await client.answer())[0] == 408
        while served.gateway.gate.active:
            await arrived(served)
        slot = served.delivery.slabs.allocate(KEY, 100_000)
        assert slot is not None
        assert slot.offset == 0
        slot.release()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
        (b"GET /fn/digits HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
        (request().replace(b"digits", b"nobody"), 404),
        (request().replace(b"localhost", b"evil.example"), 421),
        (request(length=65 * 2**20)[:200], 413),
        (b"NONSENSE\r\n\r\n", 400),
    ],
)
async def test_other_requests_are_left_to_aiohttp(
    served: Served, peer: Peer, sent: bytes, status: int
) -> None:
    """Other requests are answered by aiohttp, also after plain calls on the same connection."""
    async with connected(served) as client:
        client.send(request())
        peer.answer((await peer.next(Kind.REQUEST)).id)
        await client.answer()
        client.send(sent)
        assert (await client.answer())[0] == status
    assert served.gateway.gate.active == 0


async def test_a_body_that_does_not_arrive_is_given_up(served: Served) -> None:
    """The answer is 408, and the connection is closed by the sweep that runs once a second."""
    async with connected(served) as client:
        client.send(request(length=100))
        status, head, body = await client.answer()
        assert (status, b"body_timeout" in body) == (408, True)
        assert b"Connection: close\r\n" in head
        assert await client.reader.read() == b""
    assert served.gateway.gate.active == 0


async def test_a_disconnect_within_a_body_leaves_nothing(served: Served) -> None:
    """The gate is empty and no byte is held."""
    async with connected(served) as client:
        client.send(request(length=100))
        while not served.gateway.gate.active:
            await arrived(served)
    while served.gateway.gate.active:
        await arrived(served)
    assert served.delivery.loads() == {}


async def test_a_disconnect_before_the_answer_cancels_the_request(
    served: Served, peer: Peer
) -> None:
    """The replica gets CANCEL, as on aiohttp's path."""
    async with connected(served) as client:
        client.send(request())
        sent = await peer.next(Kind.REQUEST)
    cancelled = await peer.next(Kind.CANCEL)
    peer.send(Kind.CANCELLED, cancelled.id)
    await served.delivery.wait_idle()

    assert cancelled.id == sent.id


async def test_a_closed_gate_ends_fast_connections(served: Served) -> None:
    """The answer is 503 with Connection: close."""
    await served.gateway.gate.close()
    async with connected(served) as client:
        client.send(request())
        status, head, _ = await client.answer()
    assert (status, b"Connection: close" in head) == (503, True)


def unlimited() -> ConnectionLimit:
    """Return a limit that no test reaches."""
    return ConnectionLimit(1000, monotonic)


def plain_front(served: Served) -> FastPath:
    """Return a fast path that is not listening."""
    return FastPath(served.gateway.invoker, served.gateway.parts, asyncio.Protocol, unlimited())


class RecordingTransport(asyncio.Transport):
    """Transport that records the calls it gets."""

    def __init__(self, sock: object) -> None:
        super().__init__({"socket": sock})
        self.asked: list[str] = []
        self.is_closed = False

    def is_closing(self) -> bool:
        return self.is_closed

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.limits = high, low

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: object) -> None:
        self.asked.append("write")

    def is_reading(self) -> bool:
        return True

    def pause_reading(self) -> None:
        self.asked.append("pause")

    def resume_reading(self) -> None:
        self.asked.append("resume")

    def close(self) -> None:
        self.asked.append("close")
        self.is_closed = True

    def abort(self) -> None:
        self.close()


class EagerTransport(RecordingTransport):
    """Transport that receives more data while an answer is written."""

    def __init__(self, connection: asyncio.Protocol, more: bytes) -> None:
        super().__init__(Socket())
        self._connection = connection
        self._more = more

    def write(self, data: object) -> None:
        self._connection.data_received(self._more)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.asked.append("protocol")


class RecordingProtocol(asyncio.Protocol):
    """Stand-in for aiohttp's protocol; keeps the received data."""

    def __init__(self) -> None:
        self.received: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        self.received.append(data)


class Socket:
    """Socket that accepts options."""

    def setsockopt(self, *_: object) -> None:
        """Do nothing."""


async def test_a_client_that_does_not_read_is_not_read_from(served: Served) -> None:
    """While answers pile up, reading from the connection is paused, and it is not idle."""
    connection, wire = Connection(plain_front(served)), RecordingTransport(Socket())
    connection.connection_made(wire)
    connection.pause_writing()
    assert not connection.is_idle
    connection.resume_writing()
    assert connection.is_idle
    assert wire.asked == ["pause", "resume"]


async def test_a_connection_silent_for_an_hour_is_closed(served: Served) -> None:
    """Each byte restarts the hour; before its first byte a connection has the time limit of a
    head."""
    front = plain_front(served)
    connection, wire = front(), RecordingTransport(Socket())
    connection.connection_made(wire)
    head_s = int(served.gateway.invoker.settings.head_read_s)
    for _ in range(head_s):
        front.sweep()
    assert "close" not in wire.asked
    front.sweep()
    assert "close" in wire.asked

    connection, wire = front(), RecordingTransport(Socket())
    connection.connection_made(wire)
    connection.data_received(request()[:-1])
    connection.connection_lost(None)
    connection.connection_made(wire)
    for _ in range(QUIET_MAX):
        front.sweep()
    assert "close" not in wire.asked
    front.sweep()
    assert "close" in wire.asked


async def test_data_during_a_handover_keeps_its_order(served: Served, peer: Peer) -> None:
    """Requests keep their order, also those received while the connection is handed to aiohttp."""
    await arrived(served)
    later = RecordingProtocol()
    front = FastPath(served.gateway.invoker, served.gateway.parts, lambda: later, unlimited())
    connection = front()
    connection.connection_made(EagerTransport(connection, request(b"3")))
    connection.data_received(request(b"1") + request(b"2"))
    peer.answer((await peer.next(Kind.REQUEST)).id)
    while not later.received:
        await arrived(served)
    assert later.received == [request(b"2"), request(b"3")]
    assert served.gateway.gate.active == 0


async def test_a_disconnect_with_pipelined_requests_is_noticed(served: Served, peer: Peer) -> None:
    """Pipelined data does not keep the fast path from noticing the disconnect."""
    async with connected(served) as client:
        client.send(request() + request())
        sent = await peer.next(Kind.REQUEST)
    cancelled = await peer.next(Kind.CANCEL)
    peer.send(Kind.CANCELLED, cancelled.id)
    await served.delivery.wait_idle()

    assert cancelled.id == sent.id


async def test_a_paused_transport_stays_paused_for_aiohttp(served: Served, peer: Peer) -> None:
    """The handover passes on `pause_writing`, which the transport reports only once."""
    paused: list[str] = []

    class PausedProtocol(RecordingProtocol):
        def pause_writing(self) -> None:
            paused.append("told")

    connection = FastPath(
        served.gateway.invoker, served.gateway.parts, PausedProtocol, unlimited()
    )()
    connection.connection_made(EagerTransport(connection, b""))
    connection.pause_writing()
    connection.data_received(b"GET / HTTP/1.1\r\n\r\n")
    assert paused == ["told"]


async def test_closing_lets_a_slow_client_read_its_answer(served: Served, peer: Peer) -> None:
    """Closing waits for a client that reads slowly, up to the timeout."""
    large = bytes(30_000_000)
    front = plain_front(served)
    server = await asyncio.get_running_loop().create_server(front, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    for seconds, taken in ((60.0, len(large)), (0.0, 0)):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request())
        peer.answer((await peer.next(Kind.REQUEST)).id, large)
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Content-Length: 30000000" in head
        front.close()
        closing = asyncio.create_task(front.wait_closed(seconds))
        if taken:
            assert len(await reader.readexactly(taken)) == taken
        await closing
        assert front.connections == set()
        writer.close()
    server.close()
