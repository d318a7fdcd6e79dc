"""Tests of keeping gateways running, over scripted processes."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any, cast

import pytest

from admin.workers import messages as m
from admin.workers import pool
from admin.workers.hub import Hub
from admin.workers.pool import BREAKS_MAX, READY_S, GatewayProcess, WorkerPool
from admin.workers.process import SOUND_S
from admin.workers.session import SILENT_MAX, UNSAID_MAX
from admin.workers.stream import Stream
from gateway.settings import GatewaySettings
from registry.errors import FnError
from tests.support.operator import UNTIL_S, until
from tests.support.server import encoded_pair

HELLO = m.Hello(m.VERSION, "1")


class Process:
    """Scripted process of a gateway. `streams` are its ends of those that it got."""

    def __init__(self, name: str, rig: Rig) -> None:
        self.name = name
        self.counters: Any = f"counters of {name}"
        self.revisions: Any = f"numbers of {name}"
        self.heard: list[m.Down] = []
        self.streams: list[Stream] = []
        self.was_killed = False
        self._rig = rig
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def connect(self) -> Stream:
        """Take a stream; open it soon."""
        if self._ended.done():
            raise BrokenPipeError
        ours, theirs = encoded_pair()
        self.streams.append(theirs)
        self._opening = asyncio.create_task(self._open(theirs))
        return ours

    async def _open(self, stream: Stream) -> None:
        await stream.open(self.heard.append, lambda _reason: None)
        if self._rig.hello is not None:
            stream.send(self._rig.hello)
        if self._rig.is_quick:
            self.say(m.Ready(80))

    def say(self, message: m.Up) -> None:
        """Send a message."""
        self.streams[-1].send(message)

    def heard_of(self, kind: type[m.Down]) -> int:
        """Return how many messages of this kind arrived."""
        return sum(isinstance(one, kind) for one in self.heard)

    def kill(self) -> None:
        """Die as by SIGKILL."""
        self.was_killed = True
        self.end("was killed by SIGKILL")

    def end(self, how: str = "exited with code 0") -> None:
        """End with this description."""
        if not self._ended.done():
            self._ended.set_result(how)
            for stream in self.streams:
                stream.close()

    async def wait(self) -> str:
        """Wait for the end; return its description."""
        return await self._ended


class Recorder:
    """Records calls with their names."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []

    def __getattr__(self, what: str) -> Any:
        return lambda *given: self.said.append((what, *given))


class Rig:
    """Pool whose processes and clock the test controls. `hello` is what a process says first."""

    def __init__(self, count: int = 2) -> None:
        self.now_s = 100.0
        self.made: list[Process] = []
        self.reports, self.page, self.numbers = Recorder(), Recorder(), Recorder()
        self.refusal: OSError | None = None
        self.is_quick = True
        self.hello: m.Hello | None = HELLO
        self.hub = Hub(lambda: [])
        receivers = (self.reports, self.page, self.numbers)
        self.workers = WorkerPool(
            count, self.hub, *(cast("Any", one) for one in receivers), self.clock
        )

    def clock(self) -> float:
        """Return the current time."""
        return self.now_s

    async def start(self) -> None:
        """Start the pool."""
        await self.workers.start(self._launch, self._welcome)

    @staticmethod
    def _welcome(name: str) -> m.Welcome:
        return m.Welcome(name, GatewaySettings(), "json", "", False, True)

    async def _launch(self) -> GatewayProcess:
        if self.refusal is not None:
            raise self.refusal
        process = Process(f"p{len(self.made)}", self)
        self.made.append(process)
        return process

    async def finish(self) -> list[str]:
        """Stop the pool, let every process finish and end; return what happened, in order."""
        done: list[str] = []

        async def stop_waiting() -> None:
            done.append("nobody waits")
            for process in list(self.made):
                process.end()

        stopping = asyncio.create_task(self.workers.stop(UNTIL_S, stop_waiting))
        await asyncio.sleep(0)
        for process in self.made:
            if m.Stop() in process.heard:
                done.append(f"{process.name} finishes")
                process.say(m.Finished())
        await stopping
        await self.hub.close()
        return done


@asynccontextmanager
async def started(rig: Rig) -> AsyncIterator[Rig]:
    """Start all workers; stop them at the end."""
    await rig.start()
    yield rig
    await rig.finish()


async def test_a_crew_has_started_when_all_accept_calls() -> None:
    """`start` returns once every worker accepts calls; each has received a welcome with its
    name."""
    rig = Rig()
    rig.is_quick = False
    starting = asyncio.create_task(rig.start())
    await until(lambda: len(rig.made) == 2 and bool(rig.made[1].heard))
    rig.made[0].say(m.Ready(80))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not starting.done()
    assert rig.workers.reasons() == ["workers: 1 of 2 run"]
    rig.made[1].say(m.Ready(80))
    await starting

    assert rig.workers.reasons() == []
    first = [process.heard[:3] for process in rig.made]
    assert [one[0] for one in first] == [m.Hello(m.VERSION, version("fngate"))] * 2
    assert [one[1].name for one in first if isinstance(one[1], m.Welcome)] == ["p0", "p1"]
    assert [one[2] for one in first] == [m.Began()] * 2
    assert rig.page.said == [("add", f"p{n}", f"counters of p{n}") for n in range(2)]
    assert rig.numbers.said == [("add", f"p{n}", f"numbers of p{n}") for n in range(2)]
    assert rig.workers.port == 80
    await rig.finish()


async def test_messages_are_passed_on_under_the_workers_name() -> None:
    """A report is passed on under the name of the gateway that sent it, an answer to the hub."""
    async with started(Rig()) as rig:
        rig.reports.said.clear()
        activity = m.Activity(1, 3)
        for message in (m.Wants(b"demand"), m.Ask(7, activity), m.Answer(99), m.Beat()):
            rig.made[0].say(message)

        assert rig.reports.said == [
            ("on_demand", "p0", b"demand"),
            ("on_activity", "p0", activity),
        ]


async def test_an_activity_is_counted_once() -> None:
    """One that comes again, on the same stream or the next one, is answered and not counted; each
    process has numbers of its own."""
    async with started(Rig()) as rig:
        first, second = rig.made
        rig.reports.said.clear()
        for number in (1, 1, 2):
            first.say(m.Ask(number, m.Activity(number)))
        first.streams[-1].abort("broken")
        await until(lambda: first.heard_of(m.Began) == 2)
        for number in (2, 3):
            first.say(m.Ask(10 + number, m.Activity(number)))
        second.say(m.Ask(1, m.Activity(1)))

        counted = [(who, one.number) for what, who, *of in rig.reports.said if of for one in of]
        assert counted == [("p0", 1), ("p0", 2), ("p0", 3), ("p1", 1)]
        assert first.heard_of(m.Answer) == 5


@pytest.mark.parametrize(
    ("hello", "messages"),
    [
        (HELLO, [HELLO]),
        (None, [m.Ready(80)]),
        (None, [m.Answer(1)]),
        (HELLO, [m.Ask(1, m.Applied())]),
        (HELLO, [m.Ask(1, m.LoadModel("default", "f", 1.0))] * 2),
    ],
)
async def test_a_broken_protocol_ends_the_stream(
    hello: m.Hello | None, messages: list[m.Up]
) -> None:
    """A second Hello, anything before it, a question for the other end: the stream ends, and the
    gateway begins anew with another one."""
    rig = Rig(count=1)
    rig.hub.answer({m.LoadModel: forever})
    async with started(rig):
        process = rig.made[0]
        if hello is None:  # on a stream without Hello
            rig.hello, rig.is_quick = None, False
            process.streams[-1].close()
            await until(lambda: len(process.streams) == 2)
        count = len(process.streams)
        for message in messages:
            process.say(message)
        rig.hello, rig.is_quick = HELLO, True
        await until(lambda: len(process.streams) == count + 1)
        await until(lambda: process.heard_of(m.Began) == 2)

        assert not process.was_killed


async def forever(_question: Any) -> None:
    """Answer nothing."""
    await asyncio.Event().wait()


async def test_a_worker_of_another_version_is_parted_from() -> None:
    """Versions that differ part in words: such a gateway gets nothing but Hello, and what the
    operator is to do is the reason of its end."""
    rig = Rig(count=1)
    rig.hello = m.Hello(m.VERSION + 1, "9.9")
    starting = asyncio.create_task(rig.start())
    await until(lambda: bool(rig.made) and rig.made[0].streams[0].is_open is False)
    rig.made[0].end()
    with pytest.raises(FnError, match=r"the gateway \(release 9.9\) version \d+: stop the server"):
        await starting
    await rig.finish()

    assert rig.made[0].heard_of(m.Hello) == len(rig.made[0].heard) == 1


async def test_a_stream_that_breaks_is_replaced() -> None:
    """The demand of a gateway ends with its stream; with the next one it gets everything anew."""
    async with started(Rig()) as rig:
        process = rig.made[0]
        process.streams[-1].abort("broken")
        await until(lambda: ("on_gone", "p0") in rig.reports.said)
        await until(lambda: process.heard_of(m.Began) == 2)

        assert (process.heard_of(m.Welcome), process.was_killed) == (2, False)
        assert rig.workers.reasons() == []


async def test_a_worker_whose_streams_keep_breaking_is_replaced() -> None:
    """One that loses stream after stream is killed and replaced; a long life between them makes up
    for the earlier ones."""
    async with started(Rig(count=1)) as rig:
        process = rig.made[0]
        for number in range(2 * BREAKS_MAX):
            if number == BREAKS_MAX:
                rig.now_s += SOUND_S
                process.say(m.Beat())
            process.streams[-1].abort("broken")
            await until(lambda number=number: process.heard_of(m.Began) == number + 2)
        assert not process.was_killed
        process.streams[-1].abort("broken")
        await until(lambda: len(rig.made) == 2)

        assert process.was_killed


async def test_a_worker_that_fails_gets_no_other_stream() -> None:
    """A gateway that said why it cannot serve ends by itself; it is not given a stream again."""
    async with started(Rig(count=1)) as rig:
        process = rig.made[0]
        process.say(m.Failed("no"))
        process.streams[-1].close()
        await until(lambda: ("on_gone", "p0") in rig.reports.said)
        for _ in range(3):
            await asyncio.sleep(0)
        assert (len(process.streams), process.was_killed) == (1, False)
        process.end()
        await until(lambda: len(rig.made) == 2)


async def test_a_worker_that_dies_while_it_gets_a_stream_is_waited_for_no_more() -> None:
    """The end of the stream may be seen after that of the process: the hub must not wait for a
    gateway that is no more."""
    async with started(Rig(count=1)) as rig:
        process = rig.made[0]

        def connect() -> Stream:
            stream = Process.connect(process)
            process.end()
            return stream

        process.connect = connect  # type: ignore[method-assign]
        process.streams[-1].abort("broken")
        await until(lambda: len(rig.made) == 2 and not rig.workers.reasons())

        assert len(process.streams) == 2
        assert (rig.hub._apart, list(rig.hub._sessions)) == (set(), ["p1"])


async def test_a_worker_that_no_stream_can_reach_is_replaced() -> None:
    """A gateway that cannot get a stream, as the server has no descriptors left, would miss every
    change: it is killed."""
    async with started(Rig(count=1)) as rig:
        process = rig.made[0]

        def connect() -> Stream:
            raise OSError(errno.EMFILE, "Too many open files")

        process.connect = connect  # type: ignore[method-assign]
        process.streams[-1].abort("broken")
        await until(lambda: len(rig.made) == 2 and not rig.workers.reasons())

        assert process.was_killed


async def test_a_worker_that_dies_is_replaced() -> None:
    """A dead worker is replaced; until the new one accepts calls the server is degraded."""
    async with started(Rig()) as rig:
        rig.is_quick = False
        rig.made[0].end("was killed by SIGKILL")
        await until(lambda: len(rig.made) == 3)
        assert ("remove", "p0") in rig.page.said
        assert ("remove", "p0") in rig.numbers.said
        assert ("on_gone", "p0") in rig.reports.said
        assert rig.workers.reasons() == ["workers: 1 of 2 run"]
        assert not rig.made[1].was_killed
        rig.made[2].say(m.Ready(80))

        assert rig.workers.reasons() == []


async def test_a_worker_that_cannot_be_replaced_is_tried_again() -> None:
    """A failed launch of a replacement is retried."""
    async with started(Rig()) as rig:
        rig.refusal = OSError("no more processes")
        rig.made[0].end()
        await until(lambda: ("remove", "p0") in rig.page.said)
        rig.refusal = None
        await until(lambda: not rig.workers.reasons())

        assert len(rig.made) == 3


async def test_a_worker_that_hangs_is_killed() -> None:
    """A worker that sends nothing for SILENT_MAX beats is killed, and one that does not accept
    calls within READY_S."""
    async with started(Rig()) as rig:
        rig.is_quick = False
        rig.made[1].end()
        await until(lambda: len(rig.made) == 3 and rig.made[2].heard_of(m.Began) == 1)
        for _ in range(SILENT_MAX):
            rig.workers.check()
            rig.made[2].say(m.Beat())
        assert not rig.made[0].was_killed
        rig.workers.check()
        await until(lambda: rig.made[0].was_killed)
        assert not rig.made[2].was_killed
        assert rig.made[0].heard_of(m.Began) == 1
        rig.now_s += READY_S + 1
        rig.workers.check()

        assert rig.made[2].was_killed
        rig.is_quick = True
        await until(lambda: len(rig.made) == 5 and not rig.workers.reasons())


async def test_a_worker_may_be_long_in_starting() -> None:
    """Before its Hello, a process has UNSAID_MAX beats: it imports, and says nothing."""
    rig = Rig(count=1)
    rig.hello, rig.is_quick = None, False
    starting = asyncio.create_task(rig.start())
    await until(lambda: bool(rig.made) and bool(rig.made[0].heard))
    for _ in range(UNSAID_MAX):
        rig.workers.check()
    for _ in range(3):
        await asyncio.sleep(0)
    assert not rig.made[0].was_killed
    rig.workers.check()
    with pytest.raises(FnError, match="sent no message for 61 s"):
        await starting
    await rig.finish()


@pytest.mark.parametrize(
    ("reason", "number", "error"),
    [
        ("the port is taken", errno.EADDRINUSE, OSError),
        ("no traces", 0, FnError),
        ("", 0, FnError),
    ],
)
async def test_a_first_start_that_fails_is_an_error(
    reason: str, number: int, error: type[Exception]
) -> None:
    """A first start that fails raises the gateway's own reason and stops the others: an operator
    would not notice endless retries. An error of the system has its number."""
    rig = Rig()
    rig.is_quick = False
    starting = asyncio.create_task(rig.start())
    await until(lambda: len(rig.made) == 2 and bool(rig.made[0].heard))
    if reason:
        rig.made[0].say(m.Failed(reason, number))
    rig.made[0].end("exited with code 1")
    with pytest.raises(error, match=reason or "exited with code 1") as caught:
        await starting
    assert getattr(caught.value, "errno", 0) == number
    await rig.finish()

    assert rig.made[1].was_killed


async def test_a_process_that_cannot_be_made_at_first_is_an_error() -> None:
    """A failed first launch raises the system's reason."""
    rig = Rig()
    rig.refusal = OSError("no more processes")
    with pytest.raises(FnError, match="no more processes"):
        await rig.start()
    await rig.finish()


async def test_long_polls_are_answered_after_the_calls() -> None:
    """At a stop, long polls are answered after the accepted calls, and then the workers end."""
    rig = Rig()
    await rig.start()
    assert not rig.workers.is_stopping

    assert await rig.finish() == ["p0 finishes", "p1 finishes", "nobody waits"]
    assert rig.workers.is_stopping
    assert len(rig.made) == 2


async def nothing() -> None:
    """Do nothing: there are no long polls."""


async def test_a_worker_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that does not end in time is killed."""
    for name in ("GRACE_S", "CLOSE_S"):
        monkeypatch.setattr(pool, name, 0.01)
    rig = Rig(count=1)
    await rig.start()
    await rig.workers.stop(0.0, nothing)

    assert rig.made[0].was_killed


async def test_a_worker_that_dies_while_the_server_stops_is_not_replaced() -> None:
    """A worker that dies during a stop is not replaced; the others finish."""
    rig = Rig()
    await rig.start()
    stopping = asyncio.create_task(rig.workers.stop(UNTIL_S, nothing))
    await asyncio.sleep(0)
    rig.made[0].end("was killed by SIGSEGV")
    rig.made[1].say(m.Finished())
    rig.made[1].end()
    await stopping

    assert len(rig.made) == 2
