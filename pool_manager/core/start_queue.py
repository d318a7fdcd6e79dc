"""The queue of starts: each takes a core, so only a few run at once.

Ten starts at once on two cores all end late; in pairs they end no later in all, and the first of
them several times sooner.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from math import inf
from typing import Final, NamedTuple

HOLD_S: Final = 1.0
"""A start counts for so long at most: after that it hangs or waits for something else than a
core."""
SHORT_LOAD_S: Final = 0.03
"""A load that is shorter is not queued: it is over before another start would have to wait."""


class Rank(IntEnum):
    """What a start is for, most urgent first. SHORT is admitted at once."""

    SHORT = 0
    WAITER = 1
    FLOOR = 2
    STANDBY = 3


class StartPriority(NamedTuple):
    """The order of starts: by rank, then by the time since which each is wanted (monotonic)."""

    rank: Rank
    since_s: float


class StartQueue:
    """At most `at_once` starts run, the others wait. `now` is monotonic seconds."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._line: dict[str, None] = {}
        self._running: dict[str, float] = {}

    def enqueue(self, id: str) -> None:
        """Queue a start."""
        self._line[id] = None

    def remove(self, id: str) -> None:
        """Remove a start that has ended or is not wanted any more; unknown ids are ignored."""
        self._line.pop(id, None)
        self._running.pop(id, None)

    def admit(self, turn: Callable[[str], StartPriority], now: float) -> list[str]:
        """The starts that may begin now, in order. `turn` gives each one's priority and is called
        anew every time, since a call may have begun to wait for a queued start."""
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
        """When the next start may begin even if none ends; infinite if the queue is empty."""
        return min(self._running.values(), default=inf) if self._line else inf
