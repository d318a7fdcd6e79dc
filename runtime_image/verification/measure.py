"""Measures the ways to make a session, and chooses those that a prepared model is worth."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from runtime_image.contract.model import SessionPlan
from runtime_image.engines.onnx import OnnxEngine

START_GAIN_MS: Final = 1.0
START_GAIN: Final = 0.1
"""A quick session must give its first answer by this much, and by this share, sooner than the
original: files that save less are not worth their disk space."""
FAST_GAIN: Final = 0.05
"""A fast session must save this share of the CPU time of the quick one, or it is not built."""
NEARLY: Final = 1.05
"""Sessions whose CPU time differs by less count as equal: the faster start decides."""
STARTS: Final = 3
STARTS_MS_MAX: Final = 250.0
"""The best of STARTS starts counts, while they take no longer than this together."""
CHUNKS: Final = 5
"""The smallest of so many means counts: other work of the machine only ever adds."""
CHUNK_MS: Final = 2.0
"""CPU time of one mean; a single run of a small model is below the clock's resolution."""
RUNS_MAX: Final = 200
SIZE_MS_MAX: Final = 120.0
"""Measuring one size of run ends after this long: a trial has a deadline."""

Feed = Mapping[str, Any]
"""Arrays by input name."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to make a session, measured: load and first run in milliseconds, and CPU time per
    run in milliseconds by rows."""

    plan: SessionPlan
    load_ms: float
    first_ms: float
    cpu_ms: dict[int, float]

    @property
    def start_ms(self) -> float:
        """Milliseconds until its first answer."""
        return self.load_ms + self.first_ms


@dataclass(frozen=True, slots=True)
class Choice:
    """The session that answers first, and the one that takes over, if any does."""

    quick: Candidate
    fast: Candidate | None = None


def choose(
    original: Candidate, prepared: Sequence[Candidate], *, has_room_for_two: bool
) -> Choice | str:
    """The sessions to use, or the reason to leave the model unprepared. Pure.

    `has_room_for_two`: both sessions together are within the function's memory cap.
    """
    quick = min(prepared, key=lambda one: one.start_ms)
    needed_ms = max(START_GAIN_MS, START_GAIN * original.start_ms)
    if original.start_ms - quick.start_ms < needed_ms:
        return (
            f"it answers after {original.start_ms:.1f} ms as it is, prepared after"
            f" {quick.start_ms:.1f} ms"
        )
    return Choice(quick, _fast([original, *prepared], quick) if has_room_for_two else None)


def _fast(candidates: Sequence[Candidate], quick: Candidate) -> Candidate | None:
    cost = {id(one): _relative_cost(one, quick) for one in candidates if one is not quick}
    least = min(cost.values(), default=1.0)
    if least > 1 - FAST_GAIN:
        return None
    near = [one for one in candidates if cost.get(id(one), 2.0) <= least * NEARLY]
    return min(near, key=lambda one: one.start_ms)


def _relative_cost(one: Candidate, quick: Candidate) -> float:
    """CPU time per run against the quick session's, as the mean over the sizes of runs."""
    shares = [one.cpu_ms[rows] / max(ms, 1e-6) for rows, ms in quick.cpu_ms.items()]
    return sum(shares) / len(shares)


@dataclass(frozen=True, slots=True)
class Clocks:
    """Clocks in seconds: wall time, and the CPU time of all threads of this process."""

    wall: Callable[[], float] = time.perf_counter
    cpu: Callable[[], float] = time.process_time


@dataclass(frozen=True, slots=True)
class Bench:
    """Setting of a measurement: the inputs of one run by rows, the first of them also for the first
    run, and the device."""

    feeds: Mapping[int, Feed]
    device_kind: str
    threads: int
    clocks: Clocks = field(default_factory=Clocks)

    def open(self, folder: Path, plan: SessionPlan) -> OnnxEngine:
        """An engine made by `plan` from a file below `folder`. Raises LoadError."""
        return OnnxEngine(
            folder / plan.file,
            device_kind=self.device_kind,
            threads=self.threads,
            optimise=plan.optimise,
            prepack=plan.prepack,
        )

    def measure(self, folder: Path, plan: SessionPlan) -> tuple[Candidate, OnnxEngine]:
        """Make an engine and run it; returns both. Raises LoadError, or ONNX Runtime's error."""
        until_s = self.clocks.wall() + STARTS_MS_MAX / 1e3
        load_ms, first_ms, engine = self._start(folder, plan)
        for _ in range(STARTS - 1):
            if self.clocks.wall() >= until_s:
                break
            del engine  # two at once would take twice the memory
            again_ms, run_ms, engine = self._start(folder, plan)
            if again_ms + run_ms < load_ms + first_ms:
                load_ms, first_ms = again_ms, run_ms
        cpu_ms = {rows: self._cpu_ms(engine, dict(feed)) for rows, feed in self.feeds.items()}
        return Candidate(plan, load_ms, first_ms, cpu_ms), engine

    def _start(self, folder: Path, plan: SessionPlan) -> tuple[float, float, OnnxEngine]:
        """Load and first run in milliseconds, and the engine."""
        began = self.clocks.wall()
        engine = self.open(folder, plan)
        loaded = self.clocks.wall()
        engine.run(dict(next(iter(self.feeds.values()))), engine.ticket())
        return (loaded - began) * 1e3, (self.clocks.wall() - loaded) * 1e3, engine

    def _cpu_ms(self, engine: OnnxEngine, feed: dict[str, Any]) -> float:
        """CPU time of one run of a warm engine, without the time of a GPU."""
        until_s = self.clocks.wall() + SIZE_MS_MAX / 1e3
        best_ms = self._mean_ms(engine, feed, 1)
        runs = max(1, min(RUNS_MAX, int(CHUNK_MS / max(best_ms, 1e-3))))
        for _ in range(CHUNKS):
            if self.clocks.wall() >= until_s:
                break
            best_ms = min(best_ms, self._mean_ms(engine, feed, runs))
        return best_ms

    def _mean_ms(self, engine: OnnxEngine, feed: dict[str, Any], runs: int) -> float:
        began = self.clocks.cpu()
        for _ in range(runs):
            engine.run(feed, engine.ticket())
        return (self.clocks.cpu() - began) * 1e3 / runs
