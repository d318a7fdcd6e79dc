"""Tests of the connection between the supervisor and one worker."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator

import pytest

from admin.workers.channel import CLOSED, Channel
from tests.support.operator import until


class End:
    """A channel's far end in the hands of a test, and what the near one took."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.lost: list[str] = []
        self.fails = False

    def take(self, message: bytes) -> None:
        """What the channel calls."""
        if self.fails:
            raise ValueError("nonsense")
        self.taken.append(message)


@pytest.fixture
def end() -> End:
    """The receiver."""
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
    """However the bytes are cut on their way; an empty message is one, too."""
    _, theirs = pair
    wanted = [b"one", b"", b"x" * 100_000, b"four"]
    data = b"".join(packed(message) for message in wanted)
    theirs.setblocking(False)
    for first in range(0, len(data), 7001):
        await asyncio.get_running_loop().sock_sendall(theirs, data[first : first + 7001])
    await until(lambda: len(end.taken) == len(wanted))

    assert end.taken == wanted


async def test_what_is_sent_can_be_read(pair: tuple[Channel, socket.socket], end: End) -> None:
    """Each message behind its length."""
    channel, theirs = pair
    channel.send(b"abc")
    theirs.settimeout(60)

    assert await asyncio.to_thread(theirs.recv, 100) == packed(b"abc")


async def test_the_end_of_the_other_side_is_told_once(
    pair: tuple[Channel, socket.socket], end: End
) -> None:
    """With it gone nothing more is sent, which is no error."""
    channel, theirs = pair
    theirs.close()
    await until(lambda: bool(end.lost))
    channel.send(b"into the void")

    assert end.lost == [CLOSED]
    assert not channel.is_open


async def test_a_length_over_the_limit_ends_the_channel(
    pair: tuple[Channel, socket.socket], end: End
) -> None:
    """A header alone reserves nothing, and is no message."""
    _, theirs = pair
    theirs.send(struct.pack("<I", 2**32 - 1))
    await until(lambda: bool(end.lost))

    assert "over the limit" in end.lost[0]
    assert end.taken == []


async def test_a_message_that_cannot_be_taken_ends_the_channel(
    pair: tuple[Channel, socket.socket], end: End
) -> None:
    """Going on without it, both sides would no longer know the same."""
    _, theirs = pair
    end.fails = True
    theirs.send(packed(b"a"))
    await until(lambda: bool(end.lost))

    assert end.lost == ["ValueError: nonsense"]


async def test_whoever_falls_behind_is_given_up() -> None:
    """Messages that nobody reads are kept up to a limit only."""
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
    """The other side would end the channel anyhow; here the reason is known."""
    channel, _ = pair
    channel.send(bytes(65 * 2**20))
    await until(lambda: bool(end.lost))

    assert "over the limit" in end.lost[0]
