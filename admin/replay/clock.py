"""Virtual time: what is to happen when."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Any


class Clock:
    """A heap of things to do. What is due at one moment is done in the order it was asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._order = itertools.count()

    def at(self, when_s: float, do: Callable[[Any], None], what: Any) -> None:
        """Have `do(what)` done at `when_s`."""
        heappush(self._heap, (when_s, next(self._order), do, what))

    def after(self, delay_s: float, do: Callable[[Any], None], what: Any) -> None:
        """Have `do(what)` done in `delay_s`."""
        self.at(self.now + delay_s, do, what)

    def next_s(self) -> float:
        """When something happens next; infinite where nothing will."""
        return self._heap[0][0] if self._heap else inf

    def step(self) -> None:
        """Do the next thing."""
        self.now, _, do, what = heappop(self._heap)
        do(what)
