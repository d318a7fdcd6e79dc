"""Tests of turns that keys share."""

from __future__ import annotations

import asyncio

import pytest

from admin.deploy.turns import Turns


class Line:
    """Tasks that each have a turn until they are told to end it."""

    def __init__(self, places: int) -> None:
        self.turns = Turns("run", places)
        self.running: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, asyncio.Event] = {}

    async def begin(self, *names: str) -> str:
        """Begin tasks, whose party is the first letter of their name; return which ones run."""
        for name in names:
            self._ends[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._run(name))
        return await self.now()

    async def end(self, *names: str) -> str:
        """End tasks; return which ones run then."""
        for name in names:
            self._ends[name].set()
        return await self.now()

    async def now(self) -> str:
        """Return which tasks run, in the order in which they got their turn."""
        for _ in range(5):
            await asyncio.sleep(0)
        return " ".join(self.running)

    async def _run(self, name: str) -> None:
        async with self.turns.turn(name[0]):
            self.running.append(name)
            try:
                await self._ends[name].wait()
            finally:
                self.running.remove(name)


async def test_a_party_with_many_leaves_turns_to_others() -> None:
    """A lone party has half of the turns, and a new one never waits for it."""
    line = Line(4)
    assert await line.begin("a1", "a2", "a3", "a4") == "a1 a2"
    assert await line.begin("b1", "b2", "c1") == "a1 a2 b1 c1"
    assert await line.end("a1") == "a2 b1 c1"
    assert await line.end("b1") == "a2 c1 b2"
    assert await line.end("c1", "b2") == "a2 a3"
    assert await line.end("a2", "a3", "a4") == ""
    assert len(line.turns) == 0


async def test_one_turn_goes_round() -> None:
    """Parties that wait for one turn get it one after the other, each in the order it asked."""
    line, order = Line(1), []
    await line.begin("a1", "a2", "a3", "b1", "b2", "c1")
    while line.running:
        order += line.running
        await line.end(*line.running)
    assert order == ["a1", "a2", "b1", "c1", "a3", "b2"]


@pytest.mark.parametrize("granted", [False, True])
async def test_a_cancelled_wait_leaves_its_turn(granted: bool) -> None:
    """One who is cancelled while it waits, or just as it gets its turn, keeps none from others."""
    line = Line(1)
    await line.begin("a1", "b1", "b2")
    if granted:
        line._ends["a1"].set()
        await asyncio.sleep(0)  # b1 has its turn, but does not run yet
    line.tasks["b1"].cancel()
    await line.end("a1")
    assert await line.now() == "b2"
    assert await line.end("b2") == ""
    assert len(line.turns) == 0
    with pytest.raises(asyncio.CancelledError):
        await line.tasks["b1"]
