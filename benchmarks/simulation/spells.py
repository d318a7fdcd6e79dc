"""A candidate for the eviction cost: calls come in spells, and most of the time none is on."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf, log

from pool_manager.core.policy.value import GAP_MIN_S

SMOOTHING = 0.15
"""Weight of the newest gap."""
PATIENCE = 3.0
"""A spell that has been silent for so many usual gaps is probably over."""


@dataclass(slots=True)
class Spells:
    """How often a pool is needed, by the geometric mean of its gaps.

    One long silence between two spells says little about the gaps within the next: an arithmetic
    mean forgets it only after many calls, by when the spell is over.
    """

    last_s: float = -inf
    log_gap: float | None = None

    def began(self, now: float) -> None:
        """It was called in the second that ends at `now` (monotonic seconds)."""
        gap_s, self.last_s = now - self.last_s, now
        if gap_s == inf:
            return
        newest = log(max(gap_s, GAP_MIN_S))
        known = newest if self.log_gap is None else self.log_gap
        self.log_gap = known + SMOOTHING * (newest - known)

    def rate(self, now: float) -> float:
        """Uses expected per second: the usual rate while a spell may be on, then falling with the
        square of the silence."""
        silence_s = max(now - self.last_s, GAP_MIN_S)
        if self.log_gap is None:
            return 1.0 / silence_s
        usual_s = exp(self.log_gap)
        return min(1.0, PATIENCE * usual_s / silence_s) ** 2 / usual_s
