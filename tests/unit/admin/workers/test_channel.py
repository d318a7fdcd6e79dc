"""Tests of the channel between the supervisor and one worker."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator

import pytest

from admin.workers.channel import CLOSED, Channel
from tests.support.operator import until


class End:
    """Channel on one end of a socket pair, with the messages it received."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.lost: list[str] = []
        self.fails = False

    def take(self, message: bytes) -> None:
        """Receive a message."""
        if self.fails:
            raise ValueError("nonsense")
        self.taken.append(message)


@pytest.fixture
def end() -> End:
    """Return the channel's end with its callbacks."""
    return End()


@pytest.fixture
async def pair(end: End) -> AsyncIterator[tuple[Channel, socket.socket]]:
    """A channel and the plain socket at its other end."""
    ours, theirs = socket.socketpair()
    channel = Channel(end.take, end.lost.append)
    await channel.open(ours)
    yield channel, theirs
    channel.abort("the test is over")
    theirs.close()
    await until(lambda: bool(end.lost))


def packed(message: bytes) -> bytes:
    return struct.pack("<I", len(message)) + message


async def test_messages_arrive_whole_and_in_order(
    pair: tuple[Channel, socket.socket], end: End
) -> None:
    """Messages arrive whole and in order however the bytes are split; an empty one too."""
    _, theirs = pair
    wanted = [b"one", b"", b"x" * 100_000, b"four"]
    data = b"".join(packed(message) for message in wanted)
    theirs.setblocking(False)
    for first in range(0, len(data), 7001):
        await asyncio.get_running_loop().sock_sendall(theirs, data[first : first + 7001])
    await until(lambda: len(end.taken) == len(wanted))

    assert end.taken == wanted


async def test_a_message_follows_its_length(pair: tuple[Channel, socket.socket], end: End) -> None:
    """Each message is preceded by its length."""
    channel, theirs = pair
    channel.send(b"abc")
    theirs.settimeout(60)

    assert await asyncio.to_thread(theirs.recv, 100) == packed(b"abc")


async def test_the_end_of_the_other_side_is_told_once(
    pair: tuple[Channel, socket.socket], end: End
) -> None:
    """The end of the peer is reported once; sending afterwards is no error."""
    channel, theirs = pair
    theirs.close()
    await until(lambda: bool(end.lost))
    channel.send(b"into the void")

    assert end.lost == [CLOSED]
    assert not channel.is_open


async def test_a_length_over_the_limit_ends_the_channel(
    pair: tuple[Channel, socket.socket], end: End
) -> None:
    """A length over the limit ends the channel before any memory is reserved."""
    _, theirs = pair
    theirs.send(struct.pack("<I", 2**32 - 1))
    await until(lambda: bool(end.lost))

    assert "over the limit" in end.lost[0]
    assert end.taken == []


async def test_a_message_that_cannot_be_taken_ends_the_channel(
    pair: tuple[Channel, socket.socket], end: End
) -> None:
    """A message that raises ends the channel: skipping it would leave both sides with different
    state."""
    _, theirs = pair
    end.fails = True
    theirs.send(packed(b"a"))
    await until(lambda: bool(end.lost))

    assert end.lost == ["ValueError: nonsense"]


async def test_a_peer_that_falls_behind_is_given_up() -> None:
    """A peer that does not read is given up once the buffered bytes exceed the limit."""
    ours, theirs = socket.socketpair()
    lost: list[str] = []
    channel = Channel(lambda _: None, lost.append, behind_max=1000)
    await channel.open(ours)
    for _ in range(100):
        channel.send(bytes(10_000))
    await until(lambda: bool(lost))
    theirs.close()

    assert lost == ["the other side has fallen behind"]


async def test_a_message_over_the_limit_is_not_sent(
    pair: tuple[Channel, socket.socket], end: End
) -> None:
    """A message over the limit is refused at the sender, where the reason is known."""
    channel, _ = pair
    channel.send(bytes(65 * 2**20))
    await until(lambda: bool(end.lost))

    assert "over the limit" in end.lost[0]
