"""The neighbour-swap test, with real models and artificial engines."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime_image.contract.model import InputRule
from runtime_image.contract.signature import Signature, TensorSpec
from runtime_image.engines.base import Engine, Stopped
from runtime_image.engines.onnx import OnnxEngine
from runtime_image.verification.proof import rows_like
from runtime_image.verification.swap import BATCHES, NeighbourSwap, equal
from tests.support import models
from tests.support.mixing import MIXING

SAMPLES = {"FP32": np.ones((1, 4), np.float32), "INT64": np.full((1, 1), 5, np.int64)}


def refutation(engine: Engine, **options: Any) -> str:
    def sample(tensor: TensorSpec) -> Any:
        shape = tuple(1 if size < 0 else size for size in tensor.shape)
        if tensor.dtype == "BYTES":
            return np.full(shape, "", dtype=object)
        kind = np.dtype(tensor.dtype.lower().replace("fp", "float"))
        return np.full(shape, 5 if kind.kind in "iu" else 1, kind)

    inputs = {tensor.name: sample(tensor) for tensor in engine.signature.inputs}
    rules = options.pop("rules", {})
    swap = NeighbourSwap(engine, options.pop("device_kind", "cpu"), **options)
    return swap.refutation(rows_like(engine.signature.inputs, inputs), rules)


def load(path: Path) -> OnnxEngine:
    return OnnxEngine(path, device_kind="cpu", threads=1)


@pytest.mark.parametrize(
    "build",
    [
        models.add_one,
        models.two_inputs,
        models.strings,
        models.fails_on_negative,
        lambda folder: models.every_dtype(folder, "INT64"),
        lambda folder: models.every_dtype(folder, "BOOL"),
        lambda folder: models.every_dtype(folder, "FP16"),
    ],
)
def test_independent_rows_withstand_it(build: Callable[[Path], Path], tmp_path: Path) -> None:
    """Independent rows pass, whatever their types; an extreme value that the model rejects alone is
    dropped."""
    assert refutation(load(build(tmp_path))) == ""


@pytest.mark.parametrize("name", MIXING)
def test_mixing_models_are_refuted(name: str, tmp_path: Path) -> None:
    """Models that a comparison of five rows near the sample did not refute are refuted."""
    assert refutation(load(MIXING[name](tmp_path))) != ""


class Function:
    """An engine over a Python function of one FP32 input [n, 4]."""

    def __init__(self, run: Callable[[Any], Any]) -> None:
        self.signature = Signature("tensors", (TensorSpec("x", "FP32", (-1, 4)),), ())
        self._run = run
        self.stopped = threading.Event()
        self.session: Any = "none"
        self.upgrade = None
        self.sizes: list[int] = []

    def ticket(self) -> Any:
        return None

    def run(self, inputs: dict[str, Any], ticket: Any) -> dict[str, Any]:
        self.sizes.append(len(inputs["x"]))
        return {"y": self._run(inputs["x"])}

    def stop(self, ticket: Any) -> None:
        self.stopped.set()


def test_the_kept_row_takes_each_extreme() -> None:
    """A row of zeros that depends on the row before it shows this only if the kept row is zeros."""

    def run(x: Any) -> Any:
        return np.where((x == 0).all(axis=1, keepdims=True), np.roll(x, 1, axis=0), x)

    assert "output y of a row changes beside" in refutation(Function(run))


def test_what_callers_cannot_send_refutes_nothing() -> None:
    """NaN and infinity are not used for an input declared finite."""

    def run(x: Any) -> Any:
        return x if np.isfinite(x).all() else x * 0

    assert refutation(Function(run)) != ""
    assert refutation(Function(run), rules={"x": InputRule(finite=True)}) == ""


def test_a_batch_that_fails_though_its_rows_run_refutes() -> None:
    """Rows that succeed alone but fail as a batch refute the proof."""

    def run(x: Any) -> Any:
        if len(x) > 1 and (x == np.float32(1e5)).any():
            raise ValueError("no")
        return x

    assert "rows failed, though each runs alone: no" in refutation(Function(run))


def test_a_row_that_fails_now_and_then_refutes_nothing() -> None:
    """A row that sometimes fails alone does not refute the proof."""
    answers: Iterator[int] = iter(range(20))

    def run(x: Any) -> Any:
        if next(answers, None) is None:
            raise ValueError("tired")
        return x

    assert refutation(Function(run)) == ""


def test_rows_are_counted() -> None:
    """A missing output row refutes the proof: later rows would get another's answer."""

    def run(x: Any) -> Any:
        return x[x[:, 0] > -3]

    assert "does not have one row per row of a batch" in refutation(Function(run))


def test_it_ends_in_time() -> None:
    """A slow model is compared in the smallest batches, as long as there is time."""
    now = 0.0

    def run(x: Any) -> Any:
        nonlocal now
        now += 0.1 * len(x)
        return x

    engine = Function(run)

    assert refutation(engine, budget_s=5.0, clock=lambda: now) == ""
    assert now <= 5.0
    assert set(engine.sizes) == {1, BATCHES[0][0]}


def test_a_run_that_does_not_end_is_stopped() -> None:
    """A run that does not end, e.g. a loop with an extreme iteration count, is stopped."""

    def run(x: Any) -> Any:
        if np.isinf(x).any():
            engine.stopped.wait()
            raise Stopped
        return x

    engine = Function(run)

    assert refutation(engine, budget_s=0.05) == ""
    assert engine.stopped.is_set()


def test_bits_count_on_a_cpu_and_ulps_on_a_gpu() -> None:
    """On a CPU answers must be equal bit for bit; on a GPU within a few ULPs of the largest value,
    with equal NaNs."""
    one = np.array([1.0, 1e-9, np.nan], np.float32)
    near = np.array([1.0 + 2e-7, 2e-9, np.nan], np.float32)

    assert equal(one, one.copy())
    assert not equal(one, near)
    assert equal(one, near, ulps=4)
    assert not equal(one, np.array([1.0, 1e-9, 0.0], np.float32), ulps=4)
    assert not equal(one, np.array([1.0001, 1e-9, np.nan], np.float32), ulps=4)
