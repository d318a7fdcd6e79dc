"""The engine alone, in separate processes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.models import subjects
from benchmarks.references.engines import (
    Task,
    engine_process,
    fresh_ms,
    task,
    whole_process_ms,
)
from runtime_image.contract.model import SessionPlan


def test_a_task_is_a_model_as_it_is(tmp_path: Path) -> None:
    """A task uses the original model; with a plan, the plan's file and options."""
    tiny = subjects.tiny(tmp_path)
    plan = SessionPlan(".prepared/quick.onnx", optimise=False, prepack=False)

    assert task(tiny) == Task(str(tiny.model), "float32", (1, 4))
    assert task(tiny, Path("/x"), plan) == Task(
        "/x/.prepared/quick.onnx", "float32", (1, 4), optimise=False, prepack=False
    )
    assert json.loads(task(tiny).to_json())["shape"] == [1, 4]


@pytest.mark.slow
def test_sessions_are_made_and_run_as_asked(tmp_path: Path) -> None:
    """Sessions run repeatedly in one process, in a fresh one, and in one whose start is timed,
    too."""
    one = task(subjects.tiny(tmp_path))
    with engine_process(one) as process:
        once = process.do(replace(one, optimise=False, prepack=False))
        longer = process.do(replace(one, rows=8, seconds=0.01))

    assert sorted(once) == ["ended_s", "ms"]
    assert sorted(longer) == ["cpu_ms", "ended_s", "ms", "rows_per_s"]
    assert min(longer.values()) > 0
    assert fresh_ms(one, one) > 0
    assert whole_process_ms(one) > 0


@pytest.mark.slow
def test_a_reference_that_fails_is_no_result(tmp_path: Path) -> None:
    """The process of a failed reference ends, and the error is raised."""
    one = task(subjects.tiny(tmp_path))
    with engine_process(one) as process, pytest.raises(RuntimeError, match="ended with 1"):
        process.do(replace(one, model="/not/there.onnx"))
