"""The proof that a model may be batched, with real models."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime_image.contract.signature import Signature, TensorSpec
from runtime_image.engines.base import Engine
from runtime_image.engines.onnx import OnnxEngine
from runtime_image.verification.proof import RUN_MS_MAX, SIZES, knee, latencies, why_not_batchable
from tests.support import models


def load(path: Path) -> OnnxEngine:
    return OnnxEngine(path, device_kind="cpu", threads=1)


def zeros(engine: Engine) -> dict[str, Any]:
    """Return one row of zeros for every input."""
    kinds = {"BOOL": np.bool_, "INT64": np.int64, "BYTES": object}
    return {
        tensor.name: np.zeros(
            [1 if size < 0 else size for size in tensor.shape],
            kinds.get(tensor.dtype, np.float32),
        )
        for tensor in engine.signature.inputs
    }


def why_not(engine: Engine, inputs: dict[str, Any] | None = None) -> str:
    inputs = inputs or zeros(engine)
    return why_not_batchable(engine, inputs, engine.run(inputs, engine.ticket()))


@pytest.mark.parametrize(
    "build",
    [
        models.add_one,
        models.two_inputs,
        lambda folder: models.every_dtype(folder, "INT64"),
        lambda folder: models.every_dtype(folder, "BOOL"),
    ],
)
def test_independent_rows_are_proved(build: Callable[[Path], Path], tmp_path: Path) -> None:
    """A model with independent rows may be batched, whatever its types."""
    assert why_not(load(build(tmp_path))) == ""


def test_text_is_only_moved(tmp_path: Path) -> None:
    """Non-numeric values are taken from the sample."""
    engine = load(models.strings(tmp_path))

    assert why_not(engine, {"x": np.array(["a"], dtype=object)}) == ""


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (models.softmax_over_batch, "output y of a row changes with the other rows of its batch"),
        (models.fixed_batch, "the first axis of x, y is not dynamic"),
        (models.fails_on_negative, "synthetic inputs failed in single runs"),
    ],
)
def test_the_reason_is_reported(build: Callable[[Path], Path], reason: str, tmp_path: Path) -> None:
    """A model that fails the proof is not batched, and the reason says how it failed."""
    assert reason in why_not(load(build(tmp_path)))


class Function:
    """An engine over a Python function, for behaviour that small graphs cannot have."""

    def __init__(self, run: Callable[[Any], dict[str, Any]], kind: Any = "tensors") -> None:
        rows = TensorSpec("x", "FP32", (-1, 4))
        self.signature = Signature(kind, (rows,), ())
        self._run = run

    def ticket(self) -> Any:
        return None

    def run(self, inputs: dict[str, Any], ticket: Any) -> dict[str, Any]:
        return self._run(inputs["x"])

    def stop(self, ticket: Any) -> None:
        pass


def test_outputs_need_a_row_for_each_input_row() -> None:
    """A sum over all rows, a scalar and plain values cannot be split into rows."""
    for output in (lambda x: np.sum(x), lambda x: [1.0], lambda x: np.zeros((3, 4))):
        engine = Function(lambda x, output=output: {"y": output(x)})  # type: ignore[misc]  # a bound default is not inferred

        assert why_not(engine) == "output y does not have one row per input row"


def test_a_failing_batch_is_reported() -> None:
    """A function that accepts only single rows is detected, whatever its signature says."""

    def one_row(x: Any) -> dict[str, Any]:
        if len(x) > 1:
            raise ValueError("one row only")
        return {"y": x}

    assert why_not(Function(one_row)) == "a batch of 5 failed: one row only"


def test_integers_must_agree_exactly() -> None:
    """An integer output that depends on the batch is detected."""
    engine = Function(lambda x: {"y": np.full(len(x), len(x), np.int64)})

    assert "changes with the other rows" in why_not(engine)


def test_rounding_is_no_disagreement() -> None:
    """Sums that a batch rounds differently count as equal."""
    engine = Function(lambda x: {"y": x * np.float32(1 + 1e-6 * len(x))})

    assert why_not(engine) == ""


def test_only_tensors_have_rows() -> None:
    """A JSON function has no batch axis."""
    engine = Function(lambda x: {}, kind="json")

    assert why_not_batchable(engine, {}, {}) == "a json function has no batch axis"


def test_latencies_are_measured_by_rows(tmp_path: Path) -> None:
    """Every batch size is timed in milliseconds; without batching only the input's own size."""
    engine = load(models.add_one(tmp_path))
    ticks = count()

    timed = latencies(engine, zeros(engine), batchable=True, clock=lambda: next(ticks) / 1000)
    single = latencies(engine, zeros(engine), batchable=False, clock=lambda: next(ticks) / 1000)

    assert list(timed) == list(SIZES)
    assert list(timed.values()) == pytest.approx([1.0] * len(SIZES))
    assert list(single) == [1]


def test_long_runs_are_not_made_longer(tmp_path: Path) -> None:
    """If a size takes too long, no larger one is tried."""
    engine = load(models.add_one(tmp_path))
    ticks = count()
    step_s = (RUN_MS_MAX + 1) / 1000

    timed = latencies(engine, zeros(engine), batchable=True, clock=lambda: next(ticks) * step_s)

    assert list(timed) == [1]


def test_sizes_that_gain_nothing_end_the_search(tmp_path: Path) -> None:
    """If time grows linearly with rows, a few sizes suffice and the largest are not run."""
    rows: list[int] = []

    def run(x: Any) -> dict[str, Any]:
        rows.append(len(x))
        return {"y": x}

    engine = Function(run)
    readings = (sum(rows) * 1e-3 for _ in count())

    timed = latencies(engine, zeros(engine), batchable=True, clock=lambda: next(readings))

    assert list(timed) == [1, 2, 4, 8]
    assert knee(timed) == 1
    assert max(rows) == 8


def test_long_runs_are_not_repeated_for_ever(tmp_path: Path) -> None:
    """A size is repeated only until its runs total half a second."""
    engine = load(models.add_one(tmp_path))
    ticks = count()

    latencies(engine, zeros(engine), batchable=False, clock=lambda: next(ticks) * 0.3)

    assert next(ticks) == 4  # two runs, each with a reading before and after


@pytest.mark.parametrize(
    ("latency_ms", "rows"),
    [
        ({1: 1.0}, 1),
        ({1: 1.0, 2: 1.1, 4: 1.3, 8: 2.6}, 4),
        ({1: 1.0, 2: 2.0, 4: 4.0}, 1),
        ({1: 1.0, 2: 1.9, 4: 3.0}, 4),
        ({}, 1),
    ],
)
def test_the_knee_is_where_more_gains_nothing(latency_ms: dict[int, float], rows: int) -> None:
    """Beyond the knee, more rows save less than 10% per row."""
    assert knee(latency_ms) == rows


@pytest.mark.parametrize(
    ("change", "is_refuted", "is_refuted_coarsely"),
    [
        (1.0, False, False),
        (1.004, True, False),
        (1.1, True, True),
    ],
)
def test_a_lower_precision_may_round_otherwise_in_a_batch(
    change: float, is_refuted: bool, is_refuted_coarsely: bool
) -> None:
    """FP16 inside of a model with FP32 outputs changes its last place with the order of additions;
    that is no row that sees another one."""
    engine = Function(lambda x: {"y": x * 100 * (change if len(x) > 1 else 1)})
    inputs = {"x": np.ones((1, 4), np.float32)}
    outputs = engine.run(inputs, None)

    assert bool(why_not_batchable(engine, inputs, outputs)) == is_refuted
    assert bool(why_not_batchable(engine, inputs, outputs, coarse=True)) == is_refuted_coarsely
