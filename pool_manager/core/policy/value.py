"""What it would cost to let a warm replica go."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf, log

SMOOTHING = 0.15
"""Weight of the newest gap between two uses."""
GAP_MIN_S = 1.0
PATIENCE = 3.0
"""After so many usual gaps in silence a spell of calls is probably over."""
UNKNOWN_RELOAD_S = 1.0
"""Assumed where a revision has never been loaded."""


@dataclass(slots=True)
class Uses:
    """How often a pool is needed, by the geometric mean of the gaps between its calls.

    Calls come in spells. One long silence says little about the gaps within the next spell: an
    arithmetic mean forgets it only after many calls, by when that spell is over.
    """

    last_s: float = -inf
    log_gap: float | None = None

    def called(self, now: float) -> None:
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


def cost(uses: Uses, reload_s: float, now: float) -> float:
    """Expected seconds of cold start per second without the replica: reload x chance of need.

    Where nothing is known of gaps this orders like LRU, weighted by the time to load again.
    """
    return (reload_s or UNKNOWN_RELOAD_S) * uses.rate(now)
