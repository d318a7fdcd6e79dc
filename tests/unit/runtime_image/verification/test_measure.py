"""Measurement of sessions, and the choice between them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from runtime_image.contract.model import SessionPlan
from runtime_image.verification.measure import CHUNKS, RUNS_MAX, Bench, Candidate, Clocks, choose
from tests.support import models

ROW = np.ones((1, 4), np.float32)
FEEDS = {1: {"x": ROW}, 8: {"x": np.repeat(ROW, 8, axis=0)}}


def counting(step_s: float) -> Callable[[], float]:
    """Return a clock that advances by `step_s` per reading, without accumulating rounding
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
    """Load and first run are measured in wall time, batch sizes in CPU time. A run longer than the
    clock's resolution is timed singly."""
    load_ms, first_ms, cpu_ms = measured(tmp_path, 0.001, 0.004)

    assert (load_ms, first_ms) == (pytest.approx(1.0), pytest.approx(1.0))
    assert cpu_ms == {1: pytest.approx(4.0), 8: pytest.approx(4.0)}


def test_the_best_start_counts(tmp_path: Path) -> None:
    """Of several starts the fastest counts, because other load only adds time. Slow starts are not
    repeated for long."""
    steps = iter([0.0, *(0.0, 0.5, 0.5), 0.0, *(1.0, 1.001, 1.003), *([9.0] * 1000)])
    models.add_one(tmp_path)
    bench = Bench(FEEDS, "cpu", 1, Clocks(lambda: next(steps), counting(0.004)))

    candidate, _ = bench.measure(tmp_path, SessionPlan("add_one.onnx"))

    assert candidate.load_ms == pytest.approx(1.0)
    assert candidate.first_ms == pytest.approx(2.0)


def test_short_runs_are_measured_together(tmp_path: Path) -> None:
    """Runs shorter than the clock's resolution are timed together."""
    _, _, cpu_ms = measured(tmp_path, 0.001, 0.00001)

    assert cpu_ms[1] == pytest.approx(0.01 / RUNS_MAX)


def test_a_slow_model_is_not_measured_for_long(tmp_path: Path) -> None:
    """After the time limit no further runs are made."""
    looks: list[float] = []

    def cpu() -> float:
        looks.append(0.0)
        return len(looks) / 10

    models.add_one(tmp_path)
    bench = Bench({1: {"x": ROW}}, "cpu", 1, Clocks(counting(1.0), cpu))

    bench.measure(tmp_path, SessionPlan("add_one.onnx"))

    assert len(looks) == 2 < 2 * CHUNKS


AS_IT_IS = SessionPlan("model.onnx")
MAPPED = SessionPlan("p.onnx", optimise=False, prepack=False)
PACKED = SessionPlan("p.onnx", optimise=False)


def candidate(plan: SessionPlan, start_ms: float, *cpu_ms: float) -> Candidate:
    return Candidate(plan, start_ms, 0.0, dict(zip((1, 32), cpu_ms, strict=False)))


def chosen(
    *candidates: Candidate, room: bool = True
) -> tuple[SessionPlan, SessionPlan | None] | str:
    found = choose(candidates[0], candidates[1:], has_room_for_two=room)
    if isinstance(found, str):
        return found
    return found.quick.plan, found.fast.plan if found.fast else None


def test_the_first_answer_decides_about_the_quick_one() -> None:
    """Load time plus first run decides: a session that loads at once but then pages in for long is
    not quick."""
    mapped = Candidate(MAPPED, 1.0, 60.0, {1: 5.0})
    packed = Candidate(PACKED, 30.0, 5.0, {1: 5.0})

    assert chosen(candidate(AS_IT_IS, 200.0, 5.0), mapped, packed) == (PACKED, None)


def test_a_faster_session_takes_over() -> None:
    """A session that saves at least 5% of the run time is built next to the quick one."""
    original = candidate(AS_IT_IS, 200.0, 10.0)
    mapped, packed = candidate(MAPPED, 5.0, 10.0), candidate(PACKED, 50.0, 9.4)

    assert chosen(original, mapped, packed) == (MAPPED, PACKED)


def test_a_small_saving_is_not_built() -> None:
    """Savings below 5% do not justify the time and memory of a second session."""
    original = candidate(AS_IT_IS, 200.0, 10.0)
    mapped, packed = candidate(MAPPED, 5.0, 10.0), candidate(PACKED, 50.0, 9.6)

    assert chosen(original, mapped, packed) == (MAPPED, None)


def test_large_and_small_runs_count_alike() -> None:
    """A gain for one row may be a loss for a batch; both count equally."""
    original = candidate(AS_IT_IS, 200.0, 10.0, 100.0)
    mapped = candidate(MAPPED, 5.0, 10.0, 100.0)

    assert chosen(original, mapped, candidate(PACKED, 50.0, 8.0, 120.0)) == (MAPPED, None)
    assert chosen(original, mapped, candidate(PACKED, 50.0, 10.0, 60.0)) == (MAPPED, PACKED)


def test_of_equal_sessions_the_first_to_load_takes_over() -> None:
    """Of two equally fast sessions the one that loads sooner takes over."""
    original = candidate(AS_IT_IS, 200.0, 7.9)
    mapped, packed = candidate(MAPPED, 5.0, 10.0), candidate(PACKED, 50.0, 8.0)

    assert chosen(original, mapped, packed) == (MAPPED, PACKED)


def test_the_model_as_it_is_may_be_the_fast_one() -> None:
    """If optimising ahead made runs slower, the original model takes over."""
    original = candidate(AS_IT_IS, 200.0, 5.0)
    mapped, packed = candidate(MAPPED, 5.0, 10.0), candidate(PACKED, 50.0, 9.0)

    assert chosen(original, mapped, packed) == (MAPPED, AS_IT_IS)


def test_two_sessions_need_room() -> None:
    """If the function's memory cannot hold two sessions, only the quick one is used."""
    original = candidate(AS_IT_IS, 200.0, 5.0)

    assert chosen(original, candidate(MAPPED, 5.0, 10.0), room=False) == (MAPPED, None)


def test_preparation_must_save_time() -> None:
    """Prepared files must save at least 1 ms and 10% of the time."""
    small = candidate(AS_IT_IS, 1.5, 0.1)
    large = candidate(AS_IT_IS, 200.0, 0.1)

    why = "its first answer takes 1.5 ms unprepared and 0.6 ms prepared"
    assert chosen(small, candidate(MAPPED, 0.6, 0.1)) == why
    assert isinstance(chosen(large, candidate(MAPPED, 185.0, 0.1)), str)
    assert chosen(large, candidate(MAPPED, 175.0, 0.1)) == (MAPPED, None)


def test_unmeasurable_runs_are_equal() -> None:
    """Runs too short for the clock count as equal, without a division by zero."""
    original = candidate(AS_IT_IS, 200.0, 0.0)

    assert chosen(original, candidate(MAPPED, 5.0, 0.0), candidate(PACKED, 6.0, 0.0)) in (
        (MAPPED, None),
        (MAPPED, PACKED),
    )
