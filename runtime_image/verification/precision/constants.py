"""Constants of a model that FP16 cannot hold, found without samples.

The converter clamps what is out of range: above 65,504 to that, and what is smaller than the
smallest number to that. A branch that no sample takes would hide either of them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

LARGEST: Final = float(np.finfo(np.float16).max)
SMALLEST: Final = float(np.finfo(np.float16).smallest_subnormal)
NO_BOUND: Final = 0.99 * float(np.finfo(np.float32).max)
"""From here on a number stands for infinity, as in masks and in `Clip`: clamped, it still does."""
LOSS_MAX: Final = 0.02
"""Max error of a tensor, as a share of its norm: what the default tolerance permits of a spread.
Numbers in FP16's range lose 0.0005 at most."""
ADDED: Final[dict[str, frozenset[int] | None]] = {
    **dict.fromkeys(("Add", "Sub", "Sum", "Max", "Min", "Clip")),
    **dict.fromkeys(("Gemm", "Conv", "ConvTranspose", "LayerNormalization"), frozenset({2})),
    "BatchNormalization": frozenset({2, 3}),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), frozenset({3})),
}
"""Inputs of operators, None for all, that are added to other numbers: beside them, FP16 has no use
for what is smaller than its smallest step."""


def tensors(graph: onnx.GraphProto) -> Iterator[tuple[str, TensorProto]]:
    """Yield all constants with the names of their values, also those of branches and loops."""
    for one in graphs(graph):
        for weight in one.initializer:
            yield weight.name, weight
        for node in one.node:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield next(iter(node.output), ""), attribute.t


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield the graph and those of its nodes' branches and loops."""
    waiting = [graph]
    while waiting:
        one = waiting.pop()
        yield one
        for node in one.node:
            for attribute in node.attribute:
                waiting += [attribute.g] if attribute.HasField("g") else []
                waiting += attribute.graphs


def beyond_fp16(model: onnx.ModelProto) -> dict[str, str]:
    """Return a reason for each FP32 constant that FP16 cannot hold, by name."""
    found = {}
    is_factor: dict[str, bool] = defaultdict(bool)
    for graph in graphs(model.graph):
        for node in graph.node:
            for place, name in enumerate(node.input):
                added = ADDED.get(node.op_type, frozenset())
                is_factor[name] |= added is not None and place not in added
    for name, tensor in tensors(model.graph):
        if tensor.data_type != TensorProto.FLOAT:
            continue
        values = numpy_helper.to_array(tensor)
        sizes = np.abs(values[np.isfinite(values) & (values != 0)])
        if reason := _why_too_large(sizes) or (_why_too_small(sizes) if is_factor[name] else ""):
            found[name] = f"constant {name} {reason}"
    return found


def _why_too_large(sizes: NDArray[np.float32]) -> str:
    largest = float(sizes[sizes < NO_BOUND].max(initial=0.0))
    return f"has the size {largest:.3g}, FP16 ends at {LARGEST:.0f}" if largest > LARGEST else ""


def _why_too_small(sizes: NDArray[np.float32]) -> str:
    norm = float(np.linalg.norm(sizes.astype(np.float64))) if sizes.size else 0.0
    if math.sqrt(sizes.size) * SMALLEST <= LOSS_MAX * norm:  # no error is larger
        return ""
    kept = np.maximum(sizes, SMALLEST).astype(np.float16).astype(np.float64)
    loss = float(np.linalg.norm(kept - sizes)) / norm if norm else 0.0
    if loss <= LOSS_MAX:
        return ""
    return (
        f"has sizes from {sizes.min():.3g} to {sizes.max():.3g}, in FP16 they would be off by"
        f" {loss:.0%}"
    )
