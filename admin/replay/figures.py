"""What a run is judged by."""

from __future__ import annotations

from array import array

from admin.replay.replica import Ask, Process
from gateway.dispatch.call import Stage


class Figures:
    """Counts, waits and times of one run, in virtual seconds.

    A request is `held` if no replica was there when it came: its cold-start share; `held_wait_s` is
    how long all of these waited. A start is cold if its function had no other replica. A replica is
    moving unless it is ready: `loading_s` is the part of that before, which ends in a loaded model.
    """

    def __init__(self) -> None:
        self.requests = self.answered = self.held = 0
        self.expired = self.refused = self.failed = 0
        self.cold_starts = 0
        self.held_wait_s = 0.0
        self.starts = self.evictions = self.swaps = self.refusals = self.idle_stops = 0
        self.ready_s = self.busy_s = self.moving_s = self.loading_s = 0.0
        self.ticks_skipped = 0
        self.waits_s = array("d")
        self.gaps_s: dict[str, float] = {}
        self._served_s: dict[str, float] = {}

    def waited(self, ask: Ask, now: float) -> None:
        """A call begins to run, or is given up, after so long."""
        if ask.stage is not Stage.ABANDONED:
            self.waits_s.append(now - ask.arrived_s)
            if ask.was_held:
                self.held_wait_s += (now - ask.arrived_s) * ask.weight

    def served(self, pool: str, now: float) -> None:
        """A run of this function begins: how long was there none?"""
        gap_s = now - self._served_s.get(pool, 0.0)
        self._served_s[pool] = now
        self.gaps_s[pool] = max(gap_s, self.gaps_s.get(pool, 0.0))

    def gone(self, process: Process, now: float) -> None:
        """A process ended, or the day did: what it had of its device."""
        if not process.pool:
            return
        left_s = min(process.left_s, now)
        ready_s = max(0.0, left_s - process.ready_s)
        self.ready_s += ready_s
        self.busy_s += process.busy_s
        self.moving_s += now - process.launched_s - ready_s
        self.loading_s += min(process.ready_s, now) - process.launched_s
