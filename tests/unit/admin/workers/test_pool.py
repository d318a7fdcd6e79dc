"""Tests of keeping workers running, over scripted processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from admin.workers import messages as m
from admin.workers import pool
from admin.workers.pool import READY_S, SILENT_S, WorkerPool
from gateway.settings import GatewaySettings
from registry.errors import FnError
from tests.support.operator import UNTIL_S, until


class Process:
    """Scripted process of a worker."""

    def __init__(
        self, name: str, on_message: Callable[[bytes], None], on_lost: Callable[[str], None]
    ) -> None:
        self.name = name
        self.say = lambda message: on_message(m.encode(message))
        self.lose = on_lost
        self.heard: list[m.Down] = []
        self.was_killed = False
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.channel = cast("Any", self)

    def send(self, data: bytes) -> None:
        """Receive a message of the supervisor."""
        self.heard.append(m.decode_down(data))

    def kill(self) -> None:
        """Die as by SIGKILL."""
        self.was_killed = True
        self.end("was killed by SIGKILL")

    def end(self, how: str = "exited with code 0") -> None:
        """End with this description."""
        if not self._ended.done():
            self._ended.set_result(how)

    async def wait(self) -> str:
        """Wait for the end; return its description."""
        return await self._ended


class WorkerMessages:
    """Records the calls for workers that start, end or send messages."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []

    def __getattr__(self, what: str) -> Any:
        return lambda *given: self.said.append((what, *given))


class Rig:
    """Worker pool whose processes and clock the test controls."""

    def __init__(self, count: int = 2) -> None:
        self.now_s = 100.0
        self.made: list[Process] = []
        self.messages = WorkerMessages()
        self.refusal: OSError | None = None
        self.is_quick = True
        self.workers = WorkerPool(
            count, self._welcome, cast("Any", self.messages), self.clock, self._launch
        )

    def clock(self) -> float:
        """Return the current time."""
        return self.now_s

    @staticmethod
    def _welcome(name: str) -> m.Welcome:
        return m.Welcome(name, GatewaySettings(), "json", "", False)

    async def _launch(
        self, on_message: Callable[[bytes], None], on_lost: Callable[[str], None]
    ) -> Any:
        if self.refusal is not None:
            raise self.refusal
        process = Process(f"p{len(self.made)}", on_message, on_lost)
        self.made.append(process)
        if self.is_quick:
            asyncio.get_running_loop().call_soon(process.say, m.Ready())
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
        return done


@asynccontextmanager
async def started(rig: Rig) -> AsyncIterator[Rig]:
    """Start all workers; stop them at the end."""
    await rig.workers.start()
    yield rig
    await rig.finish()


async def test_a_crew_has_started_when_all_accept_calls() -> None:
    """`start` returns once every worker accepts calls; each has received a welcome with its
    name."""
    rig = Rig()
    rig.is_quick = False
    starting = asyncio.create_task(rig.workers.start())
    await until(lambda: len(rig.made) == 2)
    rig.made[0].say(m.Ready())
    for _ in range(3):
        await asyncio.sleep(0)
    assert not starting.done()
    assert rig.workers.reasons() == ["workers: 1 of 2 run"]
    rig.made[1].say(m.Ready())
    await starting

    assert rig.workers.reasons() == []
    welcomes = [process.heard[0] for process in rig.made]
    assert [one.name for one in welcomes if isinstance(one, m.Welcome)] == ["p0", "p1"]
    assert [entry[0] for entry in rig.messages.said] == ["on_started", "on_started"]
    await rig.finish()


async def test_messages_are_passed_on_under_the_workers_name() -> None:
    """A message is passed on under the name of the worker that sent it."""
    async with started(Rig()) as rig:
        rig.messages.said.clear()
        first = rig.made[0]
        first.say(m.Wants(b"demand"))
        first.say(m.Reached(4))
        first.say(m.Beat(3, [], []))
        reckoned = m.Reckoned(1, 0.0, {}, {}, {}, [])
        first.say(reckoned)
        woken = m.Woken("default", "f", "r", {})
        first.say(woken)

        assert rig.messages.said == [
            ("on_demand", "p0", b"demand"),
            ("on_reached", "p0", 4),
            ("on_beat", "p0", m.Beat(3, [], [])),
            ("on_reckoned", "p0", reckoned),
            ("on_cold_start", woken),
        ]


async def test_a_worker_that_dies_is_replaced() -> None:
    """A dead worker is replaced; until the new one accepts calls the server is degraded."""
    async with started(Rig()) as rig:
        rig.is_quick = False
        rig.made[0].end("was killed by SIGKILL")
        await until(lambda: len(rig.made) == 3)
        assert ("on_ended", rig.made[0]) in rig.messages.said
        assert rig.workers.reasons() == ["workers: 1 of 2 run"]
        assert not rig.made[1].was_killed
        rig.made[2].say(m.Ready())

        assert rig.workers.reasons() == []


async def test_a_worker_that_cannot_be_replaced_is_tried_again() -> None:
    """A failed launch of a replacement is retried."""
    async with started(Rig()) as rig:
        rig.refusal = OSError("no more processes")
        rig.made[0].end()
        await until(lambda: ("on_ended", rig.made[0]) in rig.messages.said)
        rig.refusal = None
        await until(lambda: not rig.workers.reasons())

        assert len(rig.made) == 3


async def test_a_worker_that_loses_its_channel_is_given_up() -> None:
    """A worker that loses its channel, by a protocol error or by falling behind, is killed and
    replaced."""
    async with started(Rig()) as rig:
        rig.made[0].lose("the other side has fallen behind")
        assert rig.made[0].was_killed
        await until(lambda: len(rig.made) == 3)


async def test_a_worker_that_hangs_is_killed() -> None:
    """A worker without beats for SILENT_S is killed; a starting one has READY_S."""
    async with started(Rig()) as rig:
        rig.is_quick = False
        rig.made[1].end()
        await until(lambda: len(rig.made) == 3)
        rig.now_s += SILENT_S + 1
        rig.made[0].say(m.Beat(0, [], []))
        rig.workers.check()
        assert not rig.made[0].was_killed
        assert not rig.made[2].was_killed
        rig.now_s += READY_S
        rig.workers.check()

        assert rig.made[0].was_killed
        assert rig.made[2].was_killed
        rig.is_quick = True
        await until(lambda: len(rig.made) == 5 and not rig.workers.reasons())


@pytest.mark.parametrize("reason", ["the port is taken", ""])
async def test_a_first_start_that_fails_is_an_error(reason: str) -> None:
    """A first start that fails raises the worker's own reason and stops the others: an operator
    would not notice endless retries."""
    rig = Rig()
    rig.is_quick = False
    starting = asyncio.create_task(rig.workers.start())
    await until(lambda: len(rig.made) == 2)
    if reason:
        rig.made[0].say(m.Failed(reason))
    rig.made[0].end("exited with code 1")
    with pytest.raises(FnError, match=reason or "exited with code 1"):
        await starting
    await rig.finish()

    assert rig.made[1].was_killed


async def test_a_process_that_cannot_be_made_at_first_is_an_error() -> None:
    """A failed first launch raises the system's reason."""
    rig = Rig()
    rig.refusal = OSError("no more processes")
    with pytest.raises(FnError, match="no more processes"):
        await rig.workers.start()
    await rig.finish()


async def test_long_polls_are_answered_after_the_calls() -> None:
    """At a stop, long polls are answered after the accepted calls, and then the workers end."""
    rig = Rig()
    await rig.workers.start()
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
    await rig.workers.start()
    await rig.workers.stop(0.0, nothing)

    assert rig.made[0].was_killed


async def test_a_worker_that_dies_while_the_server_stops_is_not_replaced() -> None:
    """A worker that dies during a stop is not replaced; the others finish."""
    rig = Rig()
    await rig.workers.start()
    stopping = asyncio.create_task(rig.workers.stop(UNTIL_S, nothing))
    await asyncio.sleep(0)
    rig.made[0].end("was killed by SIGSEGV")
    rig.made[1].say(m.Finished())
    rig.made[1].end()
    await stopping

    assert len(rig.made) == 2
