"""What a run is judged by."""

from __future__ import annotations

from array import array
from collections import defaultdict
from typing import Any

from benchmarks.simulation.replica import Ask, Process
from gateway.dispatch.call import Stage


class Figures:
    """Counts, waits and times of one run. Virtual seconds, but for `decisions_s`: those are the
    processor's seconds inside `Machine.handle`, by kind of event.

    A request is `held` if no replica was there when it came: its cold-start share. A replica is
    moving unless it is ready: `loading_s` is the part of that before, which ends in a loaded model.
    """

    def __init__(self) -> None:
        self.requests = self.answered = self.held = 0
        self.expired = self.refused = self.failed = 0
        self.starts = self.evictions = self.swaps = self.refusals = self.idle_stops = 0
        self.ready_s = self.busy_s = self.moving_s = self.loading_s = 0.0
        self.ticks_skipped = 0
        self.waits_s = array("d")
        self.decisions_s: defaultdict[str, array[float]] = defaultdict(lambda: array("d"))
        self.gaps_s: dict[str, float] = {}
        self._served_s: dict[str, float] = {}

    def waited(self, ask: Ask, now: float) -> None:
        """A call begins to run, or is given up, after so long."""
        if ask.stage is not Stage.ABANDONED:
            self.waits_s.append(now - ask.arrived_s)

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

    def report(self, devices_s: float) -> dict[str, Any]:
        """As plain data; shares are parts of `devices_s`, all the device-seconds there were."""
        waits = sorted(self.waits_s)
        idle_s = max(0.0, self.ready_s - self.busy_s)
        return {
            "requests": self.requests,
            "answered": self.answered,
            "expired": self.expired,
            "refused": self.refused,
            "failed": self.failed,
            "cold_share": self.held / max(1, self.requests),
            "wait_mean_s": sum(waits) / max(1, len(waits)),
            **{f"wait_p{p:g}_s": percentile(waits, p) for p in (50, 95, 99)},
            "wait_max_s": waits[-1] if waits else 0.0,
            "starts": self.starts,
            "evictions": self.evictions,
            "swaps": self.swaps,
            "refusals": self.refusals,
            "idle_stops": self.idle_stops,
            "busy_device_s": self.busy_s,
            "idle_device_s": idle_s,
            "moving_device_s": self.moving_s,
            "idle_share": idle_s / devices_s,
            "loading_share": self.loading_s / devices_s,
            "longest_gap_s": max(self.gaps_s.values(), default=0.0),
        }

    def decision_ms(self) -> dict[str, dict[str, float]]:
        """The processor's milliseconds per decision, by kind of event."""
        return {kind: spread(values) for kind, values in sorted(self.decisions_s.items())}


def percentile(ordered: list[float], percent: float) -> float:
    """The smallest value that is not below `percent` of all; 0 where there is none."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def spread(seconds: array[float]) -> dict[str, float]:
    """Count, sum in seconds, and percentiles in milliseconds."""
    ordered = sorted(seconds)
    found = {f"p{p:g}_ms": percentile(ordered, p) * 1e3 for p in (50, 99)}
    return {"count": len(ordered), "sum_s": sum(ordered), **found, "max_ms": ordered[-1] * 1e3}
