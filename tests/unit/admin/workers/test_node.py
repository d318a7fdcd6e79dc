"""Tests of a gateway, from its first message to its end, in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientConnectionError, ClientSession

from admin.workers import messages as m
from admin.workers import node
from admin.workers.port import Port, reserve
from admin.workers.process import DOOR_BYTE, MODULE
from admin.workers.shared_counters import CounterReader, open_writer
from admin.workers.stream import SocketStream
from admin.workers.worker import ProxiedPlace, run
from gateway.metrics.ledger import Balance
from gateway.settings import GatewaySettings
from registry.exchange import Endpoints, PoolEndpoints, decode_demand, encode
from registry.model.keys import Key
from registry.openness import Openness
from tests.support import nouns
from tests.support.operator import UNTIL_S, until

NAME = "7"
POOL = "default/digits@1"


class Prepared(ProxiedPlace):
    """The test's process, which is not prepared for gateways."""

    def tasks(self) -> int:
        """Return a number."""
        return 3


class Server:
    """Server's end of a gateway's streams, with the messages received. `answers`: whether it says
    that activities are counted."""

    def __init__(self, port: Port, passing: Path) -> None:
        self.port = port
        self.said: list[m.Up] = []
        self.lost: list[str] = []
        self.door, self.theirs = socket.socketpair()
        self.stream: SocketStream
        self._passing = str(passing)
        self.answers = True

    async def connect(self, version: int = m.VERSION) -> None:
        """Give the gateway a stream, and say Hello."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self.door, [DOOR_BYTE], [theirs.fileno()])
        self.stream = SocketStream(ours, m.decode_up)
        await self.stream.open(self.hear, self.lost.append)
        self.tell(m.Hello(version, "9.9"))

    def hear(self, message: Any) -> None:
        """Receive a message."""
        if not isinstance(message, m.Beat):
            self.said.append(message)
        if isinstance(message, m.Ask) and self.answers:
            self.tell(m.Answer(message.number))

    def activities(self) -> list[m.Activity]:
        """Return the activities that came."""
        asked = [one.question for one in self.said if isinstance(one, m.Ask)]
        return [one for one in asked if isinstance(one, m.Activity)]

    def tell(self, *messages: m.Down) -> None:
        """Send messages."""
        for message in messages:
            self.stream.send(message)

    def welcome(self, port: int = 0) -> None:
        """Send the whole state: one function; callers of this machine need no key."""
        deployed = nouns.deployed()
        settings = GatewaySettings(port=port or self.port.number, shutdown_s=1.0)
        self.tell(
            m.Welcome(NAME, settings, "json", self._passing, False, True),
            m.Keys([], [], Openness.LOCAL, is_whole=True),
            m.Functions([m.FunctionNow("default", "digits", [deployed])], [("default", "digits")]),
            m.Began(),
        )

    def pools(self, full: bool = True) -> None:
        """Send the manager's Endpoints, in which digits is waking."""
        shown = {POOL: PoolEndpoints([], "waking", "somebody waits")}
        self.tell(m.Pools(encode(Endpoints(1, full, shown))))

    async def heard(self, kind: type[m.Up]) -> Any:
        """Return the first message of that kind, once it arrives."""
        async with asyncio.timeout(UNTIL_S):
            while True:
                for message in self.said:
                    if isinstance(message, kind):
                        return message
                await asyncio.to_thread(lambda: None)

    async def ready(self) -> None:
        """Start the gateway until it accepts calls."""
        self.welcome()
        await self.heard(m.Wants)
        self.pools()
        await self.heard(m.Ready)

    async def asked(self, question: m.AnyQuestion) -> Any:
        """Return the answer of the gateway."""
        self.said.clear()
        self.tell(m.Ask(1, question))
        answer = await self.heard(m.Answer)
        return m.decode_answer(type(question), answer.value)

    def die(self) -> None:
        """End the door and the stream, as the death of the process does."""
        self.door.close()
        self.stream.close()

    @property
    def url(self) -> str:
        """Return the gateway's URL."""
        return f"http://127.0.0.1:{self.port.number}"


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    """A running gateway and its server, connected."""
    port = await reserve("127.0.0.1", 0)
    server = Server(port, tmp_path / "nobody")
    counters = CounterReader(records_max=64)
    cells = open_writer(os.dup(counters.descriptor))
    counters.close_descriptor()
    numbers = CounterReader(records_max=64)
    revisions = open_writer(os.dup(numbers.descriptor))
    numbers.close_descriptor()
    gateway = asyncio.create_task(run(server.theirs, cells, revisions, Prepared()))
    await server.connect()
    yield server, gateway
    server.die()
    await gateway
    await until(lambda: bool(server.lost))
    for one in (cells, revisions, counters, numbers):
        one.close()
    port.close()


Running = tuple[Server, asyncio.Task[None]]


async def test_a_worker_listens_when_it_knows_how_pools_are(running: Running) -> None:
    """A worker listens only after a full message about pools: a warm function must not look cold to
    its first call."""
    server, _ = running
    server.welcome()
    wants = await server.heard(m.Wants)
    assert decode_demand(wants.demand).worker == NAME
    server.pools(full=False)
    server.tell(m.Ask(1, m.Applied()))
    await server.heard(m.Answer)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port.number))
    server.pools()
    await server.heard(m.Ready)

    async with ClientSession() as session, session.get(f"{server.url}/fn/digits") as answer:
        assert (await answer.json())["state"] == "waking"


async def test_earlier_messages_are_applied_when_a_change_is_reached(running: Running) -> None:
    """A worker reports a change as reached only after it applied all earlier messages."""
    server, _ = running
    await server.ready()
    server.tell(m.Functions([m.FunctionNow("default", "digits", [])]))
    assert await server.asked(m.Applied()) is None

    async with ClientSession() as session, session.get(f"{server.url}/fn/digits") as answer:
        assert answer.status == 404


async def test_a_worker_that_is_told_to_stop_says_when_all_is_answered(running: Running) -> None:
    """A worker told to stop closes its port, answers everything, reports Finished and ends."""
    server, worker = running
    await server.ready()
    server.tell(m.Stop())
    await server.heard(m.Finished)
    await worker

    assert isinstance(server.said[-2], m.Ask)
    assert server.activities()[-1].tasks == 3
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port.number))


async def test_a_worker_without_server_ends(running: Running) -> None:
    """A worker whose channel ends also ends."""
    server, worker = running
    await server.ready()
    server.die()
    await worker


async def test_a_worker_without_server_refuses_cold_calls(running: Running) -> None:
    """A worker without server refuses cold calls at once, since no replica can be started.

    That holds for a held call and for one that arrives over an open connection; each answer closes
    its connection.
    """
    server, worker = running
    await server.ready()
    url, body = f"{server.url}/fn/digits", {"inputs": {"x": [[0.0] * 4]}}
    head = f"POST /fn/digits HTTP/1.1\r\nHost: 127.0.0.1:{server.port.number}\r\n"
    data = json.dumps(body).encode()
    head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port.number)
    writer.write(head.encode() + data[:10])
    async with ClientSession() as session:
        held = asyncio.create_task(session.post(url, json=body))
        while not await holds(server):
            pass
        server.die()
        async with await held as answer:
            assert answer.status == 503
            assert answer.headers["Retry-After"] == "2"
            assert answer.headers["Connection"] == "close"
            assert (await answer.json())["code"] == "shutting_down"
        # The head of this request arrived before the server ended, its body arrives now.
        writer.write(data[10:])
        late = (await reader.read()).decode()
    await worker
    writer.close()

    assert late.startswith("HTTP/1.1 503 ")
    assert {"Retry-After: 2", "Connection: close"} <= set(late.split("\r\n"))


async def holds(server: Server) -> bool:
    """Return whether the worker reports a held call."""
    return bool((await server.asked(m.ReadLedger())).balance.held)


@pytest.mark.parametrize("is_welcome", [True, False])
async def test_a_worker_whose_server_dies_early_ends(running: Running, is_welcome: bool) -> None:
    """A worker that has accepted no calls ends at once with its server."""
    server, worker = running
    if is_welcome:
        server.welcome()
        await server.heard(m.Wants)
    server.die()
    await worker


async def test_a_worker_that_cannot_listen_says_why(running: Running) -> None:
    """A worker that cannot listen reports the reason to its server."""
    server, worker = running
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server.welcome(taken.getsockname()[1])
        await server.heard(m.Wants)
        server.pools()
        failed = await server.heard(m.Failed)
        await worker

    assert "address already in use" in failed.reason
    assert failed.errno == errno.EADDRINUSE


@pytest.mark.parametrize(
    "message", [m.Hello(m.VERSION, "2"), m.Ask(1, m.UnloadModel("default", "f"))]
)
async def test_nonsense_from_the_server_ends_the_stream(running: Running, message: m.Down) -> None:
    """A message that breaks the protocol ends the stream: the copy of the state may no longer be
    right. The next stream makes it right."""
    server, _ = running
    await server.ready()
    server.tell(message)
    await until(lambda: bool(server.lost))
    await server.connect()
    server.welcome()

    assert await server.asked(m.Applied()) is None


async def test_the_first_message_is_hello(running: Running) -> None:
    """Anything before Hello ends the stream, and the gateway waits for the next one."""
    server, _ = running
    server.stream.close()
    ours, theirs = socket.socketpair()
    with theirs:
        socket.send_fds(server.door, [DOOR_BYTE], [theirs.fileno()])
    server.lost.clear()
    server.stream = SocketStream(ours, m.decode_up)
    await server.stream.open(server.hear, server.lost.append)
    server.tell(m.Began())
    await until(lambda: bool(server.lost))
    await server.connect()

    await server.ready()


async def test_a_gateway_that_comes_back_has_everything_anew(running: Running) -> None:
    """While its stream is broken a gateway answers and keeps counting. On the next stream it says
    nothing before it has the whole state; then it reports its demand and that it accepts calls, and
    no key that was removed meanwhile is accepted."""
    server, _ = running
    await server.ready()
    key = Key("k", "ab" * 32, ("invoke",))
    server.tell(m.Keys([key], [], Openness.CLOSED))
    async with ClientSession() as session:
        async with session.get(f"{server.url}/fn/digits") as answer:
            assert answer.status == 401
        server.stream.abort("broken")
        await until(lambda: bool(server.lost))
        async with session.get(f"{server.url}/healthz") as answer:
            assert answer.status == 200
        server.said.clear()
        await server.connect()
        await server.heard(m.Hello)
        server.tell(m.Keys([], [], Openness.LOCAL, is_whole=True))
        server.tell(m.Ask(1, m.Applied()))
        await server.heard(m.Answer)
        assert [type(one) for one in server.said] == [m.Hello, m.Answer]
        server.welcome()
        wants = await server.heard(m.Wants)
        assert decode_demand(wants.demand).full
        assert await server.heard(m.Ready) == m.Ready(server.port.number)
        server.pools()
        async with session.get(f"{server.url}/fn/digits") as answer:
            assert (await answer.json())["state"] == "waking"


async def test_a_stream_that_ends_before_a_gateway_is_ready_costs_nothing(running: Running) -> None:
    """A gateway whose stream broke while it opened its port says on the next one that it accepts
    calls: one that is not known to do so would be killed."""
    server, _ = running
    server.welcome()
    await server.heard(m.Wants)
    server.pools()
    server.stream.close()
    await until(lambda: bool(server.lost))
    async with ClientSession() as session:
        while True:
            with contextlib.suppress(ClientConnectionError):
                async with session.get(f"{server.url}/healthz") as answer:
                    assert answer.status == 200
                    break
    server.said.clear()
    await server.connect()
    server.welcome()

    assert await server.heard(m.Ready) == m.Ready(server.port.number)


async def test_a_report_that_fails_is_not_the_last_one(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A defect in making one report leaves its counts to the next one."""
    failures = [RuntimeError("a defect")]

    def tasks(_place: Prepared) -> int:
        if failures:
            raise failures.pop()
        return 3

    monkeypatch.setattr(node, "REPORT_S", 0.01)
    monkeypatch.setattr(Prepared, "tasks", tasks)
    server, _ = running
    await server.ready()
    await until(lambda: bool(server.activities()))

    assert (server.activities()[0].number, failures) == (1, [])


async def test_a_report_whose_answer_is_lost_is_sent_again(running: Running) -> None:
    """What a gateway reports stays until it is answered: it comes again on the next stream, under
    its number and unchanged, before what has happened since."""
    server, gateway = running
    await server.ready()
    server.answers = False
    async with ClientSession() as session:
        async with session.post(f"{server.url}/fn/digits", data=b"{}") as answer:
            assert answer.status >= 400
        await until(lambda: bool(server.activities()))
        (lost,) = server.activities()
        server.stream.abort("broken")
        await until(lambda: bool(server.lost))
        server.said.clear()
        server.answers = True
        await server.connect()
        server.welcome()
        server.pools()
        await until(lambda: bool(server.activities()))
    server.tell(m.Stop())
    await server.heard(m.Finished)
    await gateway

    found = server.activities()
    assert found[0] == lost
    assert [one.number for one in found] == list(range(lost.number, lost.number + len(found)))


@pytest.mark.parametrize("is_serving", [True, False])
async def test_versions_that_differ_part(running: Running, is_serving: bool) -> None:
    """A gateway whose server speaks another version accepts no more calls, finishes and ends, as
    if the server were gone; it says nothing but Hello."""
    server, gateway = running
    if is_serving:
        await server.ready()
    server.stream.close()
    await until(lambda: bool(server.lost))
    server.said.clear()
    await server.connect(m.VERSION + 1)
    await gateway

    await until(lambda: len(server.lost) == 2)
    assert [type(one) for one in server.said] == [m.Hello]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port.number))


@pytest.mark.slow
def test_a_process_ignores_ctrl_c_and_ends_with_its_server() -> None:
    """The process ignores SIGINT, even one that arrived while it was blocked, and ends with its
    channel."""
    counters, numbers = CounterReader(records_max=64), CounterReader(records_max=64)
    ours, theirs = socket.socketpair()
    passed = (theirs.fileno(), counters.descriptor, numbers.descriptor)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    child = subprocess.Popen([sys.executable, "-m", MODULE, *map(str, passed)], pass_fds=passed)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    child.send_signal(signal.SIGINT)
    theirs.close()
    counters.close_descriptor()
    numbers.close_descriptor()
    ours.close()

    assert child.wait(UNTIL_S) == 0
    counters.close()


async def test_a_worker_says_where_its_requests_are(running: Running) -> None:
    """A worker reports its ledger and held calls, zero before it serves, and who is connected."""
    server, _ = running
    assert await server.asked(m.ReadLedger()) == m.LedgerNow(Balance(), [])
    nobody = m.ListConnections("default", "digits")
    assert (await server.asked(nobody)).counting == 0
    assert await server.asked(m.Report()) is None
    server.said.clear()
    await server.ready()
    assert (await server.asked(nobody)).counting == 0
    url = f"{server.url}/fn/digits"
    body = {"inputs": {"x": [[0.0] * 4]}}
    async with ClientSession() as session:
        asking = asyncio.create_task(session.post(url, json=body))
        while not await holds(server):
            pass
        found = (await server.asked(m.ReadLedger())).balance
        await server.asked(m.Report())
        wants = [one for one in server.said if isinstance(one, m.Wants)]
        asking.cancel()

    assert found.held == {POOL: 1}
    assert (found.accepted, sum(found.ended.values())) == (1, 0)
    assert decode_demand(wants[-1].demand).revisions[POOL].queued == 1
