"""Judges one model file in a process of its own: memory, rows, and agreement."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from runtime_image.contract import signature as signatures
from runtime_image.contract.errors import LoadError
from runtime_image.contract.model import ModelSpec
from runtime_image.contract.signature import Signature
from runtime_image.engines.base import Engine
from runtime_image.engines.onnx import OnnxEngine
from runtime_image.engines.upgrade import resident_mib
from runtime_image.verification import proof
from runtime_image.verification.precision.agreement import Agreement, Comparison
from runtime_image.verification.precision.order import Figures, Order
from runtime_image.verification.precision.samples import Samples, SamplesError, read, synthetic
from runtime_image.verification.trial import example, refutation, why_not_joined

OUTPUTS_BYTES_MAX: Final = 128 * 2**20
"""Max bytes of the original's outputs; further samples are not judged."""
EXPLORING_SHARE: Final = 0.5
"""Share of the child's time after which the original runs no further sample."""
ROWS_SHOWN: Final = 8
"""Batch sizes up to this are measured even if they gain nothing: a candidate's may."""
SWAP_S: Final = 2.0
"""Time of the neighbour swap for each model file; the chosen one is compared for longer later."""
MIB: Final = 2**20


def explore(order: Order, clock: Callable[[], float] = time.perf_counter) -> Figures:
    """Find the samples and batch sizes with which candidates are measured. Raises LoadError if the
    original cannot be loaded."""
    until_s = clock() + EXPLORING_SHARE * order.limit_s
    engine = _engine(order)
    try:
        samples = samples_of(order, engine.signature)
        judged = _keep_outputs(engine, samples, Path(order.outputs), until_s, clock)
    except LoadError as error:
        return {"why_not": "", "refused": str(error)}
    rows, batchable = [1], False
    if judged:
        feed = samples.feed(judged[0])
        batchable = _is_batchable(engine, order, feed)
        found = proof.latencies(engine, feed, batchable=batchable, clock=time.perf_counter)
        rows = [size for size in found if size <= max(ROWS_SHOWN, proof.knee(found))]
    return {
        "why_not": "",
        "signature": signatures.to_json(engine.signature),
        "rows": rows,
        "batchable": batchable,
        "source": samples.source,
        "calibrated": len(samples.calibration),
        "judged": judged,
    }


def judge(order: Order) -> Figures:
    """Return the figures of one model file. Raises LoadError if it cannot be loaded."""
    assert order.signature is not None
    engine = _engine(order)
    if reason := _why_another(engine.signature, order.signature):
        return {"why_not": reason}
    samples = samples_of(order, engine.signature)
    feed = samples.feed(order.judged[0])
    batchable = order.batchable
    if batchable is None:
        batchable = _is_batchable(engine, order, feed)
    for rows in order.rows if batchable else (1,):  # the memory of joined runs counts, too
        engine.run(repeated(feed, rows), engine.ticket())
    arrays_mib = sum(array.nbytes for array in samples.arrays.values()) / MIB
    figures: Figures = {
        "why_not": "",
        "memory_mib": round(max(0.0, resident_mib() - arrays_mib), 1),
        "batchable": batchable,
    }
    if order.name == "original":
        return figures
    return {**figures, "agreement": asdict(_agreement(engine, samples, order))}


def _engine(order: Order) -> OnnxEngine:
    return OnnxEngine(Path(order.model), device_kind=order.device_kind, threads=order.threads)


def model_spec(spec: ModelSpec) -> ModelSpec:
    """Return the spec of the bare model: a handler's sample and inputs are not those of its model,
    and its treatment of rows is not known."""
    if not spec.handler:
        return replace(spec, batch_unproven=False)
    return replace(spec, handler="", sample={}, inputs={}, batching=False, batch_unproven=False)


def _why_another(signature: Signature, original: Signature | None) -> str:
    """Return "" if the inputs and outputs of a candidate are those of the original."""
    if original is None:
        return ""
    got, wanted = _tensors(signature), _tensors(original)
    return "" if got == wanted else f"its inputs and outputs are {got}, the original's {wanted}"


def _tensors(signature: Signature) -> list[tuple[str, str]]:
    return [(tensor.name, tensor.dtype) for tensor in (*signature.inputs, *signature.outputs)]


def samples_of(order: Order, signature: Signature) -> Samples:
    """Return the owner's samples, or synthetic ones. Raises LoadError if they do not fit."""
    optimise = order.spec.optimise
    assert optimise is not None
    if optimise.samples:
        return read(Path(order.folder) / optimise.samples, signature)
    inputs, _ = example(signature, model_spec(order.spec), Path(order.folder))
    return synthetic(signature, inputs)


def _is_batchable(engine: OnnxEngine, order: Order, feed: dict[str, Any]) -> bool:
    """Whether rows of this file may be joined: proven, or by the owner's word, and not refuted.

    Rows of a model that fails for the trial's own input are not, as it will not be profiled.
    """
    spec = model_spec(order.spec)
    inputs, _ = example(engine.signature, spec, Path(order.folder))
    try:
        engine.run(inputs, engine.ticket())
    except Exception:  # noqa: BLE001 - models raise anything
        return False
    if order.name != "original":  # its outputs may differ by more
        spec = replace(spec, optimised=order.model)
    unproven = order.spec.batch_unproven and not order.spec.handler
    run_ms, outputs = proof.timed(engine, feed, time.perf_counter)
    why_not = why_not_joined(engine.signature, spec, order.verdict, run_ms)
    if why_not and not (unproven and run_ms <= proof.SLOW_MS):
        return False
    return not refutation(engine, spec, feed, outputs, order.device_kind, budget_s=SWAP_S)


def repeated(feed: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """Return the inputs of a run with the first row of `feed` that many times; 1: `feed` itself."""
    if rows == 1:
        return dict(feed)
    return {name: np.repeat(array[:1], rows, axis=0) for name, array in feed.items()}


def _keep_outputs(
    engine: Engine, samples: Samples, path: Path, until_s: float, clock: Callable[[], float]
) -> list[int]:
    """Write the original's outputs one after the other, and return the samples they are of.

    Synthetic samples that the model refuses are left out. Raises SamplesError if it refuses one of
    the owner's.
    """
    judged: list[int] = []
    with path.open("wb") as file:
        for number in samples.judged:
            if judged and (clock() > until_s or file.tell() > OUTPUTS_BYTES_MAX):
                break
            try:
                outputs = engine.run(samples.feed(number), engine.ticket())
            except Exception as error:
                if samples.source == "synthetic":
                    continue
                raise SamplesError(
                    f"the model fails for sample {number} of {_origin(samples)}: {_text(error)}"
                ) from error
            for value in outputs.values():
                np.lib.format.write_array(file, _plain(value), allow_pickle=False)
            judged.append(number)
    return judged


def _agreement(engine: Engine, samples: Samples, order: Order) -> Agreement:
    assert order.spec.optimise is not None
    assert order.signature is not None
    outputs = order.signature.outputs
    names = [output.name for output in outputs]
    shapes = {one.name: one.shape for one in outputs if one.shape is not None}
    comparison = Comparison(order.spec.optimise.labels, shapes)
    pairs = zip(order.judged, _kept(Path(order.outputs), names), strict=False)
    for count, (number, wanted) in enumerate(pairs):
        try:
            got = engine.run(samples.feed(number), engine.ticket())
        except Exception as error:  # noqa: BLE001 - a candidate may fail in any way
            return Agreement(count, broken=f"it fails for sample {number}: {_text(error)}")
        comparison.add(wanted, {name: _plain(value) for name, value in got.items()})
    return comparison.agreement()


def _kept(path: Path, names: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the outputs that `_keep_outputs` wrote; `names` are in the engine's order."""
    size = path.stat().st_size
    with path.open("rb") as file:
        while file.tell() < size:
            yield {name: np.lib.format.read_array(file, allow_pickle=False) for name in names}


def _plain(value: Any) -> Any:
    """Return strings as an array that needs no pickle."""
    return value.astype(str) if value.dtype.kind == "O" else value


def _origin(samples: Samples) -> str:
    return "optimise.samples" if samples.source == "samples" else "a synthetic input"


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300]
