"""Honest answers to "when should I try again?", from a revision's own past."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import ceil

WINDOW_S = 10.0
RETRY_MIN_S = 1
RETRY_MAX_S = 60
SAMPLES_MAX = 1024
UNKNOWN_COLD_START_S = 5.0
"""Assumed where a revision has never been started."""


@dataclass(slots=True)
class Pace:
    """How fast a revision answers. `cold_start_s` is the median of its past cold starts."""

    cold_start_s: float = 0.0
    _ends: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES_MAX))

    def answered(self, now: float) -> None:
        """One more answer was given."""
        self._ends.append(now)

    def retry_after_s(self, ahead: int, waited_s: float, now: float) -> int:
        """Whole seconds until `ahead` calls will have been served.

        While it answers: by its rate of the last seconds. While it wakes: what is left of a usual
        cold start, of which `waited_s` have passed.
        """
        recent = [end for end in self._ends if now - end <= WINDOW_S]
        if recent:
            span = max(now - recent[0], 0.1)
            estimate = ahead * span / len(recent)
        else:
            estimate = (self.cold_start_s or UNKNOWN_COLD_START_S) - waited_s
        return max(RETRY_MIN_S, min(RETRY_MAX_S, ceil(estimate)))
