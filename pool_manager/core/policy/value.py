"""What it would cost to let a warm replica go."""

from __future__ import annotations

from dataclasses import dataclass

SMOOTHING = 0.3
"""Weight of the newest gap between two uses."""
GAP_MIN_S = 1.0
UNKNOWN_RELOAD_S = 1.0
"""Assumed where a revision has never been loaded."""


@dataclass(slots=True)
class Uses:
    """How often a pool is needed. A use begins when its load rises from nothing."""

    last_s: float = float("-inf")
    mean_gap_s: float = 0.0

    def began(self, now: float) -> None:
        """A use begins at `now` (monotonic seconds)."""
        gap_s = now - self.last_s
        self.last_s = now
        if gap_s == float("inf"):
            return
        known = self.mean_gap_s
        self.mean_gap_s = known + SMOOTHING * (gap_s - known) if known else gap_s

    def rate(self, now: float) -> float:
        """Uses expected per second: by the usual gap, or the present one where that is longer."""
        return 1.0 / max(self.mean_gap_s, now - self.last_s, GAP_MIN_S)


def cost(uses: Uses, reload_s: float, now: float) -> float:
    """Expected seconds of cold start per second without the replica: reload x chance of need.

    Where nothing is known of gaps this orders like LRU, weighted by the time to load again.
    """
    return (reload_s or UNKNOWN_RELOAD_S) * uses.rate(now)
