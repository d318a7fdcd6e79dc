"""Measures of sessions, and the choice between them."""

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
    """Load and first run together: a session that loads at once and then pages in for long is
    not quick."""
    mapped = Candidate(MAPPED, 1.0, 60.0, {1: 5.0})
    packed = Candidate(PACKED, 30.0, 5.0, {1: 5.0})

    assert chosen(candidate(AS_IT_IS, 200.0, 5.0), mapped, packed) == (PACKED, None)


def test_what_computes_with_less_takes_over() -> None:
    """A session that saves a twentieth is built beside the quick one."""
    original = candidate(AS_IT_IS, 200.0, 10.0)
    mapped, packed = candidate(MAPPED, 5.0, 10.0), candidate(PACKED, 50.0, 9.4)

    assert chosen(original, mapped, packed) == (MAPPED, PACKED)


def test_what_saves_hardly_anything_is_not_built() -> None:
    """Less than a twentieth is not worth the time and the memory of a second session."""
    original = candidate(AS_IT_IS, 200.0, 10.0)
    mapped, packed = candidate(MAPPED, 5.0, 10.0), candidate(PACKED, 50.0, 9.6)

    assert chosen(original, mapped, packed) == (MAPPED, None)


def test_large_and_small_runs_count_alike() -> None:
    """What is gained for one row may be lost for a batch."""
    original = candidate(AS_IT_IS, 200.0, 10.0, 100.0)
    mapped = candidate(MAPPED, 5.0, 10.0, 100.0)

    assert chosen(original, mapped, candidate(PACKED, 50.0, 8.0, 120.0)) == (MAPPED, None)
    assert chosen(original, mapped, candidate(PACKED, 50.0, 10.0, 60.0)) == (MAPPED, PACKED)


def test_of_equals_the_one_that_loads_sooner_takes_over() -> None:
    """The model as it is computes as fast as the packed one, but loads later."""
    original = candidate(AS_IT_IS, 200.0, 7.9)
    mapped, packed = candidate(MAPPED, 5.0, 10.0), candidate(PACKED, 50.0, 8.0)

    assert chosen(original, mapped, packed) == (MAPPED, PACKED)


def test_the_model_as_it_is_may_be_the_fast_one() -> None:
    """Where optimising ahead lost something, the original takes over."""
    original = candidate(AS_IT_IS, 200.0, 5.0)
    mapped, packed = candidate(MAPPED, 5.0, 10.0), candidate(PACKED, 50.0, 9.0)

    assert chosen(original, mapped, packed) == (MAPPED, AS_IT_IS)


def test_two_sessions_need_room() -> None:
    """Where the function's memory does not hold both there is only the quick one."""
    original = candidate(AS_IT_IS, 200.0, 5.0)

    assert chosen(original, candidate(MAPPED, 5.0, 10.0), room=False) == (MAPPED, None)


def test_what_saves_no_time_is_not_prepared() -> None:
    """A millisecond and a tenth of the time are the least that files must save."""
    small = candidate(AS_IT_IS, 1.5, 0.1)
    large = candidate(AS_IT_IS, 200.0, 0.1)

    why = "its first answer takes 1.5 ms unprepared and 0.6 ms prepared"
    assert chosen(small, candidate(MAPPED, 0.6, 0.1)) == why
    assert isinstance(chosen(large, candidate(MAPPED, 185.0, 0.1)), str)
    assert chosen(large, candidate(MAPPED, 175.0, 0.1)) == (MAPPED, None)


def test_a_clock_that_saw_nothing_divides_by_nothing() -> None:
    """Runs too short for the clock are equal."""
    original = candidate(AS_IT_IS, 200.0, 0.0)

    assert chosen(original, candidate(MAPPED, 5.0, 0.0), candidate(PACKED, 6.0, 0.0)) in (
        (MAPPED, None),
        (MAPPED, PACKED),
    )
