"""Figures of a load: quantiles of latency, rates. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from admin.cli.bench.load import LoadResult

BUSY_MAX: Final = 0.9
"""Share of its time from which a load generator is taken for the bottleneck."""
STARVED_MAX: Final = 0.1
"""Share of its time that a load generator may wait for a processor."""
LEAST: Final = {0.5: 1, 0.9: 10, 0.99: 100}
"""Fewest values for each quantile; with fewer it would be the largest value."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Quantiles in ms; None for too few values."""

    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    max_ms: float | None


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one point. Latencies are those of expected answers only. `rows_per_s` is None if
    the rows of a call are unknown."""

    latency: Latency
    calls_per_s: float
    rows_per_s: float | None
    answers: int
    result: LoadResult

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        result = self.result
        return {
            "calls_per_s": round(self.calls_per_s, 3),
            "rows_per_s": None if self.rows_per_s is None else round(self.rows_per_s, 3),
            "latency_ms": latency_json(self.latency),
            "answers": self.answers,
            "errors": result.errors,
            "warmup_errors": result.warmup_errors,
            "cut": result.cut,
            "unsent": result.unsent,
            "window_s": round(result.window_s, 6),
            "generator_busy": round(result.busy, 3),
            "generator_starved": round(result.starved, 3),
            "partial": result.stopped or None,
        }


def latency_json(latency: Latency) -> dict[str, float | None]:
    """Return plain JSON data."""
    names = ("p50", "p90", "p99", "max")
    values = (latency.p50_ms, latency.p90_ms, latency.p99_ms, latency.max_ms)
    return {
        name: None if ms is None else round(ms, 4) for name, ms in zip(names, values, strict=True)
    }


def figures(result: LoadResult, rows: int, connections: int) -> Figures:
    """Return the figures of a load whose calls have `rows` rows each, 0 for unknown."""
    rate = calls_per_s(result, connections)
    return Figures(
        latency([one * 1e3 for one in result.taken_s]),
        rate,
        rate * rows if rows else None,
        len(result.taken_s),
        result,
    )


def calls_per_s(result: LoadResult, connections: int) -> float:
    """Return expected answers per second of the window.

    With fewer answers in the window than connections, the ends of single calls would decide: then
    all counted answers count, over the time until the last one.
    """
    if result.in_window >= connections and result.window_s > 0:
        return result.in_window / result.window_s
    return len(result.taken_s) / result.elapsed_s if result.elapsed_s > 0 else 0.0


def latency(values_ms: Sequence[float]) -> Latency:
    """Return the quantiles of some latencies."""
    ordered = sorted(values_ms)
    p50, p90, p99 = (
        quantile(ordered, share) if len(ordered) >= least else None
        for share, least in LEAST.items()
    )
    return Latency(p50, p90, p99, ordered[-1] if ordered else None)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` (0 to 1) of the sorted values do not exceed
    (nearest rank). Raises ValueError for none."""
    if not ordered:
        raise ValueError("values: expected at least one, got none")
    # Rounded, because 0.07 * 100 is 7.000000000000001.
    rank = math.ceil(round(len(ordered) * share, 9))
    return ordered[max(rank - 1, 0)]


def notes(items: Sequence[Figures]) -> list[str]:
    """Return notes about limits of the figures."""
    found = []
    busy = max((one.result.busy for one in items), default=0.0)
    starved = max((one.result.starved for one in items), default=0.0)
    if busy >= BUSY_MAX:
        found.append(
            f"a load generator computed {busy:.0%} of the time: it was the bottleneck, and figures"
            " are too bad; choose a lower --rate or fewer connections, or run several at once"
        )
    if starved >= STARVED_MAX:
        found.append(
            f"a load generator waited {starved:.0%} of the time for a processor of this machine,"
            " which is part of the latencies"
        )
    if warmup := sum(one.result.warmup_errors for one in items):
        found.append(f"{warmup} calls of the warm-up failed; they are in no figure")
    if cut := sum(one.result.cut for one in items):
        found.append(f"{cut} calls were in flight when the load stopped; they are in no figure")
    if unsent := sum(one.result.unsent for one in items):
        found.append(
            f"{unsent} calls were due and not sent, as all connections were busy: the rate is above"
            " what the function, or -c, allows"
        )
    return found
