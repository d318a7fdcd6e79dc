"""Whose start goes on: work that takes a core each, and only so many at once.

Ten starts at once on two cores all end late; two after two end no later in all, and the first of
them several times sooner.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from math import inf
from typing import Final, NamedTuple

HOLD_S: Final = 1.0
"""A start that takes longer counts no more: it hangs, or waits for something else than a core."""
SHORT_LOAD_S: Final = 0.03
"""A standby that loads so soon is over with it before another one would be asked to wait."""


class Rank(IntEnum):
    """What a start is for, most urgent first. What is over in no time stands in no line."""

    SHORT = 0
    WAITER = 1
    FLOOR = 2
    STANDBY = 3


class StartPriority(NamedTuple):
    """Who goes first: the more urgent, then who was wanted first (monotonic seconds)."""

    rank: Rank
    since_s: float


class StartQueue:
    """At most `at_once` starts go on, the others stand in line. `now` is monotonic seconds."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._line: dict[str, None] = {}
        self._running: dict[str, float] = {}

    def enqueue(self, id: str) -> None:
        """One more start is wanted."""
        self._line[id] = None

    def remove(self, id: str) -> None:
        """A start has ended, or is not wanted any more. Others are ignored."""
        self._line.pop(id, None)
        self._running.pop(id, None)

    def admit(self, turn: Callable[[str], StartPriority], now: float) -> list[str]:
        """Those that may begin now, in this order. `turn` is asked anew every time: somebody may
        have come to wait for what nobody had waited for."""
        self._running = {id: end_s for id, end_s in self._running.items() if end_s > now}
        turns = {id: turn(id) for id in self._line}
        line = sorted(self._line, key=turns.__getitem__)
        short = [id for id in line if turns[id].rank is Rank.SHORT]
        evictor = max(0, self._at_once - len(self._running))
        following = line[len(short) :][:evictor]
        for id in (*short, *following):
            del self._line[id]
        for id in following:
            self._running[id] = now + HOLD_S
        return [*short, *following]

    def due_s(self) -> float:
        """When the next one may begin even if none ends; infinite where nobody stands in line."""
        return min(self._running.values(), default=inf) if self._line else inf
