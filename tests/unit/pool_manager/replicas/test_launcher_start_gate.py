"""The gate of starts."""

from __future__ import annotations

import asyncio

import pytest

from pool_manager.core import start_queue
from pool_manager.core.start_queue import Rank, StartPriority
from pool_manager.replicas.start_gate import StartGate


class Clock:
    """A clock set by the test."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def line(clock: Clock) -> StartGate:
    """A gate for one start at a time."""
    return StartGate(1, clock)


async def turn_of_loop() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_one_after_the_other(line: StartGate) -> None:
    """A start waits until the running one has ended."""
    assert await line.enter("a")
    second = asyncio.create_task(line.enter("b"))
    await turn_of_loop()
    waits = not second.done()
    assert len(line) == 1

    line.leave("a")

    assert waits
    assert await second
    assert len(line) == 0


async def test_the_order_is_the_managers(clock: Clock) -> None:
    """The priorities are evaluated whenever a place is free."""
    urgent: set[str] = set()
    line = StartGate(
        1, clock, lambda id: StartPriority(Rank.WAITER if id in urgent else Rank.FLOOR, 0.0)
    )
    await line.enter("a")
    tasks = {id: asyncio.create_task(line.enter(id)) for id in "bc"}
    await turn_of_loop()

    urgent.add("c")
    line.leave("a")
    await turn_of_loop()

    assert [id for id, task in tasks.items() if task.done()] == ["c"]
    line.leave("c")
    assert await tasks["b"]


async def test_who_is_cancelled_in_the_turn_of_its_start_holds_nobody_up(clock: Clock) -> None:
    """A start cancelled in the iteration that admits it does not block the others; its place goes
    to the next."""
    line = StartGate(2, clock)
    assert await line.enter("a")
    assert await line.enter("b")
    tasks = {id: asyncio.create_task(line.enter(id)) for id in "cde"}
    await turn_of_loop()

    tasks["c"].cancel()
    line.leave("a")
    line.leave("b")
    await turn_of_loop()

    assert tasks["c"].cancelled()
    assert await tasks["d"]
    assert await tasks["e"]


async def test_who_leaves_the_line_is_told(line: StartGate) -> None:
    """`enter` of a start that left the queue returns False."""
    await line.enter("a")
    second = asyncio.create_task(line.enter("b"))
    await turn_of_loop()

    line.leave("b")

    assert not await second


async def test_a_cancelled_start_keeps_no_place(line: StartGate) -> None:
    """A start cancelled by a shutdown frees its place."""
    await line.enter("a")
    second = asyncio.create_task(line.enter("b"))
    third = asyncio.create_task(line.enter("c"))
    await turn_of_loop()

    second.cancel()
    await asyncio.wait([second])
    line.leave("a")

    assert await third


async def test_what_hangs_is_waited_for_no_longer(
    line: StartGate, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timer admits the next start when the first one has hung for HOLD_S."""
    monkeypatch.setattr(start_queue, "HOLD_S", 0.01)
    await line.enter("a")
    second = asyncio.create_task(line.enter("b"))
    await turn_of_loop()

    clock.now_s += 0.01

    assert await asyncio.wait_for(second, 60)
