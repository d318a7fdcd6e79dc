"""Figures of a simulated run, as plain data."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from admin.advice.load_model import Ask, Figures
from gateway.dispatch.call import Stage


class GroupFigures(Figures):
    """Figures of a run that tell groups of functions apart. `groups` has the group of each function
    by its key; functions without a group are only counted together."""

    def __init__(self, groups: Mapping[str, str]) -> None:
        super().__init__()
        self._groups = groups
        self._waits_s: defaultdict[str, array[float]] = defaultdict(lambda: array("d"))
        self._expired: Counter[str] = Counter()

    def waited(self, ask: Ask, now: float) -> None:
        super().waited(ask, now)
        if ask.stage is not Stage.ABANDONED and ask.pool in self._groups:
            self._waits_s[self._groups[ask.pool]].append(now - ask.arrived_s)

    def gave_up(self, ask: Ask, now: float) -> None:
        super().gave_up(ask, now)
        if ask.pool in self._groups:
            self._expired[self._groups[ask.pool]] += ask.weight

    def by_group(self) -> dict[str, dict[str, Any]]:
        """Return the waits of each group in seconds, those of expired calls included, and how many
        calls expired."""
        return {
            name: {"waits_s": waits.tolist(), "expired": self._expired[name]}
            for name, waits in self._waits_s.items()
        }


def as_report(figures: Figures, devices_s: float, *, holds_idle: bool) -> dict[str, Any]:
    """Return the figures as plain data; shares are relative to all `devices_s` device-seconds.
    `holds_idle`: an idle replica holds its devices, and not only memory as on CPU slots."""
    waits = sorted(figures.waits_s)
    idle_s = max(0.0, figures.ready_s - figures.busy_s) if holds_idle else 0.0
    return {
        "requests": figures.requests,
        "answered": figures.answered,
        "expired": figures.expired,
        "refused": figures.refused,
        "failed": figures.failed,
        "cold_share": figures.held / max(1, figures.requests),
        "wait_mean_s": sum(waits) / max(1, len(waits)),
        **{f"wait_p{p:g}_s": percentile(waits, p) for p in (50, 95, 99)},
        "wait_max_s": waits[-1] if waits else 0.0,
        "starts": figures.starts,
        "evictions": figures.evictions,
        "swaps": figures.swaps,
        "refusals": figures.refusals,
        "idle_stops": figures.idle_stops,
        "busy_device_s": figures.busy_s,
        "idle_device_s": idle_s,
        "moving_device_s": figures.moving_s,
        "idle_share": idle_s / devices_s,
        "loading_share": figures.loading_s / devices_s,
        **_server_waits(sorted(figures.server_waits_s)),
        "revoked": figures.revoked,
        "cut": figures.cut,
        "longest_gap_s": max(figures.gaps_s.values(), default=0.0),
    }


def _server_waits(waits: list[float]) -> dict[str, float]:
    return {
        "server_wait_mean_s": sum(waits) / max(1, len(waits)),
        "server_wait_p95_s": percentile(waits, 95),
        "server_wait_max_s": waits[-1] if waits else 0.0,
    }


def percentile(ordered: list[float], percent: float) -> float:
    """Return the smallest value not below `percent` of all; 0 for no values."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def spread(seconds: array[float]) -> dict[str, float]:
    """Return count, sum in seconds, and percentiles in milliseconds."""
    ordered = sorted(seconds)
    found = {f"p{p:g}_ms": percentile(ordered, p) * 1e3 for p in (50, 99)}
    return {"count": len(ordered), "sum_s": sum(ordered), **found, "max_ms": ordered[-1] * 1e3}
