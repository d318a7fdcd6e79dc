"""The manager's end of the control link of a replica on another host."""

from __future__ import annotations

import asyncio
import json
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from pool_manager.core import events
from pool_manager.replicas import control
from pool_manager.replicas.control import DIALS_AT_ONCE, REDIAL_PING_S, Control
from registry.tasks import Tasks
from runtime_image.contract.agent import HostReport, to_json
from runtime_image.contract.control import Hello
from runtime_image.contract.enrolment import Certificate
from runtime_image.contract.link import RUN_COUNT, Kind
from runtime_image.contract.model import ModelSpec
from runtime_image.link.run_counts import RunCount
from tests.support.blocking import BlockingLink
from tests.support.greetings import HELLO, bind_request

ID = "aaaa0001"
POOL = "default/digits@1"
LOADED = {"limit": 4, "marks_started": False, "memory_mib": 40.5, "phases": {"load": 2.0}}
REPORT = HostReport(1, None, "no driver", True, (), 1.0, 1.0, 2, 3.0, 4.0, 5.0, 6.0)


class Tunnel:
    """Connections of a host that the test lets go down; a `ControlConnections`."""

    redials = True

    def __init__(self) -> None:
        self.queue: asyncio.Queue[tuple[socket.socket, Hello | None]] = asyncio.Queue()
        self.up = asyncio.Event()
        self.up.set()
        self.waited = asyncio.Event()
        self.certificates: deque[Certificate] = deque()
        self.is_closed = False

    async def accept(self) -> tuple[socket.socket, Hello | None]:
        return await self.queue.get()

    async def wait_up(self) -> bool:
        was_up = self.up.is_set()
        self.waited.set()
        await self.up.wait()
        return was_up

    def renewal(self) -> Certificate | None:
        return self.certificates.popleft() if self.certificates else None

    def close(self) -> None:
        self.is_closed = True


class Rig:
    """A control link over a tunnel; what it emits is kept."""

    def __init__(self, **arguments: Any) -> None:
        self.tunnel = Tunnel()
        self.events: asyncio.Queue[events.Event] = asyncio.Queue()
        self.lost: asyncio.Future[tuple[str, bool]] = asyncio.get_running_loop().create_future()
        self.pongs: list[int] = []
        self.runs: list[RunCount] = []
        self.reports: list[HostReport] = []
        self._tasks = Tasks("rig")
        self._links: list[BlockingLink] = []
        self.control = Control(ID, "secret", self.tunnel, None, self, **arguments)

    def on_event(self, event: events.Event) -> None:
        self.events.put_nowait(event)

    def on_pong(self, id: str, busy_ms: int, runs: Sequence[RunCount]) -> None:
        self.pongs.append(busy_ms)
        self.runs += runs

    def on_link_lost(self, id: str, reason: str, *, is_its_fault: bool) -> None:
        self.lost.set_result((reason, is_its_fault))

    def open(self, ping_s: float = 60.0) -> None:
        self.control.open(self._tasks, ping_s)

    def dial(self, number: int, **changes: Any) -> BlockingLink:
        """Arrive with a HELLO that was read already."""
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        hello = cast("Hello", {**HELLO, "dial": number, **changes})
        self.tunnel.queue.put_nowait((theirs, hello))
        link = BlockingLink(ours)
        ours.settimeout(30)
        self._links.append(link)
        return link

    async def greeted(self, number: int = 1, **changes: Any) -> BlockingLink:
        """A connection that was accepted, after WELCOME and the first PING."""
        link = self.dial(number, **changes)
        self.welcome = await read(link, Kind.WELCOME)
        assert isinstance(await self.events.get(), events.Greeted)
        assert (await read(link, Kind.PING)).aux == 0
        return link

    async def close(self) -> None:
        self.control.close()
        await self._tasks.close()
        for link in self._links:
            link.close()


@pytest.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr(control, "RELINK_STEP_S", 0.01)
    monkeypatch.setattr(control, "RELINK_S", 0.05)
    monkeypatch.setattr(control, "DIAL_S", 0.01)
    made = Rig(bound=POOL)
    made.open()
    yield made
    await made.close()


async def read(link: BlockingLink, kind: Kind) -> Any:
    return await asyncio.to_thread(link.next, kind)


async def until(condition: Callable[[], object]) -> None:
    """Return when what the link has changed makes this true."""
    while not condition():  # noqa: ASYNC110 - counts have no event
        await asyncio.sleep(0)


async def has_ended(link: BlockingLink) -> bool:
    """Whether a connection ends."""
    try:
        await asyncio.to_thread(link.last)
    except (EOFError, ConnectionResetError):
        return True
    return False


async def test_a_remote_replica_gets_the_ping_interval(rig: Rig) -> None:
    """WELCOME names the interval of PINGs, at most REDIAL_PING_S; no descriptor comes with it."""
    await rig.greeted()

    assert rig.welcome.aux == REDIAL_PING_S * 1e3


async def test_a_certificate_is_sent_when_it_is_due(rig: Rig) -> None:
    """After the greeting, and with a PING."""
    issued: list[Certificate] = [{"certificate": f"c{n}", "key": f"k{n}"} for n in range(2)]
    rig.tunnel.certificates.append(issued[0])
    link = rig.dial(1)
    await read(link, Kind.WELCOME)
    first = await read(link, Kind.CERTIFICATE)
    await read(link, Kind.PING)
    rig.tunnel.certificates.append(issued[1])
    rig.control._ping()
    await read(link, Kind.PING)
    second = await read(link, Kind.CERTIFICATE)

    assert [json.loads(one.body) for one in (first, second)] == issued


async def test_pings_acknowledge_pongs(rig: Rig) -> None:
    """Each PING names the PONGs received on its link; a new link counts anew."""
    link = await rig.greeted()
    link.send(Kind.PONG, aux=5)
    rig.control.ask()
    await until(lambda: rig.pongs == [5])
    rig.control.ask()

    assert [(await read(link, Kind.PING)).aux for _ in range(2)] == [0, 1]
    await rig.greeted(2)


async def test_a_broken_link_is_no_loss(rig: Rig) -> None:
    """A replica that dials again in time goes on: greeted again, loaded once, no runs twice."""
    link = await rig.greeted()
    link.send(Kind.LOADED, body=json.dumps(LOADED).encode())
    assert isinstance(await rig.events.get(), events.Loaded)
    link.send(Kind.PONG, aux=1, body=RUN_COUNT.pack(1, 3, 1, 1, 1))
    await until(lambda: rig.runs)

    link.close()
    again = await rig.greeted(2, loaded=LOADED)
    again.send(Kind.PONG, aux=2, body=RUN_COUNT.pack(1, 4, 2, 2, 2))
    await until(lambda: len(rig.pongs) == 2)

    assert rig.runs == [RunCount(1, 3, 1, 1, 1), RunCount(1, 1, 1, 1, 1)]
    assert rig.events.empty()
    assert not rig.lost.done()


async def test_a_silent_replica_is_cut_off_and_may_dial_again(rig: Rig) -> None:
    """Unanswered PINGs end the connection, and the replica has time for another one."""
    link = await rig.greeted()

    for _ in range(4):
        rig.control._ping()
    assert await has_ended(link)
    await rig.greeted(2)

    assert not rig.lost.done()
    assert rig.control.is_answering


async def test_a_replica_that_does_not_dial_is_lost(rig: Rig) -> None:
    """With its host up, the loss is its fault."""
    link = await rig.greeted()
    link.close()

    reason, is_its_fault = await rig.lost

    assert reason.startswith("closed by the other side; no new connection for 0.05 s")
    assert is_its_fault
    assert not rig.control.is_answering


async def test_only_time_with_the_host_up_counts(rig: Rig) -> None:
    """While the host is down nothing is lost; then the replica has time to dial."""
    link = await rig.greeted()
    rig.tunnel.up.clear()
    link.close()
    await rig.tunnel.waited.wait()
    was_lost = rig.lost.done()
    rig.tunnel.up.set()

    _, is_its_fault = await rig.lost

    assert (was_lost, is_its_fault) == (False, False)


async def test_the_newest_dial_wins(rig: Rig) -> None:
    """Late connections of earlier dials are closed, and a newer one ends the present one."""
    link = await rig.greeted(5)
    stale = [rig.dial(number) for number in (1, 4, 5)]
    assert all([await has_ended(one) for one in stale])
    newer = await rig.greeted(6)

    assert await has_ended(link)
    newer.send(Kind.PONG, aux=7)
    await until(lambda: rig.pongs == [7])
    assert not rig.lost.done()


async def test_frames_of_a_replaced_connection_do_not_count(rig: Rig) -> None:
    """What an older connection still sends is ignored."""
    await rig.greeted(1)
    await rig.greeted(2)

    rig.control._on_frame(1, cast("Any", None))
    rig.control._on_lost(1, "late")

    assert rig.events.empty()
    assert rig.control.is_answering


@pytest.mark.parametrize(
    "changes",
    [
        {"bound": "default/other@1"},
        {"bound": "default/other@1", "loaded": LOADED},
        {"bound": "", "loaded": LOADED},
        {},
        {"loaded": {**LOADED, "limit": -1}},
        {"token": "wrong", "loaded": LOADED},
    ],
)
async def test_a_contradiction_is_refused(rig: Rig, changes: dict[str, Any]) -> None:
    """A replica that has loaded cannot claim another model, or none, or an absurd one."""
    link = await rig.greeted()
    link.send(Kind.LOADED, body=json.dumps(LOADED).encode())
    assert isinstance(await rig.events.get(), events.Loaded)

    with capture_logs() as logs:
        assert await has_ended(rig.dial(2, **changes))

    assert [line["event"] for line in logs] == ["a greeting was refused"]
    assert rig.events.empty()
    link.send(Kind.PONG, aux=1)
    await until(lambda: rig.pongs == [1])


async def test_a_standby_cannot_claim_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that was given no model has none."""
    rig = Rig(bound="")
    rig.open()
    for changes in ({"bound": POOL}, {"bound": "", "loaded": LOADED}):
        assert await has_ended(rig.dial(1, **changes))
    await rig.greeted(1, bound="")

    assert rig.events.empty()
    await rig.close()


async def test_a_flood_of_dials_is_slowed_and_not_logged(rig: Rig) -> None:
    """A flood is paced, costs few lines, and ends with the newest connection."""
    count = 3 * DIALS_AT_ONCE
    with capture_logs() as logs:
        for _ in range(count):
            rig.dial(1, token="wrong")
        await rig.greeted(2)

    assert [line["count"] for line in logs] == [1, 2, 4, 8, 16, 32]


async def test_commands_are_repeated_by_the_receiver_alone(rig: Rig) -> None:
    """A command that is sent when the replica greets again is sent once, and answered once."""
    link = await rig.greeted(loaded=LOADED)
    assert isinstance(await rig.events.get(), events.Loaded)
    rig.control.quiesce()
    rig.control.resume()
    link.close()
    again = await rig.greeted(2, loaded=LOADED)
    rig.control.resume()
    rig.control.ask()

    assert (await asyncio.to_thread(again.next)).kind is Kind.RESUME
    assert (await asyncio.to_thread(again.next)).kind is Kind.PING
    again.send(Kind.NOT_IDLE, aux=200)
    assert await rig.events.get() == events.NotIdle(ID, 0.2)


async def test_a_refutation_during_a_break_is_news(rig: Rig) -> None:
    """BATCHING_OFF that was lost with its link comes with the next HELLO."""
    link = await rig.greeted(loaded=LOADED)
    assert isinstance(await rig.events.get(), events.Loaded)
    link.close()

    await rig.greeted(2, loaded={**LOADED, "batching_off": "rows mix"})

    assert await rig.events.get() == events.BatchingRefuted(ID, "rows mix")


async def test_a_model_loaded_during_a_break_is_news(rig: Rig) -> None:
    """LOADED that was lost with its link comes with the next HELLO."""
    link = await rig.greeted()
    rig.control.bind(bind_request(ModelSpec("digits@1")))
    link.close()

    await rig.greeted(2, loaded=LOADED)

    assert isinstance(await rig.events.get(), events.Loaded)


async def test_questions_end_with_their_link(rig: Rig) -> None:
    """A PING that was lost is not waited for."""
    link = await rig.greeted()
    number = rig.control.ask()
    link.close()
    await until(lambda: rig.control.has_answered(number))

    assert not rig.control.is_answering


async def test_closing_ends_everything(rig: Rig) -> None:
    """A closed link accepts nothing and reports nothing, even while it waits for a dial."""
    link = await rig.greeted()
    link.close()
    await until(lambda: not rig.control.is_answering)

    rig.control.close()
    await until(lambda: rig.tunnel.is_closed)

    assert not rig.lost.done()


async def test_an_agent_reports() -> None:
    """REPORT is for agents alone; a malformed one ends the connection."""
    rig = Rig(bound="")
    agent = Rig(bound="")
    agent.control._on_report = agent.reports.append
    for one in (rig, agent):
        one.open()
        link = await one.greeted(bound="")
        link.send(Kind.REPORT, body=json.dumps(to_json(REPORT)).encode())
        if one is agent:
            link.send(Kind.REPORT, body=b"{}")
        assert await has_ended(link)

    assert (rig.reports, agent.reports) == ([], [REPORT])
    await rig.close()
    await agent.close()
