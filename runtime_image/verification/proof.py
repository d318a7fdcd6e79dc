"""Compares rows run singly and joined, and finds how many rows are worth joining."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from runtime_image.contract.signature import DYNAMIC, Signature, TensorSpec
from runtime_image.engines.base import Engine

VARIANTS = 5
"""Different inputs that are run singly and together."""
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Rows tried; the largest is also the largest batch there is."""
GAIN = 0.9
"""More rows are worth it while the time per row falls below this share of the best so far."""
RUN_MS_MAX = 250.0
"""A batch that takes longer than this is no longer tried larger: it would only add latency."""
FUTILE_MAX = 8
"""No size is tried beyond so many times the best one: what nobody will run is not worth a client's
time, and its memory would count as the function's."""
REPEATS = 5
REPEATS_MS_MAX = 500.0
"""Repeating ends when a size has taken this long: a trial has a deadline."""
SLOW_MS = 1000.0
"""A single run that takes longer is not joined with others: the proof would take minutes."""
TOLERANCE = {"f2": (2e-2, 1e-2), "f4": (1e-3, 1e-4), "f8": (1e-5, 1e-7)}
"""Relative and absolute difference allowed between single and joined runs, by float size."""


def why_no_batch_axis(signature: Signature) -> str:
    """ "" where every input and output has a dynamic first axis, else which has not."""
    if signature.kind != "tensors":
        return f"a {signature.kind} function has no batch axis"
    named = [*signature.inputs, *(signature.outputs or ())]
    fixed = [t.name for t in named if not t.shape or t.shape[0] != DYNAMIC]
    return f"the first axis of {', '.join(fixed)} is not dynamic" if fixed else ""


def why_not_batchable(
    engine: Engine, inputs: dict[str, Any], outputs: dict[str, Any], seed: int = 0
) -> str:
    """ "" where runs do not refute that the first axis is a batch axis, else how they do.

    Different inputs are run singly and joined, in two orders; every row must agree. This finds
    gross errors only; the neighbour swap compares exactly.
    """
    signature = engine.signature
    if reason := why_no_batch_axis(signature):
        return reason
    variants = [variant(signature.inputs, inputs, i, seed) for i in range(VARIANTS)]
    try:
        singles = [engine.run(one, engine.ticket()) for one in variants]
    except Exception as error:  # noqa: BLE001 - a model may raise anything on made-up inputs
        return f"inputs made up for the proof failed singly: {error}"[:300]
    reason = _rows_differ(inputs, outputs)
    orders = (list(range(VARIANTS)), list(reversed(range(VARIANTS))))
    return reason or next(
        filter(None, (_disagreement(engine, variants, singles, order) for order in orders)), ""
    )


def latencies(
    engine: Engine, inputs: dict[str, Any], *, batchable: bool, clock: Callable[[], float]
) -> dict[int, float]:
    """Best milliseconds per run, by rows; only 1 row (the input as given) without batching.

    Sizes are tried in order until one takes too long, or several in a row gained nothing.
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
    """The number of rows beyond which joining more gains less than a tenth per row."""
    best_rows, best = 1, float("inf")
    for rows, ms in sorted(latency_ms.items()):
        per_row = ms / rows
        if per_row < best * GAIN:
            best_rows, best = rows, per_row
    return best_rows


def _best(engine: Engine, feed: dict[str, Any], clock: Callable[[], float]) -> float:
    runs: list[float] = []
    while len(runs) < REPEATS and sum(runs) < REPEATS_MS_MAX:
        runs.append(timed(engine, feed, clock)[0])
    return min(runs)


def timed(
    engine: Engine, feed: dict[str, Any], clock: Callable[[], float]
) -> tuple[float, dict[str, Any]]:
    """Milliseconds of one run, and its outputs."""
    began = clock()
    outputs = engine.run(feed, engine.ticket())
    return (clock() - began) * 1e3, outputs


def variant(
    tensors: tuple[TensorSpec, ...], inputs: dict[str, Any], index: int, seed: int
) -> dict[str, Any]:
    """One row like the example but different: floats are disturbed, other values rearranged.

    Values that are no floats are only moved, because an index outside the example's values may
    not be valid for the model; all zeros become a mix of zeros and ones.
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
    """The first row of the example, then others like it, for the neighbour swap."""
    first = {name: array[:1] for name, array in inputs.items()}
    return [first, *(variant(tensors, inputs, index, 0) for index in range(2))]


def has_rows(value: Any, rows: int) -> bool:
    """Whether an output is an array with exactly so many rows on its first axis."""
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
            if part.shape != single.shape or not agree(part, single):
                return f"output {name} of a row changes with the other rows of its batch"
    return ""


def agree(one: Any, other: Any) -> bool:
    """Whether two outputs are the same but for what the order of additions may change."""
    if one.dtype.kind != "f":
        return bool(np.array_equal(one, other))
    relative, absolute = TOLERANCE.get(one.dtype.str[1:], TOLERANCE["f4"])
    return bool(np.allclose(one, other, rtol=relative, atol=absolute, equal_nan=True))
