"""From what was recorded of a function to a case that can be played. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from admin.advice.rows import IDLE_S, Case, is_blurred
from registry.catalog import Deployed
from registry.model import ColdStart
from registry.spec import model_spec
from registry.store.timeline import BucketUse, Span

REQUESTS_MIN: Final = 10
"""From fewer requests nothing can be learnt about the next ones."""
RUNS_MIN: Final = 20
"""Requests over which the time of their runs is a mean worth having."""
UNKNOWN_RUN_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class Past:
    """What was recorded in a span: arrivals by minute and by bucket of the use, cold starts (the
    newest first), device-seconds. `expected_s` is what a cold start is expected to take."""

    minutes: Sequence[tuple[int, int]]
    arrivals: Sequence[tuple[int, int]]
    use: Sequence[BucketUse]
    cold_starts: Sequence[ColdStart]
    expected_s: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """A case, or None where there is too little to go by; in `notes` what to keep in mind."""

    from_s: float
    to_s: float
    requests: int
    cold_s: float
    run_s: float
    cold_starts_seen: int
    case: Case | None
    notes: list[str]


def weigh(deployed: Deployed, span: Span, past: Past) -> Evidence:
    """What a function's past says, from its first day on and up to the last whole minute."""
    function = deployed.function
    from_s = max(span.from_s, int(function.created_s) // 60 * 60)
    to_s = max(from_s, int(span.to_s) // 60 * 60)
    minutes = [(at_s, count) for at_s, count in past.minutes if from_s <= at_s < to_s]
    requests = sum(count for _, count in minutes)
    cold_s, seen, notes = _cold_s(deployed, past)
    run_s = _run_s(deployed, past, notes)
    case = None
    if requests < REQUESTS_MIN:
        notes = [
            f"no advice: {requests} requests were recorded in {_hours(to_s - from_s)}, at least"
            f" {REQUESTS_MIN} are needed; ask again later, or about more hours"
        ]
    else:
        scaling = function.scaling
        case = Case(
            from_s,
            to_s,
            minutes,
            cold_s,
            run_s,
            scaling.idle_s,
            scaling.min,
            scaling.max,
            model_spec(deployed).batch_max,
            function.limits.wait_s,
        )
        notes += _notes(case, span)
    return Evidence(from_s, to_s, requests, cold_s, run_s, seen, case, notes)


def _cold_s(deployed: Deployed, past: Past) -> tuple[float, int, list[str]]:
    """The median of this revision's cold starts, up to the first run; how many there were."""
    number = deployed.revision.number
    seen = [
        one.total_ms - one.phases.get("first_run", 0.0)
        for one in past.cold_starts
        if one.outcome == "ready" and one.number == number
    ]
    if seen:
        return max(0.0, median(seen)) / 1e3, len(seen), []
    text = f"no cold start of {deployed.revision.ref} is recorded: its time is an estimate"
    return past.expected_s, 0, [text]


def _run_s(deployed: Deployed, past: Past, notes: list[str]) -> float:
    """Busy time per request, where both were recorded; else what its trial measured."""
    first_s = min((one.at_s for one in past.use), default=None)
    busy_s = sum(one.seconds.busy_s for one in past.use)
    if first_s is not None and busy_s:
        requests = sum(count for at_s, count in past.arrivals if at_s >= first_s)
        if requests >= RUNS_MIN:
            return busy_s / requests
    latencies = deployed.profile.latency_ms if deployed.profile else {}
    if latencies:
        return latencies[min(latencies)] / 1e3
    notes.append("no run was measured: runs are taken to last 10 ms")
    return UNKNOWN_RUN_S


def _notes(case: Case, span: Span) -> list[str]:
    notes = [
        "other functions are left out: none takes its device, and none would get the device that"
        " it gives back",
        "arrivals are known by the minute; within one they are spread at random, the same each"
        " time",
    ]
    if case.min:
        notes.append(f"min is {case.min}: that many replicas never go, whatever idle is")
    if case.from_s > span.from_s:
        notes.append(f"it was first deployed {_hours(case.to_s - case.from_s)} ago")
    blurred = [each for each in (*IDLE_S, case.idle_s) if is_blurred(case, each)]
    if case.idle_s in blurred:
        notes.append(
            f"idle {case.idle_s:g} s is shorter than the time between the arrivals that are played:"
            " its cold starts are too many"
        )
    elif blurred:
        shown = ", ".join(f"{each:g}" for each in blurred)
        notes.append(f"idle {shown} s is left out: too many requests came in single minutes")
    return notes


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"
