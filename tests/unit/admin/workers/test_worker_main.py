"""Tests of a whole gateway process but for its process: the test plays the supervisor."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import ClientSession

from admin.workers import messages as m
from admin.workers.channel import Channel
from admin.workers.port import Port, reserve
from admin.workers.process import MODULE
from admin.workers.shared_counters import CounterReader, CounterWriter
from admin.workers.worker import Worker
from gateway.settings import GatewaySettings
from registry.exchange import Endpoints, PoolEndpoints, decode_demand, encode
from tests.support import nouns
from tests.support.operator import UNTIL_S, until

NAME = "7"


class Supervisor:
    """What a worker hears and says."""

    def __init__(self, port: Port, passing: Path) -> None:
        self.port = port
        self.said: list[m.Up] = []
        self.lost: list[str] = []
        self.channel = Channel(self.take, self.lost.append)
        self._passing = str(passing)

    def take(self, data: bytes) -> None:
        """A worker's message."""
        self.said.append(m.decode_up(data))

    def tell(self, *messages: m.Down) -> None:
        """Say something."""
        for message in messages:
            self.channel.send(m.encode(message))

    def welcome(self, port: int = 0) -> None:
        """Everything that a worker needs: one function, no keys."""
        deployed = nouns.deployed()
        settings = GatewaySettings(port=port or self.port.number, shutdown_s=1.0)
        self.tell(
            m.Welcome(NAME, settings, "json", "ab", self._passing, False),
            m.Functions([m.FunctionNow("default", "digits", [deployed])]),
            m.Began(),
        )

    def pools(self, full: bool = True) -> None:
        """The manager's Endpoints: digits wakes."""
        shown = {"default/digits@1": PoolEndpoints([], "waking", "somebody waits")}
        self.tell(m.Pools(encode(Endpoints(1, full, shown))))

    async def heard(self, kind: type[m.Up]) -> m.Up:
        """The first message of that kind."""
        async with asyncio.timeout(UNTIL_S):
            while True:
                for message in self.said:
                    if isinstance(message, kind):
                        return message
                await asyncio.to_thread(lambda: None)

    async def ready(self) -> None:
        """Have it accept calls."""
        self.welcome()
        await self.heard(m.Wants)
        self.pools()
        await self.heard(m.Ready)

    @property
    def url(self) -> str:
        """Where the worker listens."""
        return f"http://127.0.0.1:{self.port.number}"


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[tuple[Supervisor, asyncio.Task[None]]]:
    """A worker that runs, and its supervisor."""
    port = await reserve("127.0.0.1", 0)
    supervisor = Supervisor(port, tmp_path / "nobody")
    counters = CounterReader(records_max=64)
    cells = CounterWriter(os.dup(counters.descriptor))
    counters.close_descriptor()
    ours, theirs = socket.socketpair()
    await supervisor.channel.open(ours)
    worker = asyncio.create_task(Worker(cells, lambda _form: None).run(theirs))
    yield supervisor, worker
    supervisor.channel.abort("the test is over")
    await worker
    cells.close()
    counters.close()
    port.close()


Running = tuple[Supervisor, asyncio.Task[None]]


async def test_a_worker_listens_when_it_knows_how_pools_are(running: Running) -> None:
    """A warm function must not look cold to the first call: part of the news is not enough."""
    supervisor, _ = running
    supervisor.welcome()
    wants = await supervisor.heard(m.Wants)
    assert isinstance(wants, m.Wants)
    assert decode_demand(wants.demand).worker == NAME
    supervisor.pools(full=False)
    supervisor.tell(m.Reach(1))
    await supervisor.heard(m.Reached)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", supervisor.port.number))
    supervisor.pools()
    await supervisor.heard(m.Ready)

    async with ClientSession() as session, session.get(f"{supervisor.url}/fn/digits") as answer:
        assert (await answer.json())["state"] == "waking"


async def test_what_was_said_before_is_in_force_when_it_is_reached(running: Running) -> None:
    """A function that comes or goes is known by the time the worker says so."""
    supervisor, _ = running
    await supervisor.ready()
    supervisor.tell(m.Functions([m.FunctionNow("default", "digits", [])]), m.Reach(5))
    assert await supervisor.heard(m.Reached) == m.Reached(5)

    async with ClientSession() as session, session.get(f"{supervisor.url}/fn/digits") as answer:
        assert answer.status == 404


async def test_a_worker_that_is_told_to_stop_says_when_all_is_answered(running: Running) -> None:
    """It listens no more, and ends without being asked again."""
    supervisor, worker = running
    await supervisor.ready()
    supervisor.tell(m.Stop())
    await supervisor.heard(m.Finished)
    await worker

    assert isinstance(supervisor.said[-2], m.Beat)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", supervisor.port.number))


async def test_a_worker_without_supervisor_ends(running: Running) -> None:
    """The end of the channel says so, whether it serves already or not."""
    supervisor, worker = running
    await supervisor.ready()
    supervisor.channel.close()
    await worker


async def test_a_worker_without_supervisor_turns_cold_calls_away(running: Running) -> None:
    """At once, one that waits already and one that comes over a connection that is there: nobody
    would start anything for them. Each is the last one of its connection."""
    supervisor, worker = running
    await supervisor.ready()
    url, body = f"{supervisor.url}/fn/digits", {"inputs": {"x": [[0.0] * 4]}}
    head = f"POST /fn/digits HTTP/1.1\r\nHost: 127.0.0.1:{supervisor.port.number}\r\n"
    data = json.dumps(body).encode()
    head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", supervisor.port.number)
    writer.write(head.encode() + data[:10])
    async with ClientSession() as session:
        held = asyncio.create_task(session.post(url, json=body))
        while not await holds(supervisor):
            pass
        supervisor.channel.close()
        async with await held as answer:
            assert answer.status == 503
            assert answer.headers["Retry-After"] == "2"
            assert answer.headers["Connection"] == "close"
            assert (await answer.json())["code"] == "shutting_down"
        # Its head came before the supervisor went, its body comes now.
        writer.write(data[10:])
        late = (await reader.read()).decode()
    await worker
    writer.close()

    assert late.startswith("HTTP/1.1 503 ")
    assert {"Retry-After: 2", "Connection: close"} <= set(late.split("\r\n"))


async def holds(supervisor: Supervisor) -> bool:
    """Whether the worker says that a call waits with it."""
    supervisor.said.clear()
    supervisor.tell(m.Reckon(1))
    said = await supervisor.heard(m.Reckoned)
    return isinstance(said, m.Reckoned) and bool(said.held)


@pytest.mark.parametrize("is_welcome", [True, False])
async def test_a_worker_whose_supervisor_dies_early_ends(
    running: Running, is_welcome: bool
) -> None:
    """It has accepted nothing, so nothing is to be finished."""
    supervisor, worker = running
    if is_welcome:
        supervisor.welcome()
        await supervisor.heard(m.Wants)
    supervisor.channel.close()
    await worker


async def test_a_worker_that_cannot_listen_says_why(running: Running) -> None:
    """Its supervisor tells the operator."""
    supervisor, worker = running
    with socket.create_server(("127.0.0.1", 0)) as taken:
        supervisor.welcome(taken.getsockname()[1])
        await supervisor.heard(m.Wants)
        supervisor.pools()
        failed = await supervisor.heard(m.Failed)
        await worker

    assert isinstance(failed, m.Failed)
    assert "address already in use" in failed.reason


async def test_nonsense_from_the_supervisor_ends_the_worker(running: Running) -> None:
    """A worker that no longer knows what is deployed is replaced."""
    supervisor, worker = running
    supervisor.channel.send(b"\xc1")
    await worker
    await until(lambda: bool(supervisor.lost))


@pytest.mark.slow
def test_a_process_ignores_ctrl_c_and_ends_with_its_supervisor() -> None:
    """SIGINT that came while it was blocked, or later, is not its business."""
    counters = CounterReader(records_max=64)
    ours, theirs = socket.socketpair()
    passed = (theirs.fileno(), counters.descriptor)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    child = subprocess.Popen([sys.executable, "-m", MODULE, *map(str, passed)], pass_fds=passed)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    child.send_signal(signal.SIGINT)
    theirs.close()
    counters.close_descriptor()
    ours.close()

    assert child.wait(UNTIL_S) == 0
    counters.close()


async def test_a_worker_says_where_its_requests_are(running: Running) -> None:
    """Also before it serves: then it has none."""
    supervisor, _ = running
    supervisor.tell(m.Reckon(1))
    assert await supervisor.heard(m.Reckoned) == m.Reckoned(1, 0.0, {}, {}, {}, [])
    supervisor.said.clear()
    await supervisor.ready()
    url = f"{supervisor.url}/fn/digits"
    body = {"inputs": {"x": [[0.0] * 4]}}
    async with ClientSession() as session:
        asking = asyncio.create_task(session.post(url, json=body))
        while not await holds(supervisor):
            pass
        said = await supervisor.heard(m.Reckoned)
        assert isinstance(said, m.Reckoned)
        held = said.held
        asking.cancel()

    assert held == {"default/digits@1": 1}
    assert (said.accepted, sum(said.ended.values())) == (1, 0)
