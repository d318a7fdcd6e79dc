"""Tests of the fast front over real connections, byte by byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from urllib.parse import urlsplit

import pytest

from gateway.http.connections import ConnectionLimit
from gateway.http.fast_path import QUIET_MAX, FastPath
from gateway.http.plain_heads import HEADS_MAX
from gateway.replies import Writer
from runtime_image.contract.link import Kind
from tests.support.peers import KEY, Peer, published
from tests.unit.gateway.http.conftest import Front as Served
from tests.unit.gateway.http.conftest import serving

BODY = b'{"inputs": {"x": [[1, 2, 3, 4]]}}'


def request(body: bytes = BODY, *, length: int | None = None, extra: bytes = b"") -> bytes:
    """A plain call of digits."""
    size = len(body) if length is None else length
    return (
        b"POST /fn/digits HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        + extra
        + b"Content-Length: %d\r\n\r\n" % size
        + body
    )


class Client:
    """One raw connection to a gateway."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        """Write bytes."""
        self.writer.write(data)

    async def answer(self) -> tuple[int, bytes, bytes]:
        """Status, head and body of the next answer."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        return int(head.split(b" ")[1]), head, await self.reader.readexactly(length)


@asynccontextmanager
async def connected(served: Served) -> AsyncIterator[Client]:
    """A connection, closed with the block."""
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(served.url).port)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()


async def arrived(served: Served) -> None:
    """Whatever was sent before this has been read."""
    await served.ask("GET", "/healthz")


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    """A gateway with the fast front."""
    async with serving(is_fast=True) as served:
        yield served


@pytest.fixture
async def peer(served: Served, tmp_path: Path) -> AsyncIterator[Peer]:
    """The warm replica of digits, for the test to play."""
    async with Peer(tmp_path / "r1").listening() as peer:
        served.delivery.receive_endpoints(published(peer.endpoint()))
        await peer.greet()
        yield peer
        served.delivery.receive_endpoints(published())


async def test_plain_calls_one_after_the_other(served: Served, peer: Peer) -> None:
    """One connection, several answers, also where body and head come in pieces."""
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
    """What came too early waits for the first answer, then aiohttp reads it."""
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
    """The surplus belongs to the next."""
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


async def test_large_bodies_come_whole_wherever_they_are_put(served: Served, peer: Peer) -> None:
    """In one piece or many, with the next call behind them, kept alive: 307,200 bytes each."""
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
    """Nothing of it is seen outside."""
    monkeypatch.setattr(served.delivery.slabs, "allocate", lambda _pool, _length: None)
    async with connected(served) as client:
        client.send(request(LARGE))
        frame = await peer.next(Kind.REQUEST)
        peer.answer(frame.id, LARGE)
        assert (await client.answer())[2] == LARGE
        assert frame.body == LARGE


@pytest.mark.parametrize("sent", [70_000, 200_000])
async def test_a_large_body_that_is_broken_off_gives_its_place_back(
    served: Served, sent: int
) -> None:
    """By a client that leaves, and by one that waits for too long."""
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
async def test_all_else_is_aiohttps(served: Served, peer: Peer, sent: bytes, status: int) -> None:
    """After plain calls on the same connection, too."""
    async with connected(served) as client:
        client.send(request())
        peer.answer((await peer.next(Kind.REQUEST)).id)
        await client.answer()
        client.send(sent)
        assert (await client.answer())[0] == status
    assert served.gateway.gate.active == 0


async def test_a_body_that_does_not_come_is_given_up(served: Served) -> None:
    """408, and the connection is closed; the site looks once a second."""
    async with connected(served) as client:
        client.send(request(length=100))
        status, head, body = await client.answer()
        assert (status, b"body_timeout" in body) == (408, True)
        assert b"Connection: close\r\n" in head
        assert await client.reader.read() == b""
    assert served.gateway.gate.active == 0


async def test_who_leaves_in_the_middle_of_a_body_leaves_nothing(served: Served) -> None:
    """The door is empty and nothing is held."""
    async with connected(served) as client:
        client.send(request(length=100))
        while not served.gateway.gate.active:
            await arrived(served)
    while served.gateway.gate.active:
        await arrived(served)
    assert served.delivery.loads() == {}


async def test_who_leaves_before_the_answer_takes_the_request_back(
    served: Served, peer: Peer
) -> None:
    """As on aiohttp's way."""
    async with connected(served) as client:
        client.send(request())
        sent = await peer.next(Kind.REQUEST)
    cancelled = await peer.next(Kind.CANCEL)
    peer.send(Kind.CANCELLED, cancelled.id)
    await served.delivery.wait_idle()

    assert cancelled.id == sent.id


async def test_a_shut_door_ends_fast_connections(served: Served) -> None:
    """503 with Connection: close, from whoever reads it."""
    await served.gateway.gate.close()
    async with connected(served) as client:
        client.send(request())
        status, head, _ = await client.answer()
    assert (status, b"Connection: close" in head) == (503, True)


def unlimited() -> ConnectionLimit:
    """A limit that no test reaches."""
    return ConnectionLimit(1000, monotonic)


def plain_front(served: Served) -> FastPath:
    """A front that is not listening."""
    return FastPath(served.gateway.invoker, Writer(lambda: 0.0), asyncio.Protocol, unlimited())


async def test_remembered_heads_are_bounded(served: Served) -> None:
    """Clients that send another head each time do not fill the memory."""
    front = plain_front(served)
    first = front.parse_head(request(b"", extra=b"X: 0\r\n"))
    for number in range(HEADS_MAX + 1):
        assert front.parse_head(request(b"", extra=b"X: %d\r\n" % number)) is not None
    assert front.parse_head(request(b"", extra=b"X: 1\r\n")) is not front.parse_head(b"")
    assert front.parse_head(request(b"", extra=b"X: 0\r\n")) is not first


class Wire(asyncio.Transport):
    """A transport that remembers what is asked of it."""

    def __init__(self, sock: object) -> None:
        super().__init__({"socket": sock})
        self.asked: list[str] = []
        self.is_closed = False

    def is_closing(self) -> bool:
        return self.is_closed

    def write(self, data: object) -> None:
        self.asked.append("write")

    def pause_reading(self) -> None:
        self.asked.append("pause")

    def resume_reading(self) -> None:
        self.asked.append("resume")

    def close(self) -> None:
        self.asked.append("close")
        self.is_closed = True


class Eager(Wire):
    """A transport over which more comes while an answer is written."""

    def __init__(self, connection: asyncio.Protocol, more: bytes) -> None:
        super().__init__(Socket())
        self._connection = connection
        self._more = more

    def write(self, data: object) -> None:
        self._connection.data_received(self._more)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.asked.append("protocol")


class Kept(asyncio.Protocol):
    """In aiohttp's place: keeps what comes."""

    def __init__(self) -> None:
        self.received: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        self.received.append(data)


class Socket:
    """Takes options."""

    def setsockopt(self, *_: object) -> None:
        """As a socket does."""


async def test_who_does_not_read_is_not_read_from(served: Served) -> None:
    """Answers that pile up stop the requests they would be followed by."""
    connection, wire = plain_front(served)(), Wire(Socket())
    connection.connection_made(wire)
    connection.pause_writing()
    connection.resume_writing()
    assert wire.asked == ["pause", "resume"]


async def test_a_connection_that_says_nothing_for_an_hour_is_closed(served: Served) -> None:
    """A byte, and its hour begins anew; before its first byte it has the time of a head."""
    front = plain_front(served)
    connection, wire = front(), Wire(Socket())
    connection.connection_made(wire)
    head_s = int(served.gateway.invoker.settings.head_read_s)
    for _ in range(head_s):
        front.sweep()
    assert "close" not in wire.asked
    front.sweep()
    assert "close" in wire.asked

    connection, wire = front(), Wire(Socket())
    connection.connection_made(wire)
    connection.data_received(request()[:-1])
    connection.connection_lost(None)
    connection.connection_made(wire)
    for _ in range(QUIET_MAX):
        front.sweep()
    assert "close" not in wire.asked
    front.sweep()
    assert "close" in wire.asked


async def test_what_comes_while_a_connection_changes_hands_waits_its_turn(
    served: Served, peer: Peer
) -> None:
    """Requests keep their order, also in the turn in which a connection changes hands."""
    await arrived(served)
    later = Kept()
    connection = FastPath(served.gateway.invoker, Writer(lambda: 0.0), lambda: later, unlimited())()
    connection.connection_made(Eager(connection, request(b"3")))
    connection.data_received(request(b"1") + request(b"2"))
    peer.answer((await peer.next(Kind.REQUEST)).id)
    while not later.received:
        await arrived(served)
    assert later.received == [request(b"2"), request(b"3")]
    assert served.gateway.gate.active == 0


async def test_who_leaves_with_more_requests_on_the_way_is_noticed(
    served: Served, peer: Peer
) -> None:
    """What came too early does not keep the front from reading that the client is gone."""
    async with connected(served) as client:
        client.send(request() + request())
        sent = await peer.next(Kind.REQUEST)
    cancelled = await peer.next(Kind.CANCEL)
    peer.send(Kind.CANCELLED, cancelled.id)
    await served.delivery.wait_idle()

    assert cancelled.id == sent.id


async def test_a_slow_reader_stays_slow_when_aiohttp_goes_on(served: Served, peer: Peer) -> None:
    """The transport tells a protocol once that its client does not read."""
    paused: list[str] = []

    class Told(Kept):
        def pause_writing(self) -> None:
            paused.append("told")

    connection = FastPath(served.gateway.invoker, Writer(lambda: 0.0), Told, unlimited())()
    connection.connection_made(Eager(connection, b""))
    connection.pause_writing()
    connection.data_received(b"GET / HTTP/1.1\r\n\r\n")
    assert paused == ["told"]


async def test_an_answer_that_was_given_is_taken_before_the_connection_ends(
    served: Served, peer: Peer
) -> None:
    """Closing waits for a client that reads slowly, but only for so long."""
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
