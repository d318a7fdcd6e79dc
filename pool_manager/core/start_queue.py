"""Start queue: each start takes a CPU core, so only a few run at once.

Ten concurrent starts on two cores all end late. In pairs, the last one ends no later and the first
one several times sooner.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from math import inf
from typing import Final, NamedTuple

HOLD_S: Final = 1.0
"""A start occupies its place for at most this long. After that it hangs or waits for something
other than a core."""
SHORT_LOAD_S: Final = 0.03
"""Loads that are known to be shorter are not queued: they end before another start would wait."""


class Rank(IntEnum):
    """Purpose of a start, most urgent first: a short load (admitted at once), waiting calls, a
    pool's `min`, a standby, a build."""

    SHORT = 0
    WAITER = 1
    FLOOR = 2
    STANDBY = 3
    BUILD = 4


class StartPriority(NamedTuple):
    """Sort key of starts: rank, then the time since which the start is wanted (monotonic)."""

    rank: Rank
    since_s: float


class StartQueue:
    """Queue of starts, of which at most `at_once` run. `now` is monotonic seconds."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._line: dict[str, None] = {}
        self._running: dict[str, float] = {}

    def enqueue(self, id: str) -> None:
        """Queue a start."""
        self._line[id] = None

    def remove(self, id: str) -> None:
        """Remove a start that has ended or is no longer wanted; unknown ids are ignored."""
        self._line.pop(id, None)
        self._running.pop(id, None)

    def admit(self, turn: Callable[[str], StartPriority], now: float) -> list[str]:
        """Remove and return the starts that may begin now, in order. `turn` returns a start's
        priority; it is evaluated on every call, since calls may have begun to wait for the
        start."""
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
        """Return when the next start may begin even if none ends; infinite if none is queued."""
        return min(self._running.values(), default=inf) if self._line else inf
