"""Tests of the question who is connected, put to all gateway processes."""

from __future__ import annotations

import asyncio

import pytest

from admin.workers import connections
from admin.workers.connections import ConnectionPoll
from admin.workers.messages import AskConnected, TellConnected, decode_down
from gateway.http.connected import Connected, Connections

ONE = Connections([Connected("k", "events", 2.0, "/a", True)], 1, 0)
TWO = Connections([Connected("k", "websocket", 1.0, "/b", True)], 1, 3)
BOTH = Connections([*TWO.items, *ONE.items], 2, 3)


class Rig:
    """A poll with two workers, which answer when the test says so."""

    def __init__(self) -> None:
        self.poll = ConnectionPoll()
        self.sent: list[bytes] = []
        for worker in ("1", "2"):
            self.poll.add_worker(worker, self.sent.append)

    async def asking(self) -> tuple[asyncio.Task[Connections], int]:
        """Begin to ask; return the task and the question's number."""
        self.sent.clear()
        task = asyncio.create_task(self.poll.ask("default", "web"))
        await asyncio.sleep(0)
        (first, second) = map(decode_down, self.sent)
        assert first == second
        assert isinstance(first, AskConnected)
        assert (first.namespace, first.name) == ("default", "web")
        return task, first.number


async def test_the_answers_of_all_are_joined() -> None:
    """Each question waits for both workers."""
    rig = Rig()
    for _ in range(2):
        task, number = await rig.asking()
        rig.poll.on_told("1", TellConnected(number, ONE))
        await asyncio.sleep(0)
        assert not task.done()
        rig.poll.on_told("2", TellConnected(number, TWO))
        assert await task == BOTH


async def test_a_worker_that_ends_is_not_waited_for() -> None:
    """The others' answers are enough, and a late answer changes nothing."""
    rig = Rig()
    task, number = await rig.asking()
    rig.poll.on_told("1", TellConnected(number, ONE))
    rig.poll.remove_worker("2")

    assert await task == ONE
    rig.poll.on_told("2", TellConnected(number, TWO))
    rig.poll.remove_worker("1")
    assert await rig.poll.ask("default", "web") == Connections([], 0, 0)


async def test_answers_of_others_do_not_count() -> None:
    """Neither of workers that were not asked nor to earlier questions."""
    rig = Rig()
    task, number = await rig.asking()
    rig.poll.add_worker("3", rig.sent.append)
    rig.poll.on_told("3", TellConnected(number, TWO))
    rig.poll.on_told("2", TellConnected(number - 1, TWO))
    rig.poll.on_told("1", TellConnected(number, ONE))
    await asyncio.sleep(0)
    assert not task.done()
    rig.poll.on_told("2", TellConnected(number, Connections([], 0, 0)))

    assert await task == ONE


async def test_a_slow_worker_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """After ANSWER_S the others' answers are returned."""
    monkeypatch.setattr(connections, "ANSWER_S", 0.01)
    rig = Rig()
    task, number = await rig.asking()
    rig.poll.on_told("1", TellConnected(number, ONE))

    assert await task == ONE
