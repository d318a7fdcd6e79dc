"""Measures sessions built in different ways and chooses the ones worth preparing."""

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
"""Min reduction of the time to the first answer by a quick session, against the original: absolute,
and as a share. Files that save less are not worth their disk space."""
FAST_GAIN: Final = 0.05
"""Min share of the quick session's CPU time that a fast session must save to be built."""
NEARLY: Final = 1.05
"""Sessions within this factor of the least CPU time count as equal; the faster start decides."""
STARTS: Final = 3
STARTS_MS_MAX: Final = 250.0
"""Max starts measured, and the max time for all of them. The best one counts."""
CHUNKS: Final = 5
"""Means measured. The smallest counts, because other work of the machine can only add time."""
CHUNK_MS: Final = 2.0
"""CPU time covered by one mean; a single run of a small model is below the clock's resolution."""
RUNS_MAX: Final = 200
SIZE_MS_MAX: Final = 120.0
"""Max time to measure one batch size: a trial has a deadline."""

Feed = Mapping[str, Any]
"""Arrays by input name."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Measurements of one session plan: load and first run in milliseconds, and CPU time per run in
    milliseconds by rows."""

    plan: SessionPlan
    load_ms: float
    first_ms: float
    cpu_ms: dict[int, float]

    @property
    def start_ms(self) -> float:
        """Milliseconds until the first answer."""
        return self.load_ms + self.first_ms


@dataclass(frozen=True, slots=True)
class Choice:
    """Session with the fastest first answer, and the one that replaces it, if any."""

    quick: Candidate
    fast: Candidate | None = None


def choose(
    original: Candidate, prepared: Sequence[Candidate], *, has_room_for_two: bool
) -> Choice | str:
    """Return the sessions to use, or the reason to leave the model unprepared. Pure.

    `has_room_for_two`: both sessions together fit the function's memory cap.
    """
    quick = min(prepared, key=lambda one: one.start_ms)
    needed_ms = max(START_GAIN_MS, START_GAIN * original.start_ms)
    if original.start_ms - quick.start_ms < needed_ms:
        return (
            f"its first answer takes {original.start_ms:.1f} ms unprepared and"
            f" {quick.start_ms:.1f} ms prepared"
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
    """Return the CPU time per run relative to the quick session, as the mean over batch sizes."""
    shares = [one.cpu_ms[rows] / max(ms, 1e-6) for rows, ms in quick.cpu_ms.items()]
    return sum(shares) / len(shares)


@dataclass(frozen=True, slots=True)
class Clocks:
    """Clocks in seconds: wall time, and the CPU time of all threads of this process."""

    wall: Callable[[], float] = time.perf_counter
    cpu: Callable[[], float] = time.process_time


@dataclass(frozen=True, slots=True)
class Bench:
    """Setup of a measurement: the inputs of one run by rows, and the device. The first of the
    inputs is also used for the first run."""

    feeds: Mapping[int, Feed]
    device_kind: str
    threads: int
    clocks: Clocks = field(default_factory=Clocks)

    def open(self, folder: Path, plan: SessionPlan) -> OnnxEngine:
        """Return an engine built by `plan` from a file below `folder`. Raises LoadError."""
        return OnnxEngine(
            folder / plan.file,
            device_kind=self.device_kind,
            threads=self.threads,
            optimise=plan.optimise,
            prepack=plan.prepack,
        )

    def measure(self, folder: Path, plan: SessionPlan) -> tuple[Candidate, OnnxEngine]:
        """Build and measure an engine; return both. Raises LoadError, or ONNX Runtime's error."""
        until_s = self.clocks.wall() + STARTS_MS_MAX / 1e3
        load_ms, first_ms, engine = self._start(folder, plan)
        for _ in range(STARTS - 1):
            if self.clocks.wall() >= until_s:
                break
            del engine  # two engines at once would need twice the memory
            again_ms, run_ms, engine = self._start(folder, plan)
            if again_ms + run_ms < load_ms + first_ms:
                load_ms, first_ms = again_ms, run_ms
        cpu_ms = {rows: self.run_ms(engine, dict(feed)) for rows, feed in self.feeds.items()}
        return Candidate(plan, load_ms, first_ms, cpu_ms), engine

    def _start(self, folder: Path, plan: SessionPlan) -> tuple[float, float, OnnxEngine]:
        """Return the milliseconds of load and first run, and the engine."""
        began = self.clocks.wall()
        engine = self.open(folder, plan)
        loaded = self.clocks.wall()
        engine.run(dict(next(iter(self.feeds.values()))), engine.ticket())
        return (loaded - began) * 1e3, (self.clocks.wall() - loaded) * 1e3, engine

    def run_ms(self, engine: OnnxEngine, feed: dict[str, Any], chunks: int = CHUNKS) -> float:
        """Return the time of one run of a warm engine in milliseconds, by the clock `cpu`: the
        smallest mean of `chunks`. CPU time excludes that of a GPU."""
        until_s = self.clocks.wall() + SIZE_MS_MAX / 1e3
        best_ms = self._mean_ms(engine, feed, 1)
        runs = max(1, min(RUNS_MAX, int(CHUNK_MS / max(best_ms, 1e-3))))
        for _ in range(chunks):
            if self.clocks.wall() >= until_s:
                break
            best_ms = min(best_ms, self._mean_ms(engine, feed, runs))
        return best_ms

    def _mean_ms(self, engine: OnnxEngine, feed: dict[str, Any], runs: int) -> float:
        began = self.clocks.cpu()
        for _ in range(runs):
            engine.run(feed, engine.ticket())
        return (self.clocks.cpu() - began) * 1e3 / runs
