"""An engine that goes away and comes back."""

from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from pool_manager.core import events
from pool_manager.drivers.fake import FakeDriver
from pool_manager.waiters import RETRY_S, EngineWatch
from registry.errors import EngineDown
from registry.tasks import Tasks


class Away(FakeDriver):
    """A driver whose engine answers its third question."""

    asked = 0

    async def list(self) -> set[str]:
        self.asked += 1
        if self.asked < 3:
            raise EngineDown("nobody listens")
        return {"r1"}


async def test_the_engine_is_asked_until_it_answers() -> None:
    """Each try comes after a pause, and the answer ends the watch."""
    fed: list[events.Event] = []
    pauses: list[float] = []
    done = asyncio.Event()

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    def feed(event: events.Event) -> None:
        fed.append(event)
        done.set()

    tasks, driver = Tasks("test"), Away()
    watch = EngineWatch(driver, feed, tasks, pause)

    watch.begin("nobody listens")
    watch.begin("nobody listens still")
    await done.wait()

    assert fed == [events.EngineBack(frozenset({"r1"}))]
    assert pauses == [RETRY_S] * 3
    assert driver.asked == 3
    await tasks.close()
    await driver.close()


async def test_it_can_be_lost_again() -> None:
    """A second loss is watched like the first."""
    fed: list[events.Event] = []
    done = asyncio.Semaphore(0)

    async def pause(_seconds: float) -> None:
        """No time to lose."""

    def feed(event: events.Event) -> None:
        fed.append(event)
        done.release()

    tasks, driver = Tasks("test"), Away()
    watch = EngineWatch(driver, feed, tasks, pause)
    for _ in range(2):
        watch.begin("nobody listens")
        await done.acquire()

    assert fed == [events.EngineBack(frozenset({"r1"}))] * 2
    await tasks.close()
    await driver.close()


class Odd(Away):
    """A driver that cannot make sense of its engine's first answer."""

    async def list(self) -> set[str]:
        self.asked += 1
        if self.asked < 2:
            raise KeyError("Id")
        return {"r1"}


async def test_an_answer_that_nobody_expected_is_no_end() -> None:
    """It is reported, and the engine asked again: else nothing would ever be started any more."""
    back: asyncio.Queue[events.Event] = asyncio.Queue()

    async def pause(_seconds: float) -> None:
        """No time to lose."""

    tasks, driver = Tasks("test"), Odd()
    with capture_logs() as logs:
        EngineWatch(driver, back.put_nowait, tasks, pause).begin("nobody listens")
        async with asyncio.timeout(60):
            assert await back.get() == events.EngineBack(frozenset({"r1"}))

    assert "the engine's list cannot be read" in [line["event"] for line in logs]
    await tasks.close()
    await driver.close()
