"""Model of many layers with random weights, large enough to gain from preparation."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH: Final = 512
"""Rows and columns of a layer's weights, 1 MiB of FP32."""


def layered(
    folder: Path,
    mib: int,
    name: str = "layered",
    *,
    apart: bool = False,
    rows: int | str = "n",
) -> Path:
    """Write a model: `x` FP32 [n, 512] through `mib` layers of 1 MiB (MatMul, Add, and Relu but for
    the last one) to `y` FP32 [n, 512].

    `apart`: store the weights next to the graph in `layered.data`. `rows`: the first axis. A trial
    of a model with a fixed one compares no batches, which takes seconds of CPU.
    """
    random = np.random.default_rng(0)
    nodes: list[Any] = []
    weights: list[Any] = []
    value = "x"
    for number in range(mib):
        w, b, m, a, r = (f"{letter}{number}" for letter in "wbmar")
        matrix = random.standard_normal((WIDTH, WIDTH)) * (2 / WIDTH) ** 0.5
        weights.append(numpy_helper.from_array(matrix.astype(np.float32), w))
        weights.append(numpy_helper.from_array(np.full(WIDTH, 0.01, np.float32), b))
        nodes.append(helper.make_node("MatMul", [value, w], [m]))
        nodes.append(helper.make_node("Add", [m, b], [a]))
        # The last layer has none: outputs that are nearly always 0 have hardly any spread.
        if number + 1 < mib:
            nodes.append(helper.make_node("Relu", [a], [r]))
        value = r if number + 1 < mib else a
    nodes.append(helper.make_node("Identity", [value], ["y"]))
    ends = [
        helper.make_tensor_value_info(end, TensorProto.FLOAT, [rows, WIDTH]) for end in ("x", "y")
    ]
    graph = helper.make_graph(nodes, name, ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    path = folder / f"{name}.onnx"
    onnx.save(model, path, save_as_external_data=apart, location="layered.data")
    return path
