"""Blocking calls that may hang, kept out of the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

WAITING_MAX = 64
"""Calls that may wait for their turn."""


class Unanswered(Exception):
    """A call did not end within the limit, or an earlier one hangs still."""


class BlockingCalls:
    """Does one call after the other in a thread of its own; nobody waits longer than `limit_s`.

    While one hangs all others are refused at once. The thread does not keep the process alive: a
    driver that never answers must not keep the server from ending.
    """

    def __init__(
        self, name: str, limit_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._limit_s = limit_s
        self._clock = clock
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue(WAITING_MAX)
        self._began_s: float | None = None
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """What `function` returns or raises. Raises Unanswered."""
        answer: Future[T] = Future()

        def work() -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                result = function(*arguments)
            except Exception as error:  # noqa: BLE001 - whoever asked gets it
                answer.set_exception(error)
            else:
                answer.set_result(result)

        self._put(work)
        try:
            async with asyncio.timeout(self._limit_s):
                return await asyncio.wrap_future(answer)
        except TimeoutError:
            raise Unanswered(f"{self._name} did not answer for {self._limit_s:g} s") from None

    def _put(self, job: Callable[[], None] | None) -> None:
        began_s = self._began_s
        if began_s is not None and self._clock() - began_s >= self._limit_s:
            raise Unanswered(f"{self._name} has not answered for {self._limit_s:g} s")
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            raise Unanswered(f"{self._name}: {WAITING_MAX} calls wait already") from None

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._began_s = self._clock()
            job()
            self._began_s = None

    def close(self) -> None:
        """Let the thread end after what waits; one that hangs is left behind."""
        with contextlib.suppress(Unanswered):
            self._put(None)
