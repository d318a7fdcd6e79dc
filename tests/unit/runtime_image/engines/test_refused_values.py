"""Tests of which errors of ONNX Runtime are those of a request's inputs."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from runtime_image.engines.refused_values import TEXT_MAX, refused_values

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


def floats(*shape: int) -> Any:
    return np.ones(shape, np.float32)


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def number(value: int) -> Any:
    return np.array(value)


A, B = floats(2, 4), floats(3, 5)
FAULTS: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("Gather", {"a": A, "i": ints(5)}, {}, "idx=5 must be within the inclusive range [-2,1]"),
    ("GatherElements", {"a": A, "i": np.full((1, 4), 9)}, {}, "Out of range value"),
    ("GatherND", {"a": A, "i": ints(9)[None]}, {}, "index = 9"),
    ("ScatterND", {"a": A, "i": ints(9)[None], "b": floats(1, 4)}, {}, "indice = 9"),
    ("ScatterElements", {"a": A, "i": np.full((1, 4), 9), "b": floats(1, 4)}, {}, "idx=9"),
    ("Reshape", {"a": A, "i": ints(3)}, {}, "The input tensor cannot be reshaped"),
    ("Reshape", {"a": A, "i": ints(-1, -1)}, {}, "At most one dimension can be -1"),
    ("Expand", {"a": A, "i": ints(3, 4)}, {}, "invalid expand shape"),
    ("Tile", {"a": A, "i": ints(-3, 1)}, {}, "got: -3"),
    ("Add", {"a": A, "b": B}, {}, "Attempting to broadcast an axis"),
    ("MatMul", {"a": A, "b": B}, {}, "MatMul dimension mismatch"),
    ("Gemm", {"a": A, "b": B}, {}, "Dimension mismatch"),
    ("Concat", {"a": A, "b": B}, {"axis": 0}, "mismatched dimensions of 5 and 4"),
    ("TopK", {"a": A, "i": ints(9)}, {}, "k argument [9]"),
    ("TopK", {"a": A, "i": ints(-9)}, {}, "must not be negative"),
    ("Split", {"a": A, "i": ints(1, 5)}, {}, "Split size 5"),
    ("Unsqueeze", {"a": A, "i": ints(9)}, {}, "axis 9 is not in valid range"),
    ("ReduceSum", {"a": A, "i": ints(7)}, {}, "axis 7 is not in valid range"),
    ("ConstantOfShape", {"i": ints(-7)}, {}, "shape.Size() must"),
    ("Conv", {"a": floats(1, 3, 4, 4), "b": floats(2, 4, 1, 1)}, {}, "kernel channels: 4"),
    (
        "MaxPool",
        {"a": floats(1, 3, 4, 4)},
        {"kernel_shape": [9, 9]},
        "output dimension is negative",
    ),
    ("Range", {"a": number(3), "i": number(3), "b": number(0)}, {}, "can not be zero"),
    ("Einsum", {"a": A, "b": B}, {"equation": "ij,jk->ik"}, "could not be broadcast"),
    ("LayerNormalization", {"a": A, "b": floats(5)}, {}, "scale.shape={5}"),
    ("Div", {"a": ints(1, 0), "b": ints(1, 0)}, {}, "division by zero"),
]
ANOTHERS = [("ConstantOfShape", {"i": ints(2**46)}, {})]
"""Runs that fail for want of memory: 256 TiB are more than a process can address, so that they are
not given either where the kernel promises any amount (vm.overcommit_memory = 1)."""


def failure(operator: str, inputs: dict[str, Any], attributes: dict[str, Any]) -> Exception:
    """Return the error of a run of a model with one operator, whose axes are all dynamic."""
    outputs = ["y", "z"] if operator in ("TopK", "Split") else ["y"]
    node = helper.make_node(operator, list(inputs), outputs, name="layer/1", **attributes)
    kinds = {"f": FLOAT, "i": INT}
    declared = [
        helper.make_tensor_value_info(name, kinds[value.dtype.kind], [None] * value.ndim)
        for name, value in inputs.items()
    ]
    floats_out = operator not in ("Range", "Div")
    answer = helper.make_tensor_value_info("y", FLOAT if floats_out else INT, None)
    graph = helper.make_graph([node], "g", declared, [answer])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    with pytest.raises(Exception) as caught:  # noqa: PT011 - any error of ONNX Runtime
        session.run(None, inputs)
    return caught.value


@pytest.mark.parametrize(("operator", "inputs", "attributes", "said"), FAULTS)
def test_an_operator_that_does_not_take_its_inputs_is_named(
    operator: str, inputs: dict[str, Any], attributes: dict[str, Any], said: str
) -> None:
    """The reason has the operator, the node and ONNX Runtime's words, and no path of its source."""
    text = refused_values(failure(operator, inputs, attributes))

    assert text.startswith(f"the model's {operator} (layer/1) does not take these inputs: ")
    assert said in text
    assert len(text) <= TEXT_MAX
    assert "onnxruntime" not in text


@pytest.mark.parametrize(("operator", "inputs", "attributes"), ANOTHERS)
def test_an_error_of_the_machine_is_not_the_inputs(
    operator: str, inputs: dict[str, Any], attributes: dict[str, Any]
) -> None:
    """A failed allocation is no fault of a caller, though inputs may have caused it."""
    assert refused_values(failure(operator, inputs, attributes)) == ""


def test_other_errors_are_not_read() -> None:
    """Only ONNX Runtime's own types count: a handler may raise the same words."""
    said = str(failure("Gather", {"a": A, "i": ints(5)}, {}))

    assert refused_values(ValueError(said)) == ""
    assert refused_values(RuntimeError("CUDA failure 2: out of memory")) == ""


def test_text_that_is_no_number_is_the_callers() -> None:
    """A Cast of text names only a function of C++ ("stod"), which is enough to know the cause."""
    text = "(string[n] s) => (float[n] y) { y = Cast <to = 1> (s) }"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {text}')
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    with pytest.raises(Exception, match="stod") as caught:  # any error of ONNX Runtime
        session.run(None, {"s": np.array(["abc"], dtype=object)})

    assert refused_values(caught.value).startswith("the model's Cast")


def refused(node: str, reason: str) -> str:
    """Return what is said of an error of ONNX Runtime with these words."""
    kind = type("InvalidArgument", (Exception,), {"__module__": "onnxruntime.capi.x"})
    status = "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Non-zero status code returned while"
    said = f"{status} running Gather node. Name:'{node}' Status Message: {reason}"
    return refused_values(kind(said))


@pytest.mark.parametrize("part", ["x", "x.", "a.cc:3 x ", " was false ", "[with ", "mismatch "])
def test_long_texts_are_read_in_no_time(part: str) -> None:
    """However long a text is, and whatever repeats in it: the time is bounded, and the answer."""
    began_s = time.process_time()
    text = refused("n", part * 20_000)
    assert time.process_time() - began_s < 1
    assert len(text) <= TEXT_MAX


def test_a_nodes_name_may_have_any_characters() -> None:
    """Names are the model's; one with a quote is no reason for a 500."""
    text = refused("it's", "no index")
    assert text == "the model's Gather (it's) does not take these inputs: no index"
