"""Where starts wait for their turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

from pool_manager.core.start_queue import Rank, Starts, Turn


class StartLine:
    """At most `at_once` starts go on at the same time. `turn` says whose comes first; until it is
    set, they come in the order in which they were asked for."""

    def __init__(self, at_once: int, clock: Callable[[], float]) -> None:
        self._starts = Starts(at_once)
        self._clock = clock
        self._waiting: dict[str, asyncio.Future[bool]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.turn: Callable[[str], Turn] = lambda _id: Turn(Rank.WAITER, 0.0)

    def __len__(self) -> int:
        return len(self._waiting)

    async def enter(self, id: str) -> bool:
        """Wait for the turn of a start; False where it is not wanted any more. Whoever has
        entered counts until `leave`, or until it has taken too long."""
        loop = asyncio.get_running_loop()
        self._waiting[id] = loop.create_future()
        self._starts.ask(id)
        self._let_in()
        try:
            return await self._waiting[id]
        except asyncio.CancelledError:
            self.leave(id)
            raise
        finally:
            del self._waiting[id]

    def leave(self, id: str) -> None:
        """A start has ended, or is not wanted any more."""
        self._starts.leave(id)
        waiting = self._waiting.get(id)
        if waiting is not None and not waiting.done():
            waiting.set_result(False)
        self._let_in()

    def _let_in(self) -> None:
        now = self._clock()
        for id in self._starts.begin(self.turn, now):
            waiting = self._waiting[id]
            if not waiting.done():  # else it was cancelled in this turn, and will leave
                waiting.set_result(True)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_s = self._starts.due_s()
        if due_s < inf:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, due_s - now), self._let_in)
