"""Honest answers to "when should I try again?", from a revision's own past."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import ceil

from registry.exchange import Expected

WINDOW_S = 10.0
RETRY_MIN_S = 1
RETRY_MAX_S = 60
RETRY_UNKNOWN_S = 5
"""Told where nothing has been answered lately."""
SAMPLES_MAX = 1024
SAMPLES_ENOUGH = 5
"""Cold starts from which it may be told that the next one takes too long for somebody."""
UNKNOWN_COLD_START = Expected(0.0, 5.0, 5.0, 0)
"""Assumed where nothing was said of a revision yet."""


@dataclass(slots=True)
class Pace:
    """How fast a revision answers. `expected` is what a cold start of it takes."""

    expected: Expected = UNKNOWN_COLD_START
    _ends: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES_MAX))

    def answered(self, now: float) -> None:
        """One more answer was given."""
        self._ends.append(now)

    def retry_warm_s(self, ahead: int, now: float) -> int:
        """Whole seconds until `ahead` calls will have been served, by the rate of the last
        seconds."""
        recent = [end for end in self._ends if now - end <= WINDOW_S]
        if not recent:
            return RETRY_UNKNOWN_S
        span = max(now - recent[0], 0.1)
        return _whole_s(ahead * span / len(recent))

    def retry_cold_s(self, waking_s: float) -> int:
        """Whole seconds until most cold starts that have taken `waking_s` so far are over."""
        return _whole_s(self.expected.p90_s - waking_s)

    def is_too_long(self, waking_s: float, budget_s: float) -> bool:
        """Whether what is left of a cold start all but certainly takes longer than `budget_s`."""
        left_s = self.expected.p10_s - waking_s
        return self.expected.samples >= SAMPLES_ENOUGH and left_s > budget_s


def _whole_s(seconds: float) -> int:
    """What the header can say: whole seconds, one at least."""
    return max(RETRY_MIN_S, min(RETRY_MAX_S, ceil(seconds)))
