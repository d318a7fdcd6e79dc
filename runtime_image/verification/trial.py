"""Work of a trial replica at deploy: runs the sample, verifies batching, measures the model."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from runtime_image.codecs import bfloat16
from runtime_image.codecs.accept import AnswerForm
from runtime_image.codecs.answer import encode, served_model
from runtime_image.codecs.arrays import to_arrays
from runtime_image.codecs.request import RequestHead, parse
from runtime_image.contract import model
from runtime_image.contract import signature as signatures
from runtime_image.contract.control import Report
from runtime_image.contract.dtypes import BYTES
from runtime_image.contract.errors import LoadError, NeverAnswers, RequestError
from runtime_image.contract.model import InputRule, ModelSpec, form_shape
from runtime_image.contract.rows import PROOF, RowVerdict
from runtime_image.contract.signature import Signature, TensorSpec
from runtime_image.engines.base import Engine
from runtime_image.engines.failures import reason_of
from runtime_image.engines.upgrade import resident_mib
from runtime_image.verification import proof
from runtime_image.verification.contention import Contention
from runtime_image.verification.swap import BUDGET_S, NeighbourSwap

ALWAYS = '[batching] mode = "always"'
WARM_UP_MS = 10_000.0
"""Longest first run that may be long only because it is the first."""
ZERO = {"BOOL": np.bool_, "FP16": np.float16, "FP32": np.float32, "FP64": np.float64}


class SampleError(LoadError):
    """The manifest's sample could not be run; the text is the reason."""

    stage = "sample"


class BatchingRefuted(LoadError):
    """The manifest has mode = "always", but a comparison of runs shows that rows mix."""


UNANALYSED = RowVerdict(analysed=False, proven=False, reason="there is no model file to analyse")


def analyse(spec: ModelSpec, folder: Path) -> RowVerdict:
    """Return the static verdict on the rows of a trial's model. Runs in a child process, before the
    engine uses memory. Not for handlers: they may do anything with rows."""
    if not spec.model or spec.handler or not spec.batching:
        return UNANALYSED
    from runtime_image.verification.child import verdict_of  # imported by trials only

    return verdict_of(folder / spec.model)


def examine(  # noqa: PLR0913 - everything known about a model before it is run
    engine: Engine,
    spec: ModelSpec,
    folder: Path,
    load_ms: float,
    verdict: RowVerdict = UNANALYSED,
    *,
    device_kind: str = "cpu",
    threads: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> Report:
    """Return the report for the deploy. Raises LoadError if the bundle must be refused.

    `verdict` is the static one of the model file. `threads` are those of the engine.
    """
    check_rules(engine.signature, spec)
    inputs, given = example(engine.signature, spec, folder)
    try:
        run_ms, outputs = _tried(engine, inputs, spec.timeout_s, clock)
    except NeverAnswers as error:
        raise LoadError(str(error)) from error
    except Exception as error:
        if given:
            raise SampleError(f"the sample failed: {reason_of(error)}") from error
        return _unprofiled(engine.signature, load_ms, reason_of(error))
    if run_ms > spec.timeout_s * 1e3:
        what = "the sample" if given else "an input of zeros"
        raise SampleError(
            f"the run of {what} took {run_ms / 1e3:.3g} s, expected at most timeout_s ="
            f" {spec.timeout_s:g}: every call would fail; raise [limits] timeout_s"
        )
    shown = _shown(engine.signature, spec, outputs) if given else {}
    why_not = why_not_joined(engine.signature, spec, verdict, run_ms)
    compared = False
    if not why_not or (spec.batch_unproven and not _is_slow(run_ms)):
        refuted = refutation(engine, spec, inputs, outputs, device_kind)
        why_not, compared = why_not or refuted, not refuted
    with Contention(threads) as contention:
        latency_ms = proof.latencies(engine, inputs, batchable=compared, clock=clock)
    return Report(
        signature=signatures.to_json(engine.signature),
        load_ms=load_ms,
        memory_mib=resident_mib(),
        latency_ms={str(rows): ms for rows, ms in latency_ms.items()},
        batchable=not why_not,
        why_not=why_not,
        batch_max=proof.knee(latency_ms),
        profiled=True,
        sample_outputs=shown,
        proof=PROOF,
        operator=verdict.operator,
        equal_axes=[[list(place) for place in group] for group in verdict.equal_axes],
        compared=compared,
        contention=contention.state if compared or _is_slow(run_ms) else "unknown",
    )


def _tried(
    engine: Engine, inputs: dict[str, Any], timeout_s: float, clock: Callable[[], float]
) -> tuple[float, dict[str, Any]]:
    """Return the milliseconds of the first run, or of a second one if the first is over the time
    limit, but may have been long because it was the first; and the outputs."""
    run_ms, outputs = proof.timed(engine, inputs, clock)
    if timeout_s * 1e3 < run_ms <= WARM_UP_MS:
        return proof.timed(engine, inputs, clock)
    return run_ms, outputs


def why_not_joined(
    signature: Signature, spec: ModelSpec, verdict: RowVerdict, run_ms: float
) -> str:
    """Return "" if rows are proven to be independent, else the reason for single runs."""
    if not spec.batching:
        return "batching is off in function.toml"
    if _is_slow(run_ms):
        return f"a single run takes {run_ms / 1e3:.1f} s, batching would only add latency"
    if reason := proof.why_no_batch_axis(signature):
        return reason
    if any(one.dtype == bfloat16.NAME for one in (*signature.inputs, *signature.outputs)):
        return "BF16 has no tolerance for the comparison of runs"
    if spec.handler:
        return f"a handler may mix rows: {ALWAYS} in function.toml joins them"
    if not verdict.analysed:
        return f"its rows could not be analysed: {verdict.reason}"
    return "" if verdict.proven else verdict.reason


def _is_slow(run_ms: float) -> bool:
    return run_ms > proof.SLOW_MS


def refutation(
    engine: Engine,
    spec: ModelSpec,
    inputs: dict[str, Any],
    outputs: dict[str, Any],
    device_kind: str,
    *,
    budget_s: float = BUDGET_S,
) -> str:
    """Return how a comparison of runs refutes joining rows, "" if it does not. Raises
    BatchingRefuted if the owner requires batching."""
    coarse = bool(spec.optimised)
    refuted = proof.why_not_batchable(engine, inputs, outputs, coarse=coarse)
    if not refuted:
        rows = proof.rows_like(engine.signature.inputs, inputs)
        swap = NeighbourSwap(engine, device_kind, budget_s=budget_s)
        refuted = swap.refutation(rows, spec.inputs)
    if refuted and spec.batch_unproven:
        raise BatchingRefuted(f"{ALWAYS} in function.toml, but {refuted}")
    return refuted


def check_rules(signature: Signature, spec: ModelSpec) -> None:
    """Raise LoadError if function.toml names tensors that do not exist or do not fit."""
    if signature.kind != "tensors":
        return
    names = [tensor.name for tensor in signature.inputs]
    for name, rule in spec.inputs.items():
        tensor = signature.input(name)
        if tensor is None:
            raise LoadError(f"function.toml input.{name}: the model's inputs are {names}")
        if rule.image is not None and tensor.dtype in ("BOOL", BYTES):
            raise LoadError(f"function.toml input.{name}: a picture cannot become {tensor.dtype}")
        if rule.kind != "tensor" and tensor.dtype == bfloat16.NAME:
            raise LoadError(f"function.toml input.{name}: {rule.kind} cannot become BF16")
    outputs = [tensor.name for tensor in signature.outputs]
    if spec.output.tensor and outputs and spec.output.tensor not in outputs:
        raise LoadError(
            f"function.toml output.tensor = {spec.output.tensor!r}: the model's outputs are"
            f" {outputs}"
        )


def example(signature: Signature, spec: ModelSpec, folder: Path) -> tuple[dict[str, Any], bool]:
    """Return trial inputs, and whether they are the manifest's sample. Raises SampleError."""
    if not spec.sample:
        if signature.kind == "bytes":
            return {signature.inputs[0].name: b""}, False
        return {
            tensor.name: _zeros(_formed(tensor, spec.inputs.get(tensor.name)))
            for tensor in signature.inputs
        }, False
    try:
        head, body = _sample_body(spec.sample, folder)
        parsed = parse(head, body, signature, spec.inputs)
        return to_arrays(parsed, signature, spec.inputs), True
    except RequestError as error:
        raise SampleError(f"the sample does not fit: {error.message}") from error


def _sample_body(sample: dict[str, Any], folder: Path) -> tuple[RequestHead, bytes]:
    try:
        file = model.file_of(sample)
    except ValueError as error:
        raise SampleError(str(error)) from error
    if not file:
        import msgspec

        return RequestHead(model.JSON), msgspec.json.encode({"inputs": sample})
    return RequestHead(model.content_type(file)), (folder / file).read_bytes()


def _formed(tensor: TensorSpec, rule: InputRule | None) -> TensorSpec:
    """Return the tensor, if its rank is unknown with the shape that a picture, sound or body gives
    it."""
    if tensor.shape is not None or rule is None:
        return tensor
    return replace(tensor, shape=form_shape(rule))


def _zeros(tensor: TensorSpec) -> Any:
    shape = tensor.smallest_shape
    if tensor.dtype == BYTES:
        return np.full(shape, "", dtype=object)
    if tensor.dtype == bfloat16.NAME:
        return np.zeros(shape, bfloat16.BF16)
    return np.zeros(shape, dtype=ZERO.get(tensor.dtype) or np.dtype(tensor.dtype.lower()))


def _shown(signature: Signature, spec: ModelSpec, outputs: dict[str, Any]) -> dict[str, Any]:
    """Return the sample's answer as a client would get it, {} if it is long."""
    import msgspec

    if any(tensor.dtype == bfloat16.NAME for tensor in signature.outputs):
        return {}
    try:
        model = served_model(spec.revision)
        answer = encode(outputs, AnswerForm("short"), signature, spec.output, model, "")
    except Exception as error:
        raise SampleError(f"the sample's outputs cannot be encoded: {error}") from error
    if len(answer.body) > 4096:
        return {}
    shown: dict[str, Any] = msgspec.json.decode(answer.body)
    return shown


def _unprofiled(signature: Signature, load_ms: float, reason: str) -> Report:
    return Report(
        signature=signatures.to_json(signature),
        load_ms=load_ms,
        memory_mib=resident_mib(),
        latency_ms={},
        batchable=False,
        why_not="not profiled",
        batch_max=1,
        profiled=False,
        note=f"a synthetic input failed, give a [sample]: {reason}"[:500],
        proof=PROOF,
    )
