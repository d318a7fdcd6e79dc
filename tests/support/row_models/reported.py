"""Models that comparisons of runs on made-up rows took for row-independent."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.support.row_models.case import Case

ROOT: Final = Path(__file__).parents[3]
DIGITS: Final = ROOT / "functions" / "digits" / "digits.onnx"
LARGEST: Final = "rows = Constant <value = int64[1] {0}> () most = ReduceMax (x, rows)"


def quantised(source: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model after ONNX Runtime's dynamic quantisation."""
    from onnxruntime import quantization

    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / "before.onnx", Path(folder) / "after.onnx"
        onnx.save(source, before)
        quantization.quantize_dynamic(before, after)
        return onnx.load(after)


def digits_label() -> onnx.ModelProto:
    """Return the example function `digits`, quantised, with its label as the only output."""
    model = quantised(onnx.load(DIGITS))
    for output in list(model.graph.output):
        if output.name != "label":
            model.graph.output.remove(output)
    return model


def perceptron(*widths: int) -> onnx.ModelProto:
    """Return a quantised MLP from 4 columns over `widths`, with random weights."""
    random = np.random.default_rng(len(widths))
    nodes, weights, last = [], [], "x"
    for at, (before, after) in enumerate(zip((4, *widths), widths, strict=False)):
        matrix = random.normal(size=(before, after)).astype(np.float32)
        weights.append(numpy_helper.from_array(matrix, f"w{at}"))
        nodes.append(helper.make_node("MatMul", [last, f"w{at}"], [f"m{at}"]))
        last = "y" if at == len(widths) - 1 else f"r{at}"
        nodes.append(helper.make_node("Relu" if last != "y" else "Tanh", [f"m{at}"], [last]))
    graph = helper.make_graph(
        nodes,
        "perceptron",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", widths[-1]])],
        weights,
    )
    opsets = [helper.make_opsetid("", 21)]
    return quantised(helper.make_model(graph, ir_version=10, opset_imports=opsets))


SCALED: Final[tuple[tuple[str, Callable[[], onnx.ModelProto]], ...]] = (
    ("quantised_digits_label", digits_label),
    ("quantised_perceptron", partial(perceptron, 8, 3)),
    ("quantised_deep_perceptron", partial(perceptron, 16, 16, 2)),
)

CASES: Final = (
    Case(
        "first_string",
        "Gather",
        """shape = Shape (x) first = ConstantOfShape <value = int64[1] {0}> (shape)
        y = Gather (x, first)""",
        given="string[n] x",
        gives="string[n] y",
    ),
    Case(
        "compress",
        "Compress",
        """columns = Constant <value = int64[1] {1}> () least = Constant <value = float {-3}> ()
        lowest = ReduceMin <keepdims = 0> (x, columns) keep = Greater (lowest, least)
        y = Compress <axis = 0> (x, keep)""",
        gives="float[m,4] y",
    ),
    *(Case(name, "DynamicQuantizeLinear", build=build) for name, build in SCALED),
    Case(
        "zero_times_sum",
        "ReduceSum",
        """rows = Constant <value = int64[1] {0}> () none = Constant <value = float {0}> ()
        sum = ReduceSum (x, rows) nothing = Mul (sum, none) y = Add (x, nothing)""",
        rows={"x": ([1, 2, 3, 4], [3e38] * 4, [0, 0, 0, 0])},
    ),
    Case(
        "rare_branch",
        "ReduceMax",
        f"""{LARGEST} many = Constant <value = float {{100}}> () rare = Greater (most, many)
        one = Cast <to = 1> (rare) y = Add (x, one)""",
    ),
    Case(
        "tiny_softmax",
        "Softmax",
        """small = Constant <value = float {0.00001}> ()
        share = Softmax <axis = 0> (x) y = Mul (share, small)""",
        rows={"x": ([1, 2, 3, 4], [0, 0, 0, 0], [1, 1, 5, 1])},
    ),
    Case(
        "largest_but_five",
        "ReduceMax",
        f"""{LARGEST} five = Constant <value = int64 {{5}}> ()
        at_least = Max (most, five) y = Add (x, at_least)""",
        given="int64[n,1] x",
        gives="int64[n,1] y",
        rows={"x": ([5], [0], [9])},
    ),
    Case(
        "less_the_largest",
        "ReduceMax",
        f"{LARGEST} y = Sub (x, most)",
        given="int64[n,1] x",
        gives="int64[n,1] y",
        rows={"x": ([5], [0], [9])},
    ),
)
