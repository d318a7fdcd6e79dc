"""What a deploy tells of its trial's wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from admin.deploy.waiting import Telling, told
from pool_manager.core.starts import Awaited
from registry.tasks import Tasks


def lines(telling: Telling, what: str, until_s: int) -> list[str]:
    """What is told of the same wait, looked at every second."""
    found = (telling.phase(Awaited(what, float(now))) for now in range(10, until_s))
    return [one for one in found if one]


def test_a_long_wait_is_told_ever_more_rarely() -> None:
    """At first every ten seconds, in the end once a minute."""
    assert lines(Telling(), "waits", 300) == [
        f"verify waits for {seconds} s" for seconds in (10, 20, 40, 80, 140, 200, 260)
    ]


def test_something_new_is_told_at_once() -> None:
    """Also when it was told before, and that nothing is waited for any more."""
    telling = Telling()
    given = [Awaited("a", 10.0), Awaited("b", 11.0), Awaited("a", 12.0), None, None]

    told = [telling.phase(one) for one in given]

    assert told == ["verify a for 10 s", "verify b for 10 s", "verify a for 10 s", "verify", ""]


def test_another_reason_is_told_at_once() -> None:
    """The same wait for another reason is something new."""
    telling = Telling()
    given = [Awaited("room", 10.0, "a has it"), Awaited("room", 11.0, "b has it")]

    told = [telling.phase(one) for one in given]

    assert told == ["verify room for 10 s: a has it", "verify room for 10 s: b has it"]


class Clock:
    """Pauses that a test ends one by one."""

    def __init__(self) -> None:
        self.turns: asyncio.Queue[None] = asyncio.Queue()

    async def pause(self, _seconds: float) -> None:
        await self.turns.get()


async def test_a_block_tells_until_its_end() -> None:
    """Through the phase; a block without one tells nobody."""
    clock, tasks, phases = Clock(), Tasks("test"), asyncio.Queue[str]()
    awaited: Callable[[], Awaited] = lambda: Awaited("waits", 10.0)  # noqa: E731

    async with told(tasks, awaited, phases.put, clock.pause):
        clock.turns.put_nowait(None)
        assert await phases.get() == "verify waits for 10 s"
    async with told(tasks, awaited, None, clock.pause):
        assert not len(tasks)

    assert phases.empty()
