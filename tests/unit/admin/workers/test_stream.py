"""Tests of streams of messages, over a socket pair and over memory."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator

import pytest

from admin.workers import messages as m
from admin.workers import stream as streams
from admin.workers.messages import Message, encode
from admin.workers.stream import CLOSED, SocketStream, Stream, memory_pair
from tests.support.operator import until
from tests.support.server import encoded_pair


def socket_pair() -> tuple[Stream, Stream]:
    """Return both ends of a stream over a socket pair, the server's end first."""
    ours, theirs = socket.socketpair()
    return SocketStream(ours, m.decode_up), SocketStream(theirs, m.decode_down)


PAIRS = [socket_pair, memory_pair, encoded_pair]


class End:
    """What one end of a stream received."""

    def __init__(self) -> None:
        self.taken: list[Message] = []
        self.lost: list[str] = []
        self.fails = False

    def take(self, message: Message) -> None:
        """Receive a message."""
        if self.fails:
            raise ValueError("nonsense")
        self.taken.append(message)


@pytest.fixture
def end() -> End:
    """Return the stream's end."""
    return End()


@pytest.fixture
async def pair(end: End) -> AsyncIterator[tuple[SocketStream, socket.socket]]:
    """A server's stream and the plain socket at its other end."""
    ours, theirs = socket.socketpair()
    stream = SocketStream(ours, m.decode_up)
    await stream.open(end.take, end.lost.append)
    yield stream, theirs
    stream.abort("the test is over")
    theirs.close()
    await until(lambda: bool(end.lost))


def packed(message: Message) -> bytes:
    data = encode(message)
    return struct.pack("<I", len(data)) + data


async def opened(pair: tuple[Stream, Stream]) -> tuple[Stream, Stream, End, End]:
    """Return a server's and a gateway's stream, opened, and what they received."""
    (server, gateway), above, below = pair, End(), End()
    await server.open(above.take, above.lost.append)
    await gateway.open(below.take, below.lost.append)
    return server, gateway, above, below


@pytest.mark.parametrize("make", PAIRS)
async def test_messages_arrive_in_order(make: object) -> None:
    """Messages of both directions arrive in order, and those before a close before its end."""
    assert callable(make)
    server, gateway, above, below = await opened(make())
    down = [m.Began(), m.Pools(b"x" * 100_000), m.Stop()]
    for message in down:
        server.send(message)
    gateway.send(m.Ready(80))
    await until(lambda: bool(above.taken))
    server.close()
    await until(lambda: bool(below.lost and above.lost))

    assert (below.taken, below.lost) == (down, [CLOSED])
    assert (above.taken, above.lost) == ([m.Ready(80)], [CLOSED])
    assert not server.is_open
    assert not gateway.is_open
    for stream in (server, gateway):
        stream.send(m.Began())
        stream.abort("again")
        stream.close()


@pytest.mark.parametrize("make", PAIRS)
async def test_a_message_that_cannot_be_taken_ends_the_stream(make: object) -> None:
    """A message that raises ends the stream at both ends: skipping it would leave them with
    different state. None after it is received."""
    assert callable(make)
    server, _, above, below = await opened(make())
    below.fails = True
    for _ in range(3):
        server.send(m.Began())
    await until(lambda: bool(below.lost and above.lost))

    assert below.lost == ["ValueError: nonsense"]
    assert len(above.lost) == 1


async def test_memory_delivers_one_message_after_the_other() -> None:
    """A message that is sent while another one is received waits for its end, as on a socket."""
    server, gateway = memory_pair()
    order: list[str] = []

    def below(message: Message) -> None:
        order.append(f"begin {type(message).__name__}")
        if isinstance(message, m.Began):
            server.send(m.Stop())
        order.append(f"end {type(message).__name__}")

    await server.open(lambda _message: None, lambda _reason: None)
    server.send(m.Began())
    await gateway.open(below, lambda _reason: None)

    assert order == ["begin Began", "end Began", "begin Stop", "end Stop"]


async def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """An end that is never opened is given up once too many messages wait for it."""
    monkeypatch.setattr(streams, "QUEUED_MAX", 3)
    above, below = End(), End()
    server, gateway = memory_pair()
    await server.open(above.take, above.lost.append)
    for _ in range(5):
        server.send(m.Began())
    await gateway.open(below.take, below.lost.append)
    await until(lambda: bool(above.lost and below.lost))

    assert (above.lost, below.taken) == (["the other side has fallen behind"], [])


async def test_messages_arrive_whole(pair: tuple[SocketStream, socket.socket], end: End) -> None:
    """Messages arrive whole however the bytes are split."""
    _, theirs = pair
    wanted: list[Message] = [m.Wants(b""), m.Wants(b"x" * 100_000), m.Ready(1)]
    data = b"".join(packed(message) for message in wanted)
    theirs.setblocking(False)
    for first in range(0, len(data), 7001):
        await asyncio.get_running_loop().sock_sendall(theirs, data[first : first + 7001])
    await until(lambda: len(end.taken) == len(wanted))

    assert end.taken == wanted


async def test_a_message_follows_its_length(pair: tuple[SocketStream, socket.socket]) -> None:
    """Each message is preceded by its length."""
    stream, theirs = pair
    stream.send(m.Began())
    theirs.settimeout(60)

    assert await asyncio.to_thread(theirs.recv, 100) == packed(m.Began())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (struct.pack("<I", 2**32 - 1), "over the limit"),
        (struct.pack("<I", 1) + b"\xc1", "DecodeError"),
        (packed(m.Began()), "ValidationError"),
    ],
)
async def test_nonsense_ends_the_stream(
    pair: tuple[SocketStream, socket.socket], end: End, data: bytes, reason: str
) -> None:
    """A length over the limit ends the stream before any memory is reserved, an undecodable
    message too; messages before are received."""
    _, theirs = pair
    theirs.send(packed(m.Ready(1)) + data + packed(m.Ready(2)))
    await until(lambda: bool(end.lost))

    assert reason in end.lost[0]
    assert end.taken == [m.Ready(1)]


async def test_a_peer_that_falls_behind_is_given_up() -> None:
    """A peer that does not read is given up once the buffered bytes exceed the limit."""
    ours, theirs = socket.socketpair()
    lost: list[str] = []
    stream = SocketStream(ours, m.decode_up, behind_max=1000)
    await stream.open(lambda _message: None, lost.append)
    for _ in range(100):
        stream.send(m.Pools(bytes(10_000)))
    await until(lambda: bool(lost))
    theirs.close()

    assert lost == ["the other side has fallen behind"]


async def test_a_message_over_the_limit_is_not_sent(
    pair: tuple[SocketStream, socket.socket], end: End
) -> None:
    """A message over the limit is refused at the sender, where the reason is known."""
    stream, _ = pair
    stream.send(m.Pools(bytes(65 * 2**20)))
    await until(lambda: bool(end.lost))

    assert "over the limit" in end.lost[0]
