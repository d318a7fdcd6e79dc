"""Rounds of measurements on simulated machines: noise does not decide which model serves."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from runtime_image.contract.model import ModelSpec
from runtime_image.contract.precision import CandidateName, Optimisation
from runtime_image.contract.signature import DYNAMIC, Signature, TensorSpec
from runtime_image.verification.precision.agreement import Agreement
from runtime_image.verification.precision.choice import Choice, Measured, choose
from runtime_image.verification.precision.optimising import COMMAND
from runtime_image.verification.precision.order import Figures, Order, Timed, to_json
from runtime_image.verification.precision.timing import (
    LIMIT_SHARE,
    ROUNDS,
    ROUNDS_MIN,
    ROUNDS_S,
    in_rounds,
)

SEEDS = 400
SIZES = (1, 2, 4, 8)
LIMIT_S = 120.0
OPENING_S = 0.1
"""Time to open a session if not all can be open at once."""
SLICE_MS = 4.0
"""Least time of one measurement of a model at one size."""


class Machine:
    """A machine whose time is simulated: slow phases, seconds long, up to five times as slow. A
    change to another model takes `change_s`."""

    def __init__(
        self, seed: int, row_ms: Mapping[CandidateName, float], change_s: float = 0.0
    ) -> None:
        self._random = Random(seed)
        self._wait_s = change_s
        self._last = ""
        self._row_ms = row_ms
        self._slowness = self._random.uniform(1.3, 5.0)
        self._is_slow = self._random.random() < 0.5
        self._change_s = self._random.uniform(0.0, 5.0)
        self.now_s = 0.0

    def clock(self) -> float:
        return self.now_s

    def run_ms(self, name: CandidateName, rows: int) -> float:
        """Return the milliseconds of a run, and let the time of its measurement pass."""
        self.now_s += self._wait_s if name != self._last else 0.0
        self._last = name
        while self.now_s >= self._change_s:
            self._is_slow = not self._is_slow
            self._change_s += self._random.uniform(1.0, 5.0)
        slowness = (self._slowness if self._is_slow else 1.0) * self._random.uniform(1.0, 1.05)
        ms = self._row_ms[name] * rows * slowness
        self.now_s += max(SLICE_MS, ms) / 1e3
        return ms


def chosen(seed: int, row_ms: Mapping[CandidateName, float], *, together: bool) -> Choice:
    """Return what "auto" chooses on a machine with these true milliseconds per row."""
    machine = Machine(seed, row_ms, 0.0 if together else OPENING_S)
    sizes = dict.fromkeys(row_ms, SIZES)
    rounds = in_rounds(sizes, machine.run_ms, machine.clock, together=together, limit_s=LIMIT_S)
    agreement = Agreement(100, 0.9999, "y", 0.01, 1.0)
    original, *candidates = (
        Measured(name, rounds_ms=found, batchable=True, agreement=agreement)
        for name, found in rounds.items()
    )
    return choose(Optimisation("auto", 0.01), original, candidates)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("row_ms", [0.03, 1.0, 5.0])
def test_a_slower_candidate_is_never_chosen(row_ms: float, together: bool) -> None:
    """Both candidates are slower than the original, one by a hundredth."""
    true: dict[CandidateName, float] = {
        "original": row_ms,
        "fp16": 1.01 * row_ms,
        "int8": 1.3 * row_ms,
    }

    found = [chosen(seed, true, together=together).chosen for seed in range(SEEDS)]

    assert set(found) == {"original"}


@pytest.mark.parametrize("together", [True, False])
def test_a_slower_candidate_is_hardly_ever_chosen_where_rounds_are_long(together: bool) -> None:
    """A round of these slow models takes longer than most phases of the machine, so the median of
    the rounds alone would choose it in one of twenty trials."""
    true: dict[CandidateName, float] = {"original": 80.0, "fp16": 80.8, "int8": 104.0}

    found = [chosen(seed, true, together=together).chosen for seed in range(SEEDS)]

    assert found.count("original") >= 0.995 * SEEDS


@pytest.mark.parametrize(("together", "seldom"), [(True, 0.01), (False, 0.05)])
@pytest.mark.parametrize("row_ms", [0.05, 1.0, 5.0])
def test_a_candidate_twice_as_fast_is_chosen(row_ms: float, together: bool, seldom: float) -> None:
    """Seldom a phase ends within the first round or begins within the last, and helps only the
    original: then that is served, which costs time but changes no answer."""
    true: dict[CandidateName, float] = {"original": row_ms, "fp16": row_ms, "int8": row_ms / 2}

    found = [chosen(seed, true, together=together).chosen for seed in range(SEEDS)]

    assert "fp16" not in found
    assert found.count("int8") >= (1 - seldom) * SEEDS


def test_models_alternate() -> None:
    """At each size all models run one after the other, in an order that changes; those that cannot
    be open together run all their sizes at once. Models may have different sizes."""
    steps: list[tuple[CandidateName, int]] = []
    sizes: dict[CandidateName, tuple[int, ...]] = {
        "original": (1, 8),
        "int8": (1, 8),
        "int8-dynamic": (1,),
    }

    def run_ms(name: CandidateName, rows: int) -> float:
        steps.append((name, rows))
        return float(rows)

    for together in (True, False):
        steps.clear()

        found = in_rounds(sizes, run_ms, lambda: 0.0, together=together, limit_s=LIMIT_S)

        assert found["int8-dynamic"] == {1: [1.0] * ROUNDS}
        assert found["original"] == {1: [1.0] * ROUNDS, 8: [8.0] * ROUNDS}
        rounds = [tuple(steps[at : at + 5]) for at in range(0, len(steps), 5)]
        assert len(rounds) == ROUNDS
        assert len(set(rounds)) > 2
        for one in rounds:
            if together:
                assert [rows for _, rows in one] == [1, 1, 1, 8, 8]
            else:
                assert sum(a != b for (a, _), (b, _) in pairwise(one)) == 2


@pytest.mark.parametrize(
    ("run_s", "limit_s", "rounds"),
    [
        (0.01, LIMIT_S, ROUNDS),
        (ROUNDS_S / 8, LIMIT_S, 9),
        (4.0, LIMIT_S, ROUNDS_MIN),
        (4.0, 10.0 / LIMIT_SHARE, 3),
        (0.5, 3.0 / LIMIT_SHARE, 7),
        (100.0, LIMIT_S, 1),
    ],
)
def test_slow_models_run_fewer_rounds(run_s: float, limit_s: float, rounds: int) -> None:
    """Each has at least one round, whatever the limit: without it there would be no figures."""
    now = [0.0]

    def run_ms(name: CandidateName, rows: int) -> float:
        now[0] += run_s
        return 1.0

    found = in_rounds({"original": (1,)}, run_ms, lambda: now[0], together=True, limit_s=limit_s)

    assert len(found["original"][1]) == rounds


WIDTH = 3000
"""Width of a model with 34 MiB of weights."""
CAP_MIB = 220
"""Memory of a child that holds one or two of these models."""


def timed(order: Order, folder: Path) -> Figures:
    """Time real files in a child process, as a trial does."""
    file = folder / "order.json"
    file.write_text(json.dumps(to_json(order)))
    done = subprocess.run([*COMMAND, str(file)], capture_output=True, check=True, timeout=60)
    found: Figures = json.loads(done.stdout)
    return found


def test_sessions_that_do_not_fit_are_open_one_at_a_time(tmp_path: Path) -> None:
    """Three real models without a cap, and under one that does not hold them all: there, each one
    is closed before the next one is opened."""
    text = f"""<ir_version: 10, opset_import: ["" : 21]>
    g (float[n,{WIDTH}] x) => (float[n,{WIDTH}] y) {{ y = MatMul(x, w) }}"""
    model = onnx.parser.parse_model(text)
    weights = np.ones((WIDTH, WIDTH), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    x, y = (TensorSpec(name, "FP32", (DYNAMIC, WIDTH)) for name in "xy")
    names: tuple[CandidateName, ...] = ("original", "fp16", "int8")
    order = Order(
        "time",
        "original",
        ModelSpec("f@1", model=path.name, optimise=Optimisation("auto", 0.01)),
        *(str(tmp_path), str(tmp_path), str(path)),
        signature=Signature("tensors", (x,), (y,)),
        rows=(1, 2),
        judged=(0,),
        timed=tuple(Timed(name, str(path), name != "int8") for name in names),
        limit_s=2.0,
        together=True,
    )

    free = timed(order, tmp_path)
    refused = timed(replace(order, cap_mib=CAP_MIB), tmp_path)
    in_turn = timed(replace(order, cap_mib=CAP_MIB, together=False), tmp_path)

    assert "bad_alloc" in refused["why_not"]
    for found in (free, in_turn):
        assert found["why_not"] == ""
        rounds_ms = found["rounds_ms"]
        assert [(name, list(own)) for name, own in rounds_ms.items()] == [
            ("original", ["1", "2"]),
            ("fp16", ["1", "2"]),
            ("int8", ["1"]),
        ]
        assert len({len(ms) for own in rounds_ms.values() for ms in own.values()}) == 1
        assert all(ms > 0 for own in rounds_ms.values() for found in own.values() for ms in found)
