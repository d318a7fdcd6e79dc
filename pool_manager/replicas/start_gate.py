"""Limits concurrent starts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

from pool_manager.core.start_queue import Rank, StartPriority, StartQueue


class StartGate:
    """Gate that admits at most `at_once` concurrent starts, in the order of the priorities that
    `turn` returns; by default in the order of arrival."""

    def __init__(
        self,
        at_once: int,
        clock: Callable[[], float],
        turn: Callable[[str], StartPriority] = lambda _id: StartPriority(Rank.WAITER, 0.0),
    ) -> None:
        self._starts = StartQueue(at_once)
        self._clock = clock
        self._waiting: dict[str, asyncio.Future[bool]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._turn = turn

    def __len__(self) -> int:
        return len(self._waiting)

    async def enter(self, id: str) -> bool:
        """Wait until a start is admitted; False if `leave` cancelled it. An admitted start occupies
        a place until `leave`, or for HOLD_S."""
        loop = asyncio.get_running_loop()
        self._waiting[id] = loop.create_future()
        self._starts.enqueue(id)
        self._admit()
        try:
            return await self._waiting[id]
        except asyncio.CancelledError:
            self.leave(id)
            raise
        finally:
            del self._waiting[id]

    def leave(self, id: str) -> None:
        """Free the place of a start that has ended, or cancel one that waits."""
        self._starts.remove(id)
        waiting = self._waiting.get(id)
        if waiting is not None and not waiting.done():
            waiting.set_result(False)
        self._admit()

    def _admit(self) -> None:
        now = self._clock()
        for id in self._starts.admit(self._turn, now):
            waiting = self._waiting[id]
            # A done future was cancelled in this iteration of the loop; its task leaves the gate.
            if not waiting.done():
                waiting.set_result(True)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_s = self._starts.due_s()
        if due_s < inf:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, due_s - now), self._admit)
