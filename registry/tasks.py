"""Background tasks with an owner and a name, whose end is never unnoticed."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from math import inf
from typing import Any

import structlog

log = structlog.get_logger()


class Tasks:
    """Named background tasks of one owner, which cancels and awaits them with `close`.

    A task that raises is logged with its name; the owner and the other tasks continue. A root task
    must run as long as its owner: if it returns, this is logged like an error, and `reasons`
    reports it until the owner closes. Only the owner cancels tasks, so a cancelled task is not
    reported.

    `limit` bounds the number of live tasks. One more raises RuntimeError, because a caller that can
    exceed it lacks its own limit.
    """

    def __init__(self, owner: str, limit: int = 10_000) -> None:
        self._owner = owner
        self._limit = limit
        self._tasks: set[asyncio.Task[Any]] = set()
        self._roots: dict[asyncio.Task[Any], str] = {}
        self._ends: dict[str, str] = {}
        self._closed = False

    def spawn(self, name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run `work` in the background until it ends or the owner closes."""
        if self._closed or len(self._tasks) >= self._limit:
            work.close()
            raise RuntimeError(f"{self._owner}: no room for task {name}")
        task = asyncio.create_task(work, name=f"{self._owner}:{name}")  # noqa: TID251 - here alone
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def root(self, name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run `work`, which must not end by itself, until the owner closes."""
        task = self.spawn(name, work)
        self._roots[task] = name
        return task

    def running(self) -> list[str]:
        """Return the names of the running root tasks, in the order of their starts."""
        return list(self._roots.values())

    def reasons(self) -> list[str]:
        """Return a reason for /readyz per root task that ended by itself."""
        return [f"task {self._owner}:{name} ended: {how}" for name, how in self._ends.items()]

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        root = self._roots.pop(task, None)
        if task.cancelled():
            return
        error = task.exception()
        if root is not None:
            error = error or RuntimeError("it returned")
            self._ends[root] = f"{type(error).__name__}: {error}"
        if error is not None:
            log.error("a background task died", task=task.get_name(), exc_info=error)

    async def close(self) -> None:
        """Cancel and await all tasks; one that does not end within 10 s is logged."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if not tasks:
            return
        _, stuck = await asyncio.wait(tasks, timeout=10)
        for task in stuck:
            log.error("a background task does not end", task=task.get_name())

    def __len__(self) -> int:
        return len(self._tasks)


class Alarm:
    """Timer that calls `action` once, at the earliest time set since the last call.

    Times are those of `clock`, in seconds. Event loop thread only.
    """

    def __init__(self, clock: Callable[[], float], action: Callable[[], None]) -> None:
        self._clock = clock
        self._action = action
        self._at_s = inf
        self._timer: asyncio.TimerHandle | None = None

    def set(self, at_s: float) -> None:
        """Call `action` at `at_s` or earlier; infinity has no effect."""
        if at_s >= self._at_s:
            return
        self.clear()
        self._at_s = at_s
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0.0, at_s - self._clock()), self._ring)

    def clear(self) -> None:
        """Cancel all set times."""
        self._at_s = inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        self.clear()
        self._action()


def every(period_s: float, action: Callable[[], Any]) -> Coroutine[Any, Any, None]:
    """Return an endless coroutine that calls `action` every `period_s` seconds and logs its errors.

    Raises TypeError for a coroutine function, which would be called and never awaited.
    """
    if inspect.iscoroutinefunction(action):
        raise TypeError(f"expected a plain function to call, got the coroutine function {action!r}")
    return _every(period_s, action)


async def _every(period_s: float, action: Callable[[], Any]) -> None:
    while True:
        await asyncio.sleep(period_s)
        try:
            action()
        except Exception:  # one failed call must not stop the period
            log.exception("a periodic action failed")
