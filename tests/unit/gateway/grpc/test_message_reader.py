"""Tests of the room and the clock of each message's read."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import grpc
import pytest

from gateway.dispatch.held import HeldBytes
from gateway.grpc.message_reader import MessageReader
from gateway.grpc.read_queue import WAIT_S
from gateway.http.reservations import BodyBudget
from registry.errors import BadRequest, BodyEvicted, BodyTimeout, BodyTooLarge, QueueFull

ROOM = 1000
LONG_S = 100.0
PATIENCE_S = 2.0


class Client:
    """A context of gRPC whose message arrives when the test says so."""

    def __init__(self) -> None:
        self.message: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.is_read = asyncio.Event()

    async def read(self) -> Any:
        """Return the message."""
        self.is_read.set()
        return await self.message


class World:
    """A reader with room for two messages, and a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.held = HeldBytes(2 * ROOM)
        self.budget = BodyBudget(self.held, lambda: self.now)
        self.reader = MessageReader(self.budget, ROOM, PATIENCE_S, lambda: self.now)

    async def begin(self, party: str) -> tuple[Client, asyncio.Task[bytes | None]]:
        """Begin a read that has room at once."""
        client = Client()
        task = asyncio.create_task(self.read(client, party))
        await client.is_read.wait()
        return client, task

    def read(self, client: Client, party: str) -> Coroutine[Any, Any, bytes | None]:
        """Read a message of at most 10 bytes."""
        return self.reader.read(client, party, 10, LONG_S)


@pytest.fixture
async def world() -> World:
    """A world in the test's loop."""
    return World()


async def test_a_read_has_room_for_the_largest_message_while_it_lasts(world: World) -> None:
    """The room is reserved before the read, and given back with its end."""
    client, task = await world.begin("a")
    assert world.held.bytes == ROOM
    client.message.set_result(b"message")
    assert await task == b"message"
    assert world.held.bytes == 0


async def test_a_client_that_sends_no_more_has_no_message(world: World) -> None:
    """The end of a stream is no error."""
    client, task = await world.begin("a")
    client.message.set_result(grpc.aio.EOF)
    assert await task is None


@pytest.mark.parametrize(
    ("arrives", "error"),
    [
        pytest.param(b"elevenbytes", BodyTooLarge, id="too large for its method"),
        pytest.param(grpc.aio.UsageError(), BadRequest, id="broken off"),
    ],
)
async def test_a_message_that_cannot_be_taken_gives_its_room_back(
    world: World, arrives: object, error: type[Exception]
) -> None:
    """The error names what was expected."""
    client, task = await world.begin("a")
    if isinstance(arrives, Exception):
        client.message.set_exception(arrives)
    else:
        client.message.set_result(arrives)
    with pytest.raises(error):
        await task
    assert world.held.bytes == 0


async def test_a_message_has_its_time_from_when_it_has_room(world: World) -> None:
    """A client that sends nothing is told so."""
    with pytest.raises(BodyTimeout, match="within"):
        await world.reader.read(Client(), "a", 10, 0.0)
    assert world.held.bytes == 0


async def test_a_read_waits_for_room(world: World) -> None:
    """Nothing is taken of its message before."""
    (first, first_read), (_, other) = await world.begin("a"), await world.begin("a")
    client = Client()
    waiting = asyncio.create_task(world.read(client, "b"))
    await asyncio.sleep(0)
    assert not client.is_read.is_set()
    first.message.set_result(b"")
    client.message.set_result(b"later")
    assert await waiting == b"later"
    assert first_read.done()
    assert not other.done()
    await cancelled(other)


async def test_a_slow_read_is_ended_when_others_wait(world: World) -> None:
    """Half a message does not keep its room from a message that is there."""
    (_, slow), (_, other) = await world.begin("a"), await world.begin("b")
    client = Client()
    client.message.set_result(b"quick")
    waiting = asyncio.create_task(world.read(client, "c"))
    await asyncio.sleep(0)
    world.now = PATIENCE_S
    assert await waiting == b"quick"
    with pytest.raises(BodyEvicted, match="makes others wait"):
        await slow
    assert not other.done()
    await cancelled(other)


async def test_slow_uploads_are_ended_if_they_have_all_room(world: World) -> None:
    """No read of gRPC could be ended for the one that waits."""
    evicted: list[Exception] = []
    world.budget.open(evicted.append).grow(2 * ROOM)
    client = Client()
    client.message.set_result(b"message")
    waiting = asyncio.create_task(world.read(client, "a"))
    await asyncio.sleep(0)
    assert not evicted
    world.now = PATIENCE_S
    assert await waiting == b"message"
    assert len(evicted) == 1


async def test_a_read_without_room_is_refused_after_a_while(world: World) -> None:
    """Bodies of accepted calls are never ended for it."""
    world.held.bytes += 2 * ROOM
    waiting = asyncio.create_task(world.read(Client(), "a"))
    await asyncio.sleep(0)
    world.now = WAIT_S
    with pytest.raises(QueueFull, match="no room") as caught:
        await waiting
    assert caught.value.retry_after_s


async def test_a_slow_read_is_ended_for_uploads_over_http(world: World) -> None:
    """It is one of the uploads among which the slowest is evicted."""
    _, task = await world.begin("a")
    world.now = LONG_S  # the read is the slowest upload
    world.budget.open(lambda _: None).grow(2 * ROOM)
    with pytest.raises(BodyEvicted):
        await task


async def test_a_client_that_leaves_waits_no_more(world: World) -> None:
    """Whether it waits or has just got room, the next one gets that."""
    (first, _), (_, other) = await world.begin("a"), await world.begin("a")
    clients = [Client() for _ in range(3)]
    waiting = [asyncio.create_task(world.read(one, "b")) for one in clients]
    await asyncio.sleep(0)
    waiting[0].cancel()
    first.message.set_result(b"")
    await asyncio.sleep(0)  # the read ends, and the next one has room
    waiting[1].cancel()
    await clients[2].is_read.wait()
    assert world.held.bytes == 2 * ROOM
    await cancelled(waiting[2], other)
    assert world.held.bytes == 0


async def cancelled(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks, and wait for their ends."""
    for one in tasks:
        one.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
