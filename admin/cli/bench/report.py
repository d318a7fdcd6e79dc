"""Text of a benchmark's outcome. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from admin.cli.bench.benchmark import Outcome
from admin.cli.bench.cold_starts import ColdStarts
from admin.cli.bench.figures import Figures, Latency
from admin.cli.bench.payloads import Request
from admin.cli.bench.points import Point
from admin.text import NONE, duration, number, size, table

HEAD: Final = (
    *("ROWS", "CONC", "CALLS/S", "ROWS/S", "P50 MS", "P90 MS", "P99 MS", "LONGEST"),
    *("ANSWERS", "ERRORS"),
)
PARTIAL: Final = " (partial)"


def render(ref: str, requests: Mapping[int, Request], outcome: Outcome) -> str:
    """Render cold starts, the table of points, and errors by kind."""
    parts = []
    if outcome.cold is not None:
        parts.append(render_cold(outcome.cold))
    if outcome.points:
        used = [requests[point.batch] for point, _ in outcome.points]
        forms = ", ".join(dict.fromkeys(one.form for one in used))
        sizes = sorted({len(one.body) for one in used})
        span = " to ".join(size(one) for one in dict.fromkeys((sizes[0], sizes[-1])))
        rows = [_row(requests[point.batch], point, one) for point, one in outcome.points]
        parts.append(f"{ref}, warm: {forms}, {span} a call\n{table(HEAD, rows)}")
    errors = [
        f"  {_rows(requests[point.batch].rows)}c={point.concurrency}: {_kinds(one)}"
        for point, one in outcome.points
        if one.result.errors
    ]
    if errors:
        parts.append("\n".join(["errors, which are in no latency", *errors]))
    return "\n\n".join(parts) or "nothing was measured"


def render_cold(cold: ColdStarts) -> str:
    """Render the cold starts: their durations, the medians of their phases, other answers."""
    count, times = len(cold.taken_ms), cold.latency
    lines = []
    if count and times.p50_ms is not None and times.max_ms is not None:
        least = min(cold.taken_ms)
        lines.append(
            f"cold starts: {count}, p50 {duration(times.p50_ms)},"
            f" {duration(least)} to {duration(times.max_ms)}"
        )
        phases = " · ".join(f"{name} {number(ms)}" for name, ms in cold.phases().items() if ms)
        if phases:
            lines.append(f"  medians of the phases: {phases} ms")
    else:
        lines.append("cold starts: none")
    if cold.warm:
        lines.append(f"  {cold.warm} calls found it warm: another caller uses it")
    lines += [f"  {count} x {kind}" for kind, count in sorted(cold.errors.items())]
    return "\n".join(lines)


def _row(request: Request, point: Point, one: Figures) -> tuple[str, ...]:
    times: Latency = one.latency
    return (
        str(request.rows or NONE),
        str(point.concurrency),
        _rate(one.calls_per_s),
        NONE if one.rows_per_s is None else _rate(one.rows_per_s),
        *(_ms(ms) for ms in (times.p50_ms, times.p90_ms, times.p99_ms, times.max_ms)),
        str(one.answers),
        f"{one.result.failed}{PARTIAL if one.result.stopped else ''}",
    )


def _kinds(one: Figures) -> str:
    errors = sorted(one.result.errors.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count} x {kind}" for kind, count in errors)


def _rows(rows: int) -> str:
    return f"{rows} row{'' if rows == 1 else 's'}, " if rows else ""


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _ms(ms: float | None) -> str:
    return NONE if ms is None else f"{ms:.2f}" if ms < 100 else f"{ms:.0f}"
