"""The control socket of a host: whose connection it is."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from pool_manager.hosts import control
from pool_manager.hosts.control import DIALS_MAX, STRANGERS_MAX, HostControl
from registry.tasks import Tasks
from runtime_image.contract.link import VERSION, Kind
from runtime_image.link.frames import pack
from tests.support.greetings import HELLO


class Rig:
    """A control socket, and the ends of the replicas."""

    def __init__(self) -> None:
        self.tasks = Tasks("rig")
        self.control = HostControl("gpu2", self.tasks)
        self.ends: list[socket.socket] = []

    def dial(self, **changes: Any) -> socket.socket:
        """Connect and say HELLO."""
        end = self.connect()
        body = json.dumps({**HELLO, **changes}).encode()
        end.sendall(b"".join(pack(Kind.HELLO, 0, body, aux=VERSION)))
        return end

    def connect(self) -> socket.socket:
        """Connect and say nothing."""
        ours, theirs = socket.socketpair()
        ours.settimeout(30)
        self.ends.append(ours)
        self.control.accept(theirs)
        return ours

    async def is_closed(self, end: socket.socket) -> bool:
        """Wait for the end of a connection."""
        return await asyncio.to_thread(end.recv, 100) == b""


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    made.control.set_up(is_up=True)
    yield made
    made.control.close()
    await made.tasks.close()
    for end in made.ends:
        end.close()


async def until(condition: Callable[[], bool]) -> None:
    """Return when what the loop does makes this true."""
    while not condition():  # noqa: ASYNC110 - a HELLO that was read has no event
        await asyncio.sleep(0)


async def test_a_replica_is_identified_by_its_token(rig: Rig) -> None:
    """Each gets its own connections, with their HELLO; an unknown token is refused."""
    one, two = rig.control.register("one", "a" * 64), rig.control.register("two", "b" * 64)

    stranger = rig.dial(token="a" * 63)
    rig.dial(token="b" * 64, dial=7)
    rig.dial(token="a" * 64, dial=3)

    for connections, dial in ((one, 3), (two, 7)):
        sock, hello = await connections.accept()
        sock.close()
        assert hello is not None
        assert hello["dial"] == dial
    assert await rig.is_closed(stranger)


@pytest.mark.parametrize("token", ["", "\udcff", "é", "a" * 65])
async def test_malformed_tokens_are_refused(rig: Rig, token: str) -> None:
    """Whatever is no token of a replica ends the connection."""
    rig.control.register("one", "a" * 64)

    assert await rig.is_closed(rig.dial(token=token))


async def test_anything_but_a_greeting_ends_the_connection(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other programs, other versions, and those who say nothing in time."""
    monkeypatch.setattr(control, "HELLO_S", 0.05)
    foreign = rig.connect()
    foreign.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 10)

    assert await rig.is_closed(foreign)
    assert await rig.is_closed(rig.dial(version=VERSION - 1))
    assert await rig.is_closed(rig.connect())


async def test_a_flood_of_strangers_does_not_fill_the_log(rig: Rig) -> None:
    """The first, second, fourth, ... refusal is logged with the number so far."""
    with capture_logs() as logged:
        for _ in range(9):
            assert await rig.is_closed(rig.dial(token="b" * 64))

    assert [line["count"] for line in logged] == [1, 2, 4, 8]


async def test_a_flood_of_silent_connections_keeps_no_replica_out(rig: Rig) -> None:
    """The oldest silent connection goes for a new one."""
    connections = rig.control.register("one", "a" * 64)
    silent = [rig.connect() for _ in range(STRANGERS_MAX)]

    rig.dial(token="a" * 64)

    sock, _ = await connections.accept()
    sock.close()
    assert await rig.is_closed(silent[0])


async def test_the_newest_connections_of_a_replica_wait(rig: Rig) -> None:
    """More than can wait close the oldest, as after a break when all dials arrive at once."""
    connections = rig.control.register("one", "a" * 64)
    for dial in range(1, DIALS_MAX + 3):
        end = rig.dial(token="a" * 64, dial=dial)
        await until(lambda: not rig.control._strangers)
        assert end

    sock, hello = await connections.accept()
    sock.close()
    assert hello is not None
    assert hello["dial"] == 3
    connections.close()
    assert await rig.is_closed(rig.ends[-1])
    assert await rig.is_closed(rig.dial(token="a" * 64))


async def test_an_earlier_registration_cannot_forget_a_later_one(rig: Rig) -> None:
    """A replica that is adopted again keeps its connections."""
    first = rig.control.register("one", "a" * 64)
    second = rig.control.register("one", "b" * 64)

    first.close()
    rig.dial(token="b" * 64)

    sock, _ = await second.accept()
    sock.close()


async def test_no_replica_is_answered_before_its_host_is_up(rig: Rig) -> None:
    """An answer would prolong its lease, while the time goes on after which its host is gone and
    another replica may be started. The agent is answered: joining needs its report."""
    rig.control.set_up(is_up=False)
    connections = rig.control.register("one", "a" * 64)
    agent = rig.control.register("agent", "b" * 64, is_agent=True)
    rig.dial(token="a" * 64)
    rig.dial(token="b" * 64)
    accepting = asyncio.create_task(connections.accept())

    (await agent.accept())[0].close()
    await until(lambda: bool(connections._waiting))
    await asyncio.sleep(0)
    assert not accepting.done()

    rig.control.set_up(is_up=True)
    (await accepting)[0].close()


async def test_a_host_goes_up_and_down(rig: Rig) -> None:
    """Connections know whether their host can be reached; after the end none is taken."""
    connections = rig.control.register("one", "a" * 64)
    rig.control.set_up(is_up=False)
    waiting = asyncio.create_task(connections.wait_up())
    await asyncio.sleep(0)
    assert not waiting.done()
    rig.control.set_up(is_up=True)
    assert not await waiting
    assert await connections.wait_up()

    rig.control.close()
    assert await rig.is_closed(rig.connect())
