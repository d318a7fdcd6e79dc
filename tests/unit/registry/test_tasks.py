"""Tests of background tasks, root tasks and their owner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from math import inf
from typing import Any

import pytest
from structlog.testing import capture_logs

from registry.tasks import Alarm, Tasks, every


async def test_a_task_runs_under_its_owners_name() -> None:
    """A task is named after its owner and its work, and is dropped when done."""
    tasks = Tasks("pools")
    done = asyncio.Event()

    async def work() -> str:
        done.set()
        return "result"

    task = tasks.spawn("probe", work())

    assert (task.get_name(), len(tasks)) == ("pools:probe", 1)
    assert await task == "result"
    assert done.is_set()
    assert len(tasks) == 0


async def test_a_failed_task_is_logged() -> None:
    """A task's exception is logged with its name, and the owner keeps running."""
    tasks = Tasks("pools")

    async def die() -> None:
        raise RuntimeError("broken")

    with capture_logs() as logs:
        await asyncio.wait([tasks.spawn("probe", die())])

    assert [(line["log_level"], line["task"]) for line in logs] == [("error", "pools:probe")]
    assert len(tasks) == 0


async def test_closing_cancels_and_waits() -> None:
    """`close` cancels all tasks, waits for their clean-up, and refuses new ones."""
    tasks = Tasks("pools")
    cleaned = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    tasks.spawn("waiting", wait())
    await asyncio.sleep(0)
    await tasks.close()

    assert cleaned == [True]
    assert len(tasks) == 0
    with pytest.raises(RuntimeError, match="no room"):
        tasks.spawn("late", wait())
    await tasks.close()


async def test_the_limit_holds() -> None:
    """A task beyond the limit is refused, and its coroutine is closed."""
    tasks = Tasks("pools", limit=1)
    tasks.spawn("first", asyncio.Event().wait())

    with pytest.raises(RuntimeError, match="pools: no room for task second"):
        tasks.spawn("second", asyncio.Event().wait())

    await tasks.close()


async def test_root_tasks_are_listed_while_they_run() -> None:
    """`running` lists root tasks only; `close` does not count as their unexpected end."""
    tasks = Tasks("pools")
    tasks.root("tick", every(3600, int))
    tasks.root("sweep", every(3600, int))
    tasks.spawn("one call", asyncio.Event().wait())

    assert tasks.running() == ["tick", "sweep"]

    with capture_logs() as logs:
        await tasks.close()

    assert (tasks.running(), tasks.reasons(), logs) == ([], [], [])


async def _die() -> None:
    raise OSError("disk full")


async def _return() -> None:
    """Return at once."""


@pytest.mark.parametrize(
    ("work", "how"), [(_die, "OSError: disk full"), (_return, "RuntimeError: it returned")]
)
async def test_the_end_of_a_root_task_is_reported(
    work: Callable[[], Coroutine[Any, Any, None]], how: str
) -> None:
    """A root task that ends by itself is logged as an error and is a reason for /readyz."""
    tasks = Tasks("pools")

    with capture_logs() as logs:
        await asyncio.wait([tasks.root("tick", work())])

    assert [(line["log_level"], line["task"]) for line in logs] == [("error", "pools:tick")]
    assert tasks.running() == []
    assert tasks.reasons() == [f"task pools:tick ended: {how}"]


async def test_a_cancelled_root_task_is_no_reason() -> None:
    """An owner may cancel a root task before `close`."""
    tasks = Tasks("pools")

    task = tasks.root("tick", every(3600, int))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])

    assert (tasks.running(), tasks.reasons()) == ([], [])


async def test_every_survives_an_error() -> None:
    """A periodic action's exception is logged, and the action is called again."""
    calls = 0
    enough = asyncio.Event()

    def action() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError("once")
        enough.set()

    tasks = Tasks("clock")
    with capture_logs() as logs:
        tasks.spawn("tick", every(0, action))
        await enough.wait()
    await tasks.close()

    assert [line["event"] for line in logs] == ["a periodic action failed"]


async def _coroutine_function() -> None:
    """Do nothing."""


@pytest.mark.parametrize("action", [_coroutine_function, partial(_coroutine_function)])
def test_a_coroutine_function_is_no_periodic_action(action: Callable[[], Any]) -> None:
    """`every` refuses a coroutine function at once, because it would not await it."""
    with pytest.raises(TypeError, match="coroutine function"):
        _ = every(1.0, action)


async def test_an_alarm_rings_at_the_earliest_time_once() -> None:
    """A later time does not change an alarm, an earlier one replaces it; it rings once."""
    rings: list[float] = []
    rang = asyncio.Event()
    loop = asyncio.get_running_loop()

    def ring() -> None:
        rings.append(loop.time())
        rang.set()

    alarm = Alarm(loop.time, ring)
    now = loop.time()
    alarm.set(inf)
    alarm.set(now + 3600.0)
    alarm.set(now - 1.0)
    alarm.set(now + 1800.0)

    await rang.wait()
    assert len(rings) == 1
    rang.clear()
    alarm.set(now)
    await rang.wait()
    assert len(rings) == 2


async def test_an_alarm_can_be_cleared() -> None:
    """A cleared alarm does not ring."""
    rings: list[str] = []
    rang = asyncio.Event()
    loop = asyncio.get_running_loop()
    alarm = Alarm(loop.time, lambda: rings.append("cleared"))
    alarm.set(loop.time())
    alarm.clear()
    alarm.clear()

    other = Alarm(loop.time, rang.set)
    other.set(loop.time() + 0.001)
    await rang.wait()

    assert rings == []
