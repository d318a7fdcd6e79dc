"""Comparison of a configuration's inputs and outputs with those of an ONNX file. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from admin.cli.repository.config import ModelConfig, TensorConfig
from admin.cli.repository.fields import Findings
from runtime_image.contract.onnx_signature import GraphSignature, GraphTensor
from runtime_image.contract.signature import DYNAMIC

_NAMES_MAX: Final = 20


def check_tensors(config: ModelConfig, graph: GraphSignature, findings: Findings) -> None:
    """Add a refusal for everything in which the two differ, as Triton refuses to load the model.

    A tensor without a declared type or shape is left to the trial.
    """
    if config.has_rows:
        _check_rows(config, [*graph.inputs, *graph.outputs], findings)
    for side, given, declared in (
        ("input", config.inputs, graph.inputs),
        ("output", config.outputs, graph.outputs),
    ):
        by_name = {one.name: one for one in declared}
        for tensor in given:
            path = f"{side}.{tensor.name}"
            model = by_name.get(tensor.name)
            if model is None:
                there = _listed(by_name)
                findings.refuse(tensor.line, path, f"the model has the {side}s {there}")
            else:
                _compare(config, tensor, model, findings)
        missing = [name for name in by_name if name not in {one.name for one in given}]
        if given and missing:
            _say_missing(side, given[-1].line, missing, findings)


def _check_rows(config: ModelConfig, tensors: Sequence[GraphTensor], findings: Findings) -> None:
    """Refuse a model whose tensors have no dynamic first axis."""
    for one in tensors:
        if one.shape is not None and (not one.shape or one.shape[0] != DYNAMIC):
            text = (
                f"{config.max_batch_size} needs a first axis of any length, and the model's"
                f" {one.name!r} has the shape {list(one.shape)}; 0 deploys it as it is"
            )
            findings.refuse(config.batch_line, "max_batch_size", text)


def _compare(
    config: ModelConfig, given: TensorConfig, model: GraphTensor, findings: Findings
) -> None:
    path = f"{given.side}.{given.name}"
    if model.dtype and given.dtype and model.dtype != given.dtype:
        text = f"data_type is {given.dtype}, the model has {model.dtype}"
        findings.refuse(given.line, path, text)
    if model.shape is None:
        return
    whole = (DYNAMIC, *given.dims) if config.has_rows else given.dims
    if not _fits(whole, model.shape):
        rows = ", with the axis of rows" if config.has_rows else ""
        text = f"dims are {list(whole)}{rows}, the model has {list(model.shape)}"
        findings.refuse(given.line, path, text)
    elif given.side == "input" and any(
        ours != DYNAMIC and theirs == DYNAMIC
        for ours, theirs in zip(whole, model.shape, strict=True)
    ):
        text = f"dims {list(whole)} are not enforced, the model takes {list(model.shape)}"
        findings.ignore(given.line, path, text)


def _fits(ours: Sequence[int], theirs: Sequence[int]) -> bool:
    return len(ours) == len(theirs) and all(
        DYNAMIC in (one, other) or one == other for one, other in zip(ours, theirs, strict=True)
    )


def _say_missing(side: str, line: int, missing: Sequence[str], findings: Findings) -> None:
    names = _listed(missing)
    if side == "input":
        findings.refuse(line, side, f"the model also takes {names}")
    else:
        findings.ignore(line, side, f"answers also have {names}, unless a request names some")


def _listed(names: Sequence[str] | dict[str, GraphTensor]) -> str:
    shown = [repr(name[:80]) for name in list(names)[:_NAMES_MAX]]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")
