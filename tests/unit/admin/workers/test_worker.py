"""Tests of a gateway process."""

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
from hypothesis import given
from hypothesis import strategies as st

from admin.workers import messages as m
from admin.workers.channel import Channel
from admin.workers.messages import (
    Arrived,
    Beat,
    Estimates,
    FunctionNow,
    Functions,
    KeyNow,
    Wants,
    Woken,
    decode_up,
)
from admin.workers.port import Port, reserve
from admin.workers.process import MODULE
from admin.workers.shared_counters import CounterReader, CounterWriter
from admin.workers.worker import (
    UNKNOWN_REVISION,
    CatalogReplica,
    SupervisorClient,
    Worker,
    apply_function,
)
from gateway.metrics.samples import RateSample
from gateway.observing.errors import Failure
from gateway.settings import GatewaySettings
from registry.catalog import Catalog, Change, Deployed
from registry.exchange import Endpoints, Expected, PoolEndpoints, decode_demand, encode
from registry.model.keys import Key
from registry.openness import Openness
from tests.support import nouns
from tests.support.operator import UNTIL_S, until

NAME = "7"


class Supervisor:
    """Supervisor's end of a worker's channel, with the messages received."""

    def __init__(self, port: Port, passing: Path) -> None:
        self.port = port
        self.said: list[m.Up] = []
        self.lost: list[str] = []
        self.channel = Channel(self.take, self.lost.append)
        self._passing = str(passing)

    def take(self, data: bytes) -> None:
        """Receive a worker's message."""
        self.said.append(m.decode_up(data))

    def tell(self, *messages: m.Down) -> None:
        """Send messages."""
        for message in messages:
            self.channel.send(m.encode(message))

    def welcome(self, port: int = 0) -> None:
        """Send the whole state: one function; callers of this machine need no key."""
        deployed = nouns.deployed()
        settings = GatewaySettings(port=port or self.port.number, shutdown_s=1.0)
        self.tell(
            m.Welcome(NAME, settings, "json", self._passing, False),
            m.OpennessNow(Openness.LOCAL),
            m.Functions([m.FunctionNow("default", "digits", [deployed])]),
            m.Began(),
        )

    def pools(self, full: bool = True) -> None:
        """Send the manager's Endpoints, in which digits is waking."""
        shown = {"default/digits@1": PoolEndpoints([], "waking", "somebody waits")}
        self.tell(m.Pools(encode(Endpoints(1, full, shown))))

    async def heard(self, kind: type[m.Up]) -> m.Up:
        """Return the first message of that kind, once it arrives."""
        async with asyncio.timeout(UNTIL_S):
            while True:
                for message in self.said:
                    if isinstance(message, kind):
                        return message
                await asyncio.to_thread(lambda: None)

    async def ready(self) -> None:
        """Start the worker until it accepts calls."""
        self.welcome()
        await self.heard(m.Wants)
        self.pools()
        await self.heard(m.Ready)

    @property
    def url(self) -> str:
        """Return the worker's URL."""
        return f"http://127.0.0.1:{self.port.number}"


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[tuple[Supervisor, asyncio.Task[None]]]:
    """A running worker and its supervisor."""
    port = await reserve("127.0.0.1", 0)
    supervisor = Supervisor(port, tmp_path / "nobody")
    counters = CounterReader(records_max=64)
    cells = CounterWriter(os.dup(counters.descriptor))
    counters.close_descriptor()
    ours, theirs = socket.socketpair()
    await supervisor.channel.open(ours)
    numbers = CounterReader(records_max=64)
    revisions = CounterWriter(os.dup(numbers.descriptor))
    numbers.close_descriptor()
    worker = asyncio.create_task(Worker(cells, revisions, lambda _form: None).run(theirs))
    yield supervisor, worker
    supervisor.channel.abort("the test is over")
    await worker
    for one in (cells, revisions, counters, numbers):
        one.close()
    port.close()


Running = tuple[Supervisor, asyncio.Task[None]]


async def test_a_worker_listens_when_it_knows_how_pools_are(running: Running) -> None:
    """A worker listens only after a full message about pools: a warm function must not look cold to
    its first call."""
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


async def test_earlier_messages_are_applied_when_a_change_is_reached(running: Running) -> None:
    """A worker reports a change as reached only after it applied all earlier messages."""
    supervisor, _ = running
    await supervisor.ready()
    supervisor.tell(m.Functions([m.FunctionNow("default", "digits", [])]), m.Reach(5))
    assert await supervisor.heard(m.Reached) == m.Reached(5)

    async with ClientSession() as session, session.get(f"{supervisor.url}/fn/digits") as answer:
        assert answer.status == 404


async def test_a_worker_that_is_told_to_stop_says_when_all_is_answered(running: Running) -> None:
    """A worker told to stop closes its port, answers everything, reports Finished and ends."""
    supervisor, worker = running
    await supervisor.ready()
    supervisor.tell(m.Stop())
    await supervisor.heard(m.Finished)
    await worker

    assert isinstance(supervisor.said[-2], m.Beat)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", supervisor.port.number))


async def test_a_worker_without_supervisor_ends(running: Running) -> None:
    """A worker whose channel ends also ends."""
    supervisor, worker = running
    await supervisor.ready()
    supervisor.channel.close()
    await worker


async def test_a_worker_without_supervisor_refuses_cold_calls(running: Running) -> None:
    """A worker without supervisor refuses cold calls at once, since no replica can be started.

    That holds for a held call and for one that arrives over an open connection; each answer closes
    its connection.
    """
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
        # The head of this request arrived before the supervisor ended, its body arrives now.
        writer.write(data[10:])
        late = (await reader.read()).decode()
    await worker
    writer.close()

    assert late.startswith("HTTP/1.1 503 ")
    assert {"Retry-After: 2", "Connection: close"} <= set(late.split("\r\n"))


async def holds(supervisor: Supervisor) -> bool:
    """Return whether the worker reports a held call."""
    supervisor.said.clear()
    supervisor.tell(m.Reckon(1))
    said = await supervisor.heard(m.Reckoned)
    return isinstance(said, m.Reckoned) and bool(said.held)


@pytest.mark.parametrize("is_welcome", [True, False])
async def test_a_worker_whose_supervisor_dies_early_ends(
    running: Running, is_welcome: bool
) -> None:
    """A worker that has accepted no calls ends at once with its supervisor."""
    supervisor, worker = running
    if is_welcome:
        supervisor.welcome()
        await supervisor.heard(m.Wants)
    supervisor.channel.close()
    await worker


async def test_a_worker_that_cannot_listen_says_why(running: Running) -> None:
    """A worker that cannot listen reports the reason to its supervisor."""
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
    """An undecodable message ends the worker, since its state may no longer be right."""
    supervisor, worker = running
    supervisor.channel.send(b"\xc1")
    await worker
    await until(lambda: bool(supervisor.lost))


@pytest.mark.slow
def test_a_process_ignores_ctrl_c_and_ends_with_its_supervisor() -> None:
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
    """A worker reports its ledger and held calls, zero before it serves."""
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


def now(catalog: Catalog, name: str = "digits") -> FunctionNow:
    """Return the supervisor's message about a function."""
    return FunctionNow("default", name, list(catalog.revisions(name)))


def deployed(number: int, current: int | None = None) -> Deployed:
    """Return a revision of digits, with the traffic at `current`."""
    return nouns.deployed("digits", number, current)


def took(seconds: float) -> Expected:
    """Return an estimate."""
    return Expected(seconds, seconds, seconds, 3)


def traffic(catalog: Catalog) -> int:
    """Return the number of the revision with the traffic."""
    return catalog.resolve("digits").revision.number


def changes(catalog: Catalog) -> list[Change]:
    """Return a list that collects all further changes of the catalog."""
    heard: list[Change] = []
    catalog.subscribe(heard.append)
    return heard


def test_a_moved_traffic_is_one_change_with_both_ends() -> None:
    """A moved traffic is a single change with the old and the new revision, which held calls
    follow."""
    source, mirror = Catalog([deployed(1)]), Catalog([deployed(1)])
    heard = changes(mirror)
    source.put(deployed(2))
    apply_function(mirror, now(source))

    moved = [
        (one.before.revision.number, one.after.revision.number)
        for one in heard
        if one.before and one.after and one.before.revision.key != one.after.revision.key
    ]
    assert moved == [(1, 2)]
    assert all(one.before and one.after for one in heard)
    assert mirror.resolve("digits@1").function.revision == 2


def test_a_removed_function_is_told_as_removed() -> None:
    """A removed function is reported as removed once; an unknown one is ignored."""
    mirror = Catalog([deployed(1)])
    heard = changes(mirror)
    for name in ("digits", "digits", "unheard"):
        apply_function(mirror, FunctionNow("default", name, []))

    assert [one.kind for one in heard] == ["remove"]


def test_an_unchanged_function_causes_no_change() -> None:
    """A function that is unchanged causes no change."""
    source, mirror = Catalog([deployed(1)]), Catalog([deployed(1)])
    heard = changes(mirror)
    apply_function(mirror, now(source))

    assert heard == []


ACTIONS = st.one_of(
    st.tuples(st.just("put"), st.integers(1, 4), st.integers(1, 4)),
    st.tuples(st.just("drop"), st.integers(1, 4), st.just(0)),
    st.tuples(st.just("remove"), st.just(0), st.just(0)),
)


@given(st.lists(ACTIONS, max_size=20))
def test_a_mirror_is_as_its_source_after_every_change(actions: list[tuple[str, int, int]]) -> None:
    """The replica equals its source after any deploy, move, trim or removal."""
    source, mirror = Catalog(), Catalog()
    told: list[Change] = []

    def tell(change: Change) -> None:
        apply_function(
            mirror, FunctionNow("default", change.name, list(source.revisions(change.name)))
        )
        told.append(change)

    source.subscribe(tell)
    for kind, number, current in actions:
        have = {one.revision.number for one in source.revisions("digits")}
        if kind == "put" and current in have | {number}:
            source.put(deployed(number, current))
        elif kind == "remove" and have:
            source.remove("digits")
        elif kind == "drop" and number in have and number != traffic(source):
            source.remove_revisions("digits", [number])
        assert mirror.revisions("digits") == source.revisions("digits")
        assert mirror.find("digits") == source.find("digits")


def test_keys_are_let_in_and_out() -> None:
    """Keys are added and removed by their fingerprints."""
    mirror = CatalogReplica()
    key = Key("k", "ab" * 32, ("invoke",))
    mirror.apply(KeyNow(key, True))
    assert mirror.ring.all() == (key,)
    mirror.apply(KeyNow(key, False))

    assert mirror.ring.all() == ()


@pytest.mark.parametrize("left", [[], [deployed(2)]])
def test_estimates_go_with_their_revision(left: list[Deployed]) -> None:
    """The estimates of a revision are dropped with it."""
    mirror = CatalogReplica()
    mirror.apply(Functions([FunctionNow("default", "digits", [deployed(1, 2), deployed(2)])]))
    mirror.apply(Estimates({"default/digits@1": took(1.0), "default/digits@2": took(2.0)}))
    mirror.apply(Estimates({"default/digits@2": took(3.0)}))
    mirror.apply(Functions([FunctionNow("default", "digits", left)]))

    assert mirror.expected == ({"default/digits@2": took(3.0)} if left else {})


def said(sent: list[bytes]) -> list[object]:
    return [decode_up(data) for data in sent]


def test_demand_is_passed_as_it_is() -> None:
    """A demand report is forwarded without being decoded; a lost worker is reported by the end of
    its channel."""
    sent: list[bytes] = []
    supervisor = SupervisorClient(sent.append, {})
    supervisor.receive_demand(b"demand")
    supervisor.worker_lost("7")

    assert said(sent) == [Wants(b"demand")]


def test_estimates_are_those_of_the_moment() -> None:
    """The client reads estimates live, so that later ones count."""
    known: dict[str, Expected] = {}
    supervisor = SupervisorClient(lambda _: None, known)
    assert supervisor.expected("default/f@1") == UNKNOWN_REVISION
    known["default/f@1"] = Expected(1.0, 1.5, 2.0, 3)

    assert supervisor.expected("default/f@1") == Expected(1.0, 1.5, 2.0, 3)


async def test_a_beat_carries_what_was_answered_and_what_failed() -> None:
    """A beat carries rates and failures unchanged, with the number of background tasks."""
    sent: list[bytes] = []
    answered = [RateSample("default", "f", (0, 1))]
    failures = [Failure("default", "f", "f@1", "not_ready", 1.0, "", "", "id")]
    SupervisorClient(sent.append, {}).beat(answered, failures)

    (beat,) = said(sent)
    assert isinstance(beat, Beat)
    assert (beat.answered, beat.failures) == (answered, failures)


async def test_arrivals_are_told_with_the_next_beat_and_once() -> None:
    """Requests are counted per function and reported once, with the next beat."""
    sent: list[bytes] = []
    supervisor = SupervisorClient(sent.append, {})
    supervisor.arrived("default", "f")
    supervisor.arrived("default", "g")
    supervisor.arrived("default", "f")
    supervisor.beat([], [])
    supervisor.beat([], [])

    first, second = said(sent)
    assert isinstance(first, Beat)
    assert isinstance(second, Beat)
    assert first.arrived == [Arrived("default", "f", 2), Arrived("default", "g", 1)]
    assert second.arrived == []
    assert first.tasks >= 1


def test_cold_starts_are_told_at_once() -> None:
    """A cold start is reported at once; the supervisor counts it."""
    sent: list[bytes] = []
    SupervisorClient(sent.append, {}).on_cold_start("default", "f", "r1", {"load": 2.0})

    assert said(sent) == [Woken("default", "f", "r1", {"load": 2.0})]
