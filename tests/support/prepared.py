"""A prepared model: its optimised graph, with the weights in a separate file."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from runtime_image.contract.model import ModelSpec, Preparation, SessionPlan
from runtime_image.engines.onnx import environment_key
from tests.support.models import IR_VERSION, OPSET, WIDTH

MODEL: Final = "layers.onnx"
QUICK: Final = "quick.onnx"
WEIGHTS: Final = "quick.onnx.data"
HIDDEN: Final = 1024
LAYERS: Final = 5
"""Number of layers, 4 MiB each."""


def layers(folder: Path) -> Path:
    """Write a perceptron of 20 MiB: `x` FP32 [n, 4] gives `y` FP32 [n, 4]."""
    widths = [WIDTH, *[HIDDEN] * (LAYERS + 1), WIDTH]
    random = np.random.default_rng(0)
    nodes, weights, value = [], [], "x"
    for index, shape in enumerate(pairwise(widths)):
        weight = random.normal(0, shape[0] ** -0.5, shape).astype(np.float32)
        bias = random.normal(0, 0.1, shape[1]).astype(np.float32)
        weights += [numpy_helper.from_array(weight, f"w{index}")]
        weights += [numpy_helper.from_array(bias, f"b{index}")]
        nodes += [helper.make_node("MatMul", [value, f"w{index}"], [f"m{index}"])]
        nodes += [helper.make_node("Add", [f"m{index}", f"b{index}"], [f"a{index}"])]
        value = "y" if index == len(widths) - 2 else f"t{index}"
        nodes += [helper.make_node("Tanh", [f"a{index}"], [value])]
    row = ["n", WIDTH]
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, row)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, row)],
        weights,
    )
    opset = [helper.make_opsetid("", OPSET)]
    path = folder / MODEL
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION), path)
    return path


def prepare(model: Path) -> Preparation:
    """Write the prepared files next to the model."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(model.parent / QUICK)
    prefix = "session.optimized_model_external_initializers"
    options.add_session_config_entry(f"{prefix}_file_name", WEIGHTS)
    options.add_session_config_entry(f"{prefix}_min_size_in_bytes", "1024")
    ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    return preparation()


def preparation(key: str = "", fast: str = QUICK) -> Preparation:
    """Return a preparation with a quick session (mapped weights), then a `fast` one (prepacked
    weights). Its key is this machine's unless `key` is given."""
    return Preparation(
        key or environment_key("cpu"),
        SessionPlan(QUICK, optimise=False, prepack=False),
        SessionPlan(fast, optimise=False, prepack=True),
    )


def spec(prepared: Preparation | None) -> ModelSpec:
    """Return a pool spec of the model of `layers`."""
    return ModelSpec("digits@1", model=MODEL, batch_max=4, preparation=prepared)
