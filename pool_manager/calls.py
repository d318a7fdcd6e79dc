"""Blocking calls that may hang, run outside the event loop."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from math import inf
from typing import Any, TypeVar

T = TypeVar("T")

WAITING_MAX = 64
"""Max calls with a time limit that wait for a thread."""


class Unanswered(Exception):
    """A call did not end within its time limit, or earlier calls still hang."""


class BlockingCalls:
    """Runs calls in order on up to `threads` threads; a caller waits `limit_s` at most.

    While every thread has been in one call for longer than that, further calls are refused at once.
    The threads are daemons: threads of the standard library's executor would prevent the process
    from exiting while a call hangs.
    """

    def __init__(
        self,
        name: str,
        *,
        threads: int = 1,
        limit_s: float = inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._threads_max = threads
        self._limit_s = limit_s
        self._clock = clock
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._began_s: dict[threading.Thread, float] = {}
        """Start time of the running call, by thread."""

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run `function` in a thread; return or raise what it does. A call that is cancelled while
        it waits for a thread is never made.

        Raises Unanswered.
        """
        self._check()
        answer: Future[T] = Future()

        def work() -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                answer.set_result(function(*arguments))
            except BaseException as error:  # noqa: BLE001 - the caller gets it
                answer.set_exception(error)

        self._jobs.put(work)
        if len(self._threads) < self._threads_max:
            self._threads.append(threading.Thread(target=self._work, name=self._name, daemon=True))
            self._threads[-1].start()
        if self._limit_s == inf:
            return await asyncio.wrap_future(answer)
        try:
            async with asyncio.timeout(self._limit_s):
                return await asyncio.wrap_future(answer)
        except TimeoutError:
            raise Unanswered(f"{self._name} did not answer for {self._limit_s:g} s") from None

    def _check(self) -> None:
        """Raise Unanswered if one more call would not be run in time."""
        if self._limit_s == inf:
            return
        late_s = self._clock() - self._limit_s
        began_s = list(self._began_s.values())
        if len(began_s) == self._threads_max and max(began_s) <= late_s:
            raise Unanswered(f"{self._name} has not answered for {self._limit_s:g} s")
        if self._jobs.qsize() >= WAITING_MAX:
            raise Unanswered(f"{self._name}: {WAITING_MAX} calls wait already")

    def _work(self) -> None:
        thread = threading.current_thread()
        while (job := self._jobs.get()) is not None:
            self._began_s[thread] = self._clock()
            job()
            del self._began_s[thread]

    def close(self) -> None:
        """Let every thread end after the queued calls. A thread that hangs is abandoned."""
        for _ in self._threads:
            self._jobs.put(None)

    def join(self, deadline_s: float) -> None:
        """Block until every thread has ended, or until `deadline_s` on the clock."""
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - self._clock()))
