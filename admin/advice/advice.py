"""Advice on `idle_s`: the cost of other values, from a function's recorded history. Pure.

Recorded arrivals and cold starts become a case, which is simulated once per value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from random import Random
from statistics import median
from typing import Final

from msgspec.structs import replace

from admin.advice.fleet import BIND_S
from admin.advice.load_model import (
    HOUR_S,
    MINUTE_S,
    Conditions,
    Figures,
    Function,
    ServerShape,
    spread,
)
from admin.advice.simulation import World
from admin.documents.history import Advice, AdviceBasis, AdviceRow
from registry.batching import rows_of
from registry.catalog import Deployed
from registry.model.functions import ExchangeLimits
from registry.model.history import ColdStart
from registry.store.timeline import BucketUse, Span

IDLE_S: Final = (0.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
"""Idle times to try besides the current one."""
PLAYED_MIN, PLAYED_MAX = 15, 150
"""Max arrivals of a minute that are simulated individually: the first for an `idle_s` of 10 s and
more, the second for 1 s and less. Two of them are at most 8 s and 0.8 s apart."""
KEY: Final = "default/it@1"

REQUESTS_MIN: Final = 10
"""Fewer requests are no basis for predictions."""
RUNS_MIN: Final = 20
"""Min requests for a meaningful mean run time."""
UNKNOWN_RUN_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class Case:
    """History of one function. `minutes` are (Unix seconds, requests), rising, from `from_s` on and
    before `to_s`. `cold_s` is the wait of the first caller of a cold start, `run_s` the duration of
    a run, or of an exchange of a server function, which has a `server`. The other fields are the
    function's current settings."""

    from_s: float
    to_s: float
    minutes: list[tuple[int, int]]
    cold_s: float
    run_s: float
    idle_s: float
    min: int = 0
    max: int = 1
    batch: int = 1
    wait_s: float = 55.0
    server: ServerShape | None = None


def advise(case: Case, idle_s: Sequence[float] = IDLE_S) -> list[AdviceRow]:
    """Return one row for each of `idle_s` and the current value, rising. Values that are
    `is_blurred` are left out, except the current one."""
    rows: list[AdviceRow] = []
    is_settled = False
    for each in sorted({*idle_s, case.idle_s}):
        is_current = each == case.idle_s
        if is_settled:
            rows.append(replace(rows[-1], idle_s=each, is_current=is_current))
        elif is_current or not is_blurred(case, each):
            figures = _play(case, each)
            rows.append(_row(figures, each, is_current=is_current))
            # No replica was stopped for being idle, so a longer time gives the same result.
            is_settled = not figures.idle_stops
    return rows


def played(idle_s: float) -> int:
    """Return how many arrivals of a minute are simulated individually at most.

    With more arrivals, two simulated ones are still closer together than `idle_s`: no replica stops
    between them that would not stop with all arrivals. Each one runs as long as all those that it
    represents, so the requests in flight, and with them the number of replicas, stay the same.
    """
    return max(PLAYED_MIN, ceil(PLAYED_MAX / max(1.0, idle_s)))


def is_blurred(case: Case, idle_s: float) -> bool:
    """Return whether a minute has more arrivals than the simulation resolves at this `idle_s`."""
    most = played(idle_s)
    is_fine = 2 * MINUTE_S / most < idle_s
    return not is_fine and any(count > most for _, count in case.minutes)


def _play(case: Case, idle_s: float) -> Figures:
    """Simulate with the current pool manager and dispatcher, and room for every replica."""
    conditions = Conditions(
        devices=max(1, case.max),
        hours=(case.to_s - case.from_s) / HOUR_S,
        idle_s=idle_s,
        wait_s=case.wait_s,
        min=case.min,
        max=case.max,
        batch=case.batch,
        start_s=0.0,
        release_s=0.0,
        end_s=0.0,
    )
    draws = Random(0)  # noqa: S311 - unused, as the jitter is 0
    load_s = max(0.0, case.cold_s - BIND_S)
    calls = spread(case.minutes, case.from_s, played(idle_s))
    function = Function(KEY, case.run_s, load_s, 0.0, calls, draws, draws, server=case.server)
    return World(conditions, [function]).run().figures


def _row(figures: Figures, idle_s: float, *, is_current: bool) -> AdviceRow:
    return AdviceRow(
        idle_s=idle_s,
        cold_starts=figures.cold_starts,
        waited_s=round(figures.held_wait_s, 3),
        held=figures.held,
        device_s=round(figures.ready_s + figures.moving_s, 3),
        idle_device_s=round(max(0.0, figures.ready_s - figures.busy_s), 3),
        is_current=is_current,
    )


@dataclass(frozen=True, slots=True)
class RecordedSpan:
    """Records of a span: arrivals by minute and by bucket of the use, cold starts (newest first),
    device-seconds. `expected_s` is the expected duration of a cold start."""

    minutes: Sequence[tuple[int, int]]
    arrivals: Sequence[tuple[int, int]]
    use: Sequence[BucketUse]
    cold_starts: Sequence[ColdStart]
    expected_s: float


def weigh(deployed: Deployed, span: Span, recorded: RecordedSpan) -> tuple[Advice, Case | None]:
    """Return the advice from the history in `span`, from the function's creation on, in whole
    minutes, without rows but with notes on its limits; and the case that gives the rows, None if
    there is too little data."""
    function = deployed.function
    from_s = max(span.from_s, int(function.created_s) // 60 * 60)
    to_s = max(from_s, int(span.to_s) // 60 * 60)
    minutes = [(at_s, count) for at_s, count in recorded.minutes if from_s <= at_s < to_s]
    requests = sum(count for _, count in minutes)
    cold_s, seen, notes = _cold_s(deployed, recorded)
    run_s = _run_s(deployed, recorded, notes)
    case = None
    if requests < REQUESTS_MIN:
        notes = [
            f"no advice: {requests} requests were recorded in {_hours(to_s - from_s)}, at least"
            f" {REQUESTS_MIN} are needed; try again later, or with more hours"
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
            rows_of(deployed.revision, deployed.profile),
            function.limits.wait_s,
            _server(deployed),
        )
        notes += _notes(case, span)
    basis = AdviceBasis(round(cold_s * 1e3, 1), round(run_s * 1e3, 3), seen)
    return Advice(from_s, to_s, requests, function.scaling.idle_s, basis, [], notes), case


def _server(deployed: Deployed) -> ServerShape | None:
    """Return the shape of a server function, None for a model function."""
    function = deployed.function
    exchange = function.exchange or ExchangeLimits()
    shape = ServerShape(exchange.concurrency, exchange.drain_s, function.limits.wait_s)
    return shape if deployed.revision.server else None


def _cold_s(deployed: Deployed, recorded: RecordedSpan) -> tuple[float, int, list[str]]:
    """Return the median of this revision's cold starts without the first run, their number, and
    notes."""
    number = deployed.revision.number
    seen = [
        one.total_ms - one.phases.get("first_run", 0.0)
        for one in recorded.cold_starts
        if one.outcome == "ready" and one.number == number
    ]
    if seen:
        return max(0.0, median(seen)) / 1e3, len(seen), []
    text = f"no cold start of {deployed.revision.ref} is recorded: its duration is an estimate"
    return recorded.expected_s, 0, [text]


def _run_s(deployed: Deployed, recorded: RecordedSpan, notes: list[str]) -> float:
    """Return the recorded busy time per request, or else what the trial measured."""
    first_s = min((one.at_s for one in recorded.use), default=None)
    busy_s = sum(one.seconds.busy_s for one in recorded.use)
    if first_s is not None and busy_s:
        requests = sum(count for at_s, count in recorded.arrivals if at_s >= first_s)
        if requests >= RUNS_MIN:
            return busy_s / requests
    latencies = deployed.profile.latency_ms if deployed.profile else {}
    if latencies:
        return latencies[min(latencies)] / 1e3
    notes.append("no run was measured: a run is assumed to take 10 ms")
    return UNKNOWN_RUN_S


def _notes(case: Case, span: Span) -> list[str]:
    notes = [
        "other functions are ignored: none takes a device from this one, and none would get a"
        " device that this one releases",
        "arrivals are recorded per minute; within a minute they are spread at random, with the same"
        " seed each time",
    ]
    if case.min:
        notes.append(f"min is {case.min}: that many replicas always stay, whatever idle is")
    if case.from_s > span.from_s:
        notes.append(f"the function was first deployed {_hours(case.to_s - case.from_s)} ago")
    blurred = [each for each in (*IDLE_S, case.idle_s) if is_blurred(case, each)]
    if case.idle_s in blurred:
        notes.append(
            f"idle {case.idle_s:g} s is shorter than the gaps between the simulated arrivals: the"
            " number of its cold starts is too high"
        )
    elif blurred:
        shown = ", ".join(f"{each:g}" for each in blurred)
        notes.append(f"idle {shown} s is left out: too many requests came in single minutes")
    return notes


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"
