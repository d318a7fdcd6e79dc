"""Tests of killed, slow, greedy and many clients: the fast path and aiohttp lose no request,
release everything of a client that left, and keep memory bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runtime_image.link.frames import Frame
from tests.support.fronts.client import Client
from tests.support.fronts.exchange import answers, rest
from tests.support.fronts.sites import Served, connect, serving

pytestmark = pytest.mark.slow

GONE_TURNS = 1000
"""Turns of the event loop within which everything of a disconnected client must be released."""


@pytest.fixture(params=["fast", "plain"])
async def served(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Served]:
    """A gateway without keys."""
    async with serving(tmp_path, is_fast=request.param == "fast") as served:
        yield served


def post(body: bytes, ref: bytes = b"digits", length: int | None = None) -> bytes:
    """Return a plain request."""
    size = len(body) if length is None else length
    return (
        b"POST /fn/%s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (ref, size, body)
    )


def bodies(client: Client) -> list[bytes]:
    """Return the bodies of the answers so far; all are right ones."""
    found = answers(bytes(client.received))
    assert {answer.start for answer in found} <= {b"HTTP/1.1 200 OK"}
    return [answer.body for answer in found]


async def nothing_left(served: Served) -> None:
    """Check that nothing of any connection is left."""
    for _ in range(GONE_TURNS):
        if not served.left():
            break
        await asyncio.sleep(0)
    assert served.left() == []


async def is_served(served: Served) -> None:
    """Check that a new client gets its answer."""
    client = await connect(served)
    client.write(post(b"1"))
    await rest(served, client)
    assert bodies(client) == [b"=1"]
    client.leave()


class Held:
    """Requests that the replica keeps until the test releases them."""

    def __init__(self, served: Served) -> None:
        self.replica = served.replicas[0]
        self.replica.answering = self.keep
        self.frames: list[Frame] = []

    def keep(self, frame: Frame) -> None:
        """Keep this request."""
        self.frames.append(frame)

    def release(self) -> None:
        """Answer the kept requests, and later ones at once."""
        self.replica.answering = self.replica.echo
        for frame in self.frames:
            self.replica.echo(frame)


@pytest.mark.parametrize("length", [1000, 100_000])
async def test_a_thousand_clients_killed_in_the_middle_of_uploads(
    served: Served, length: int
) -> None:
    """A thousand clients disconnect at once during uploads of small and large bodies: no replica
    received them, and nothing is left."""
    clients = [await connect(served) for _ in range(1000)]
    for client in clients:
        client.write(post(b"x" * (length // 10), length=length))
    await rest(served, *clients)
    assert served.gateway.gate.active == len(clients)
    for client in clients:
        client.leave()
    await nothing_left(served)

    assert served.got() == []
    await is_served(served)
    await nothing_left(served)


@pytest.mark.parametrize(
    "more", [b"", post(b"2"), post(b"2")[:50], b"nonsense", post(b"x" * 300_000)]
)
async def test_a_client_that_leaves_cancels_its_request(served: Served, more: bytes) -> None:
    """Requests of fifty clients that disconnect are cancelled, even if the next request has already
    arrived on the connection."""
    held = Held(served)
    clients = [await connect(served) for _ in range(50)]
    for client in clients:
        client.write(post(b"1"))
    await rest(served, *clients)
    for client in clients:
        client.write(more)
    await rest(served, *clients)
    assert len(held.frames) == 50
    for client in clients:
        client.leave()
    await nothing_left(served)

    assert held.replica.cancelled == 50
    held.frames.clear()
    held.release()
    await is_served(served)
    await nothing_left(served)


async def test_a_client_that_leaves_a_cold_function_frees_its_place(served: Served) -> None:
    """A held request of a cold function leaves the queue when its client disconnects."""
    clients = [await connect(served) for _ in range(50)]
    for client in clients:
        client.write(post(b'{"inputs": {"x": [[1, 2, 3, 4]]}}', b"cold") + post(b"2"))
    await rest(served, *clients)
    assert served.delivery.loads()["default/cold@1"].queued == 50
    for client in clients:
        client.leave()
    await nothing_left(served)


async def test_slow_readers_of_large_answers_are_waited_for(served: Served) -> None:
    """While a client does not read, no further requests of it are run; afterwards it gets every
    answer in order."""
    body = b"x" * 300_000
    clients = [await connect(served, buffer=64 * 1024) for _ in range(10)]
    for client in clients:
        assert client.transport is not None
        client.transport.pause_reading()
        client.write(b"".join(post(b"%d," % number + body) for number in range(8)))
    await rest(served, *clients)
    assert len(served.got()) <= 3 * len(clients)

    for client in clients:
        assert client.transport is not None
        client.transport.resume_reading()
    await rest(served, *clients)
    for client in clients:
        assert bodies(client) == [b"=%d," % number + body for number in range(8)]
        client.leave()
    await nothing_left(served)


async def test_floods_of_pipelined_requests_are_bounded(served: Served) -> None:
    """Answers for a client that sends and does not read are bounded, and no request is lost or out
    of order."""
    count = 3000
    client = await connect(served, buffer=32 * 1024)
    assert client.transport is not None
    client.transport.pause_reading()
    client.write(b"".join(post(b"%d" % number) for number in range(count)))
    await rest(served, client)
    assert len(served.got()) < 1000

    client.transport.resume_reading()
    await rest(served, client)
    assert bodies(client) == [b"=%d" % number for number in range(count)]
    client.leave()
    await nothing_left(served)


async def test_two_thousand_idle_connections_cost_no_tasks(tmp_path: Path) -> None:
    """Two thousand idle keep-alive connections have no tasks, do not affect others, and can be
    closed."""
    async with serving(tmp_path, is_fast=True) as served:
        tasks = len(asyncio.all_tasks())
        clients = [await connect(served) for _ in range(2000)]
        for client in clients:
            client.write(post(b"1"))
        await rest(served, *clients)
        assert {tuple(bodies(client)) for client in clients} == {(b"=1",)}
        assert len(asyncio.all_tasks()) == tasks
        assert served.front is not None
        assert len(served.front.connections) == len(clients)
        assert served.handed_over == []
        await is_served(served)
        served.front.close()
        await rest(served, *clients)
        assert all(client.is_ended for client in clients)
        await nothing_left(served)


async def test_a_door_that_is_shut_under_load_loses_no_request(served: Served) -> None:
    """When the server stops accepting under load, accepted requests, uploads and pipelined ones are
    answered; later ones are refused with an answer that closes the connection."""
    held = Held(served)
    waiting = [await connect(served) for _ in range(40)]
    uploading = [await connect(served) for _ in range(40)]
    idle = [await connect(served) for _ in range(40)]
    for client in waiting:
        client.write(post(b"1"))
    for client in uploading:
        client.write(post(b"22")[:-1])
    await rest(served, *waiting)
    assert served.gateway.gate.active == 80
    async with asyncio.TaskGroup() as group:
        shutting = group.create_task(served.gateway.gate.close())
        await rest(served, *waiting)
        for client in idle:
            client.write(post(b"3"))
        for client in uploading:
            client.write(b"2")
        await rest(served, *idle)
        assert not shutting.done()
        held.release()
        await shutting
    await rest(served, *waiting, *uploading)
    assert {body for client in waiting for body in bodies(client)} == {b"=1"}
    assert {body for client in uploading for body in bodies(client)} == {b"=22"}
    for client in idle:
        (refused,) = answers(bytes(client.received))
        assert refused.start == b"HTTP/1.1 503 Service Unavailable"
        assert (b"connection", b"close") in refused.headers
        assert client.is_ended
    for client in (*waiting, *uploading, *idle):
        client.leave()
    await nothing_left(served)
