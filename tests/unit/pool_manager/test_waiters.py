"""Waiting: for trials, warm pools, an engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from structlog.testing import capture_logs

from pool_manager import waiters
from pool_manager.core import events
from pool_manager.core.commands import EndTrial, EndWarm
from pool_manager.waiters import RETRY_S, EngineWatch, PendingTrials, Warmed, WarmWaiters
from registry.errors import EngineDown, HostDown, ModelRefused, Refused, ShuttingDown, TrialKilled
from registry.tasks import Tasks
from tests.support.fake_driver.driver import FakeDriver

KEY = "default/a@1"
ASKED = events.WarmRequested(KEY, False)
BESIDE = events.WarmRequested(KEY, True)
DROPPED = events.WarmCancelled(KEY)


class Desk:
    """Both kinds of waiters, what they emitted, and tasks of those who wait."""

    def __init__(self) -> None:
        self.emitted: list[events.Event] = []
        self.trials = PendingTrials()
        self.warmth = WarmWaiters(self.emitted.append)
        self.tasks = Tasks("waiters")

    async def warm(self, *, beside: bool = False, timeout_s: float = 60.0) -> asyncio.Task[Warmed]:
        """Return a task that waits for a warm pool."""
        waiting = self.warmth.wait(KEY, beside=beside, timeout_s=timeout_s)
        asking = self.tasks.spawn("asks", waiting)
        await asyncio.sleep(0)
        return asking

    async def trial(self) -> asyncio.Task[dict[str, object]]:
        """A deploy that waits by now."""
        trial = self.tasks.spawn("tries", self.trials.wait(KEY, lambda: None))
        await asyncio.sleep(0)
        return trial


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    made = Desk()
    yield made
    await made.tasks.close()


async def test_a_trial_has_its_report(desk: Desk) -> None:
    """The deploy gets the report that the replica measured."""
    trial = await desk.trial()

    desk.trials.end(EndTrial(KEY, {"load_ms": 5.0}))

    assert await trial == {"load_ms": 5.0}


async def test_a_refusal_says_why(desk: Desk) -> None:
    """Callers get reason and stage, admins also the last log lines."""
    trial = await desk.trial()

    desk.trials.end(EndTrial(KEY, {}, "load", "opset 99", ("line",)))

    with pytest.raises(ModelRefused, match="opset 99") as refused:
        await trial
    assert refused.value.detail == {"stage": "load"}
    assert refused.value.admin_detail == {"log_tail": ["line"]}


async def test_a_start_that_fails_has_a_stage(desk: Desk) -> None:
    """A trial that ended before it reported has the stage `start`."""
    trial = await desk.trial()

    desk.trials.end(EndTrial(KEY, reason="exit 1"))

    with pytest.raises(ModelRefused) as refused:
        await trial
    assert refused.value.detail == {"stage": "start"}


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("was killed by SIGKILL (its memory cap is 64 MiB)", TrialKilled),
        ("was killed by SIGTERM: the last line", TrialKilled),
        ("lost its server, which was killed by SIGKILL", TrialKilled),
        ("lost its sidecar, which was killed by SIGTERM", TrialKilled),
        ("lost its server, which exited with code 1", ModelRefused),
        ("was killed by SIGSEGV", ModelRefused),
        ("ran out of memory and was killed by SIGKILL", ModelRefused),
        ("exited with code 137", ModelRefused),
    ],
)
async def test_a_kill_from_outside_is_no_refusal_of_the_model(
    desk: Desk, reason: str, kind: type[Refused]
) -> None:
    """A crash and a kill at the memory cap refuse the model; KILL and TERM from outside do not."""
    trial = await desk.trial()

    desk.trials.end(EndTrial(KEY, reason=reason))

    with pytest.raises(Refused) as refused:
        await trial
    assert type(refused.value) is kind


async def test_the_end_of_nobodys_trial_is_ignored(desk: Desk) -> None:
    """A late or second answer to a trial has no effect."""
    desk.trials.end(EndTrial(KEY, {"load_ms": 5.0}))
    trial = await desk.trial()
    desk.trials.end(EndTrial(KEY, {"load_ms": 6.0}))
    desk.trials.end(EndTrial(KEY, {"load_ms": 7.0}))

    assert await trial == {"load_ms": 6.0}


async def test_a_trial_has_an_end(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial without an answer in time is refused, and may be requested again."""
    monkeypatch.setattr(waiters, "TRIAL_S", 0.0)
    with pytest.raises(ModelRefused, match="had not ended after 0 s"):
        await (await desk.trial())

    monkeypatch.undo()
    trial = await desk.trial()
    desk.trials.end(EndTrial(KEY, {"load_ms": 5.0}))
    assert await trial == {"load_ms": 5.0}


async def test_who_asks_for_a_warm_pool_is_told(desk: Desk) -> None:
    """A warm-up is requested from the machine once, and its answer is passed on."""
    asking = await desk.warm()
    assert desk.emitted == [ASKED]

    desk.warmth.end(EndWarm(KEY, "ready", "asked for"))

    assert await asking == Warmed("ready", "asked for")
    assert desk.emitted == [ASKED]


async def test_an_answer_may_come_at_once(desk: Desk) -> None:
    """A synchronous answer of the machine is received."""
    warmth = WarmWaiters(lambda _: warmth.end(EndWarm(KEY, "ready", "warm already")))

    assert await warmth.wait(KEY, beside=False, timeout_s=60.0) == Warmed("ready", "warm already")


async def test_an_answer_for_nobody_is_ignored(desk: Desk) -> None:
    """An answer without waiters is ignored."""
    desk.warmth.end(EndWarm(KEY, "ready", "asked for"))

    assert desk.emitted == []


async def test_all_who_ask_share_one_answer(desk: Desk) -> None:
    """Waiters for one pool share one request and its answer."""
    first, second = await desk.warm(), await desk.warm(beside=True)

    desk.warmth.end(EndWarm(KEY, "failed", "no memory"))

    assert await first == await second == Warmed("failed", "no memory")
    assert desk.emitted == [ASKED]


async def test_who_does_not_insist_on_beside_waits_for_room(desk: Desk) -> None:
    """A waiter that accepts a wait for room changes a shared request, so that it is not answered
    `no_room`."""
    await desk.warm(beside=True)
    await desk.warm(beside=False)

    assert desk.emitted == [BESIDE, ASKED]


async def test_who_insists_on_beside_waits_for_no_room_alone(desk: Desk) -> None:
    """When the last waiter that accepts a wait leaves, the request becomes `beside` again, so that
    a rollout gets its `no_room`."""
    first = await desk.warm(beside=False)
    await desk.warm(beside=True)
    other = await desk.warm(beside=False)
    assert desk.emitted == [ASKED]

    for one in (first, other):
        assert desk.emitted == [ASKED]
        one.cancel()
        await asyncio.wait([one])

    assert desk.emitted == [ASKED, BESIDE]


async def test_patience_is_each_ones_own(desk: Desk) -> None:
    """A waiter that gives up does not affect the others; after the last one the request is
    cancelled."""
    patient = await desk.warm()

    assert await (await desk.warm(timeout_s=0.0)) == Warmed("no_room", "not ready within 0 s")
    assert desk.emitted == [ASKED]

    patient.cancel()
    await asyncio.wait([patient])
    assert desk.emitted == [ASKED, DROPPED]
    await desk.warm()
    assert desk.emitted == [ASKED, DROPPED, ASKED]


async def test_who_waits_is_told_that_the_server_goes(desk: Desk) -> None:
    """At a shutdown all waits end at once; a trial that already has its answer keeps it."""
    asking, trial = await desk.warm(), await desk.trial()
    trials = PendingTrials()
    done = desk.tasks.spawn("tries", trials.wait(KEY, lambda: None))
    await asyncio.sleep(0)
    trials.end(EndTrial(KEY, {"load_ms": 5.0}))

    trials.close()
    desk.trials.close()
    desk.warmth.close()

    assert await done == {"load_ms": 5.0}
    assert await asking == Warmed("failed", "the server is shutting down")
    with pytest.raises(ShuttingDown):
        await trial


async def test_nothing_is_ordered_after_the_end(desk: Desk) -> None:
    """A wait after the end fails at once."""
    desk.trials.close()
    desk.warmth.close()

    assert await (await desk.warm()) == Warmed("failed", "the server is shutting down")
    with pytest.raises(ShuttingDown):
        await (await desk.trial())
    assert desk.emitted == []


def listing(driver: FakeDriver) -> Callable[[str], Awaitable[set[str]]]:
    """Return what lists the replicas of each host."""
    return lambda _host: driver.list()


class Away(FakeDriver):
    """A driver whose engine answers its third question."""

    asked = 0

    async def list(self) -> set[str]:
        self.asked += 1
        if self.asked < 3:
            raise EngineDown("nobody listens")
        return {"r1"}


async def test_the_engine_is_asked_until_it_answers() -> None:
    """The engine is polled, with a pause before each try, until it answers."""
    fed: list[events.Event] = []
    pauses: list[float] = []
    done = asyncio.Event()

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    def feed(event: events.Event) -> None:
        fed.append(event)
        done.set()

    tasks, driver = Tasks("test"), Away()
    watch = EngineWatch(listing(driver), feed, tasks, pause)

    watch.begin("nobody listens")
    watch.begin("nobody listens still")
    await done.wait()

    assert fed == [events.EngineBack(frozenset({"r1"}))]
    assert pauses == [RETRY_S] * 3
    assert driver.asked == 3
    await tasks.close()
    await driver.close()


async def test_it_can_be_lost_again() -> None:
    """A second loss of the engine is watched like the first."""
    fed: list[events.Event] = []
    done = asyncio.Semaphore(0)

    async def pause(_seconds: float) -> None:
        """Return at once."""

    def feed(event: events.Event) -> None:
        fed.append(event)
        done.release()

    tasks, driver = Tasks("test"), Away()
    watch = EngineWatch(listing(driver), feed, tasks, pause)
    for _ in range(2):
        watch.begin("nobody listens")
        await done.acquire()

    assert fed == [events.EngineBack(frozenset({"r1"}))] * 2
    await tasks.close()
    await driver.close()


async def test_an_engine_behind_a_broken_connection_is_not_watched() -> None:
    """The watch of a host's engine ends with the connection to the host; a later one begins
    anew."""
    asked: list[str] = []
    tasks = Tasks("test")

    async def running(host: str) -> set[str]:
        asked.append(host)
        raise HostDown("the cable is cut")

    async def pause(_seconds: float) -> None:
        """Return at once."""

    watch = EngineWatch(running, lambda _event: None, tasks, pause)
    for _ in range(2):
        watch.begin("no answer", "gpu2")
        await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})

    assert asked == ["gpu2", "gpu2"]
    await tasks.close()


class Odd(Away):
    """A driver that cannot make sense of its engine's first answer."""

    async def list(self) -> set[str]:
        self.asked += 1
        if self.asked < 2:
            raise KeyError("Id")
        return {"r1"}


async def test_an_answer_that_nobody_expected_is_no_end() -> None:
    """An unexpected exception is logged and the polling continues; otherwise nothing would be
    started again."""
    back: asyncio.Queue[events.Event] = asyncio.Queue()

    async def pause(_seconds: float) -> None:
        """Return at once."""

    tasks, driver = Tasks("test"), Odd()
    with capture_logs() as logs:
        EngineWatch(listing(driver), back.put_nowait, tasks, pause).begin("nobody listens")
        async with asyncio.timeout(60):
            assert await back.get() == events.EngineBack(frozenset({"r1"}))

    assert "the engine's list cannot be read" in [line["event"] for line in logs]
    await tasks.close()
    await driver.close()
