"""Compares single and joined runs, and finds the largest batch size that still gains."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np

from runtime_image.contract.signature import Signature, TensorSpec
from runtime_image.engines.base import Engine

VARIANTS = 5
"""Number of different inputs, run singly and joined."""
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Batch sizes to try; the largest one is also the limit of any batch."""
GAIN = 0.9
"""A larger batch gains if its time per row is below this share of the best time so far."""
RUN_MS_MAX = 250.0
"""Larger batches are not tried after one that takes longer: they would only add latency."""
FUTILE_MAX = 8
"""Larger batches are not tried beyond this multiple of the best one. They would cost the deploying
client time, and their memory would count as the function's."""
REPEATS = 5
REPEATS_MAX = 5000
REPEATS_MS = 20.0
REPEATS_MS_MAX = 500.0
"""Each size is run at least this often and for as long, at most as often and for as long: a trial
has a deadline. The fastest run counts: short ones are repeated until one is likely to be free of
other work."""
SLOW_MS = 1000.0
"""Models with longer single runs are not batched: comparing them would take minutes."""
TOLERANCE = {"f2": (2e-2, 1e-2), "f4": (1e-3, 1e-4), "f8": (1e-5, 1e-7)}
"""Allowed relative and absolute difference between single and joined runs, by float size."""


def why_no_batch_axis(signature: Signature) -> str:
    """Return "" if every input and output has a dynamic first axis, else the ones without.

    An output of unknown rank is left to the proof and to the comparison of runs.
    """
    if signature.kind != "tensors":
        return f"a {signature.kind} function has no batch axis"
    unknown = [one.name for one in signature.inputs if one.shape is None]
    if unknown:
        return f"the model declares no shape for {', '.join(unknown)}"
    named = [*signature.inputs, *(one for one in signature.outputs if one.shape is not None)]
    fixed = [one.name for one in named if not one.has_dynamic_rows]
    return f"the first axis of {', '.join(fixed)} is not dynamic" if fixed else ""


def why_not_batchable(
    engine: Engine,
    inputs: dict[str, Any],
    outputs: dict[str, Any],
    seed: int = 0,
    *,
    coarse: bool = False,
) -> str:
    """Return "" if runs do not refute that the first axis is a batch axis, else how they do.

    Runs different inputs singly and joined, in two orders; every row must agree. This finds
    gross errors only; the neighbour swap compares exactly. `coarse` as in `agree`.
    """
    signature = engine.signature
    if reason := why_no_batch_axis(signature):
        return reason
    variants = [variant(signature.inputs, inputs, i, seed) for i in range(VARIANTS)]
    try:
        singles = [engine.run(one, engine.ticket()) for one in variants]
    except Exception as error:  # noqa: BLE001 - a model may raise anything on synthetic inputs
        return f"synthetic inputs failed in single runs: {error}"[:300]
    reason = _rows_differ(inputs, outputs)
    orders = (list(range(VARIANTS)), list(reversed(range(VARIANTS))))
    return reason or next(
        filter(None, (_disagreement(engine, variants, singles, order, coarse) for order in orders)),
        "",
    )


def latencies(
    engine: Engine, inputs: dict[str, Any], *, batchable: bool, clock: Callable[[], float]
) -> dict[int, float]:
    """Return the best milliseconds per run, by rows; only 1 row (the given input) without batching.

    Tries sizes in order until one takes too long, or larger sizes no longer gain.
    """
    measured: dict[int, float] = {}
    for rows in SIZES if batchable else (1,):
        feed = inputs
        if batchable:
            feed = {name: np.repeat(array[:1], rows, axis=0) for name, array in inputs.items()}
        measured[rows] = _best(engine, feed, clock)
        if measured[rows] > RUN_MS_MAX or rows >= FUTILE_MAX * knee(measured):
            break
    return measured


def knee(latency_ms: dict[int, float]) -> int:
    """Return the number of rows beyond which larger batches save less than a tenth per row."""
    best_rows, best = 1, float("inf")
    for rows, ms in sorted(latency_ms.items()):
        per_row = ms / rows
        if per_row < best * GAIN:
            best_rows, best = rows, per_row
    return best_rows


def _best(engine: Engine, feed: dict[str, Any], clock: Callable[[], float]) -> float:
    best, spent_ms, count = inf, 0.0, 0
    while count < REPEATS_MAX and spent_ms < REPEATS_MS_MAX:
        if count >= REPEATS and spent_ms >= REPEATS_MS:
            break
        run_ms = timed(engine, feed, clock)[0]
        best, spent_ms, count = min(best, run_ms), spent_ms + run_ms, count + 1
    return best


def timed(
    engine: Engine, feed: dict[str, Any], clock: Callable[[], float]
) -> tuple[float, dict[str, Any]]:
    """Return the milliseconds of one run, and its outputs."""
    began = clock()
    outputs = engine.run(feed, engine.ticket())
    return (clock() - began) * 1e3, outputs


def variant(
    tensors: tuple[TensorSpec, ...], inputs: dict[str, Any], index: int, seed: int
) -> dict[str, Any]:
    """Return one row like the example but different: floats get noise, other values are permuted.

    Other values are not changed, because an index outside the example's values may be invalid for
    the model; if they are all zero, they become random zeros and ones.
    """
    random = np.random.default_rng((seed, index))
    made: dict[str, Any] = {}
    for tensor in tensors:
        row = np.array(inputs[tensor.name][:1])
        if row.dtype.kind == "f":
            noise = random.normal(size=row.shape)
            made[tensor.name] = (row * random.uniform(0.5, 1.5) + noise).astype(row.dtype)
        elif row.dtype.kind in "iub" and not row.any():
            made[tensor.name] = random.integers(0, 2, row.shape).astype(row.dtype)
        else:
            made[tensor.name] = random.permutation(row.reshape(-1)).reshape(row.shape)
    return made


def rows_like(tensors: tuple[TensorSpec, ...], inputs: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the first row of the example and two variants of it, for the neighbour swap."""
    first = {name: array[:1] for name, array in inputs.items()}
    return [first, *(variant(tensors, inputs, index, 0) for index in range(2))]


def has_rows(value: Any, rows: int) -> bool:
    """Whether an output is an array with exactly `rows` rows on its first axis."""
    return isinstance(value, np.ndarray) and value.ndim > 0 and value.shape[0] == rows


def _rows_differ(inputs: dict[str, Any], outputs: dict[str, Any]) -> str:
    rows = next(iter(inputs.values())).shape[0]
    for name, value in outputs.items():
        if not has_rows(value, rows):
            return f"output {name} does not have one row per input row"
    return ""


def _disagreement(
    engine: Engine,
    variants: list[dict[str, Any]],
    singles: list[dict[str, Any]],
    order: list[int],
    coarse: bool,
) -> str:
    joined = {name: np.concatenate([variants[i][name] for i in order]) for name in variants[0]}
    try:
        together = engine.run(joined, engine.ticket())
    except Exception as error:  # noqa: BLE001 - a model may raise anything on a batch
        return f"a batch of {len(order)} failed: {error}"[:300]
    rows = len(order)
    if ragged := [name for name, value in together.items() if not has_rows(value, rows)]:
        return f"output {ragged[0]} does not have one row per input row"
    for place, index in enumerate(order):
        for name, single in singles[index].items():
            part = together[name][place : place + 1]
            if part.shape != single.shape or not agree(part, single, coarse=coarse):
                return f"output {name} of a row changes with the other rows of its batch"
    return ""


def agree(one: Any, other: Any, *, coarse: bool = False) -> bool:
    """Whether two outputs are equal within the tolerance for a different order of additions.

    `coarse`: the model computes in a lower precision than that of its outputs, so a different order
    may change the last place of FP16, or a step of INT8.
    """
    if one.dtype.kind != "f":
        return bool(np.array_equal(one, other))
    relative, absolute = TOLERANCE.get("f2" if coarse else one.dtype.str[1:], TOLERANCE["f4"])
    return bool(np.allclose(one, other, rtol=relative, atol=absolute, equal_nan=True))
