"""What a way to make a session is measured to cost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from runtime_image.contract.model import SessionPlan
from runtime_image.verification.measure import CHUNKS, RUNS_MAX, Bench, Clocks
from tests.support import models

ROW = np.ones((1, 4), np.float32)
FEEDS = {1: {"x": ROW}, 8: {"x": np.repeat(ROW, 8, axis=0)}}


def counting(step_s: float) -> Callable[[], float]:
    """A clock that is `step_s` later each time somebody looks; whole steps do not add up
    errors."""
    looks = iter(range(10**9))
    return lambda: next(looks) * step_s


def measured(folder: Path, wall_s: float, cpu_s: float) -> tuple[float, float, dict[int, float]]:
    models.add_one(folder)
    bench = Bench(FEEDS, "cpu", 1, Clocks(counting(wall_s), counting(cpu_s)))
    candidate, engine = bench.measure(folder, SessionPlan("add_one.onnx"))

    assert np.array_equal(engine.run({"x": ROW}, engine.ticket())["y"], ROW + 1)
    return candidate.load_ms, candidate.first_ms, candidate.cpu_ms


def test_load_first_run_and_every_size_are_measured(tmp_path: Path) -> None:
    """Each by its clock; a run that the clock sees well needs no others beside it."""
    load_ms, first_ms, cpu_ms = measured(tmp_path, 0.001, 0.004)

    assert (load_ms, first_ms) == (pytest.approx(1.0), pytest.approx(1.0))
    assert cpu_ms == {1: pytest.approx(4.0), 8: pytest.approx(4.0)}


def test_the_best_start_counts(tmp_path: Path) -> None:
    """What else the machine did during one of them is no part of what a start takes; slow ones
    are not repeated for long."""
    steps = iter([0.0, *(0.0, 0.5, 0.5), 0.0, *(1.0, 1.001, 1.003), *([9.0] * 1000)])
    models.add_one(tmp_path)
    bench = Bench(FEEDS, "cpu", 1, Clocks(lambda: next(steps), counting(0.004)))

    candidate, _ = bench.measure(tmp_path, SessionPlan("add_one.onnx"))

    assert candidate.load_ms == pytest.approx(1.0)
    assert candidate.first_ms == pytest.approx(2.0)


def test_short_runs_are_measured_together(tmp_path: Path) -> None:
    """One look at the clock stands for many runs where a single one is below what it tells."""
    _, _, cpu_ms = measured(tmp_path, 0.001, 0.00001)

    assert cpu_ms[1] == pytest.approx(0.01 / RUNS_MAX)


def test_a_slow_model_is_not_measured_for_long(tmp_path: Path) -> None:
    """Once its time is over no further runs are made."""
    looks: list[float] = []

    def cpu() -> float:
        looks.append(0.0)
        return len(looks) / 10

    models.add_one(tmp_path)
    bench = Bench({1: {"x": ROW}}, "cpu", 1, Clocks(counting(1.0), cpu))

    bench.measure(tmp_path, SessionPlan("add_one.onnx"))

    assert len(looks) == 2 < 2 * CHUNKS
