"""Blocking calls with a limit on waiting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from pool_manager.calls import WAITING_MAX, BlockingCalls, Unanswered

SHORT_S = 0.01


class Door:
    """A call that blocks until it is released."""

    def __init__(self) -> None:
        self.is_inside = threading.Event()
        self.open = threading.Event()

    def __call__(self) -> str:
        self.is_inside.set()
        self.open.wait(30)
        return "through"


@pytest.fixture
def calls() -> Iterator[BlockingCalls]:
    made = BlockingCalls("the driver", limit_s=30.0)
    yield made
    made.close()


@pytest.fixture
def door() -> Iterator[Door]:
    made = Door()
    yield made
    made.open.set()


async def test_a_call_s_result_is_returned(calls: BlockingCalls) -> None:
    """All calls run in one thread, which is not the event loop's."""
    first = await calls.run(threading.get_ident)

    assert first == await calls.run(threading.get_ident) != threading.get_ident()
    assert await calls.run(divmod, 7, 2) == (3, 1)


async def test_a_call_s_error_is_raised(calls: BlockingCalls) -> None:
    """An exception of a call is raised, and the next call is made normally."""
    with pytest.raises(ZeroDivisionError):
        await calls.run(divmod, 1, 0)

    assert await calls.run(divmod, 1, 1) == (1, 0)


async def test_a_call_that_hangs_is_given_up(door: Door) -> None:
    """While a call hangs, others are refused at once; when it ends, calls work again."""
    now = [0.0]
    calls = BlockingCalls("the driver", limit_s=SHORT_S, clock=lambda: now[0])
    with pytest.raises(Unanswered, match=r"the driver did not answer for 0\.01 s"):
        await calls.run(door)
    now[0] = 1.0
    for _ in range(3):
        with pytest.raises(Unanswered, match="the driver has not answered for"):
            await calls.run(int)

    door.open.set()
    async with asyncio.timeout(60):
        while True:
            try:
                assert await calls.run(int) == 0
                break
            except Unanswered:
                await asyncio.to_thread(lambda: None)
    calls.close()


async def test_only_so_many_calls_wait(calls: BlockingCalls, door: Door) -> None:
    """A call above WAITING_MAX is refused."""
    first = asyncio.create_task(calls.run(door))
    await asyncio.to_thread(door.is_inside.wait, 30)
    others = [asyncio.create_task(calls.run(int)) for _ in range(WAITING_MAX)]
    await asyncio.sleep(0)

    with pytest.raises(Unanswered, match="64 calls wait already"):
        await calls.run(int)
    door.open.set()
    assert await first == "through"
    assert [await one for one in others] == [0] * WAITING_MAX


async def test_who_gives_up_waiting_is_not_served(calls: BlockingCalls, door: Door) -> None:
    """A call whose caller gave up is not made."""
    done: list[int] = []
    first = asyncio.create_task(calls.run(door))
    second = asyncio.create_task(calls.run(done.append, 1))
    await asyncio.to_thread(door.is_inside.wait, 30)
    second.cancel()
    await asyncio.wait([second])
    door.open.set()
    await first
    await calls.run(int)

    assert done == []


async def test_the_thread_ends() -> None:
    """The thread ends after the queued calls; one that hangs is abandoned."""
    calls = BlockingCalls("a driver of its own", limit_s=30.0)
    await calls.run(int)
    calls.close()

    async with asyncio.timeout(60):
        while any(thread.name == "a driver of its own" for thread in threading.enumerate()):
            await asyncio.to_thread(lambda: None)
