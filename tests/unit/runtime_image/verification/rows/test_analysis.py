"""Verdicts on whole models: assumptions about inputs, and refusals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from runtime_image.contract.rows import CONSTANT
from runtime_image.verification.rows.analysis import analyse

LEAK = """minus = Constant <value_ints = [-1]> () width = Shape <start = 1, end = 2> (b)
flat = Concat <axis = 0> (minus, width) r = Reshape (a, flat) s = Softmax (r)
whole = Shape (a) y = Reshape (s, whole)"""


def parsed(inputs: str, body: str, more: str = "", output: str = "float y") -> onnx.ModelProto:
    """Return a model of these inputs and nodes."""
    text = f"""<ir_version: 10, opset_import: ["" : 21, "house" : 1]>
    g ({inputs}) => ({output}) {{ {body} }} {more}"""
    model = onnx.parser.parse_model(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


@pytest.mark.parametrize(
    ("inputs", "groups"),
    [
        ("float[n,s] a, float[n,s] b", (("a", 1), ("b", 1))),
        ("float[n,s] a, float[n,s] b, float[n,t] c, float[n,t] d", (("a", 1), ("b", 1))),
        ("float[n,s] a, float[m,s] b", (("a", 1), ("b", 1))),
        ("float[n,s] a, float[n,t] b", ()),
        ("float[n,n] a, float[n,n] b", ()),
        ("float[n,s] a, float[s,s] b", ()),
    ],
)
def test_equal_axes_are_reported_as_conditions(
    inputs: str, groups: tuple[tuple[str, int], ...]
) -> None:
    """Equal names prove nothing, and the batch's name never counts. Equalities that do not matter
    are omitted."""
    verdict = analyse(parsed(inputs, LEAK))
    assert verdict.analysed
    assert verdict.proven == bool(groups)
    assert verdict.equal_axes == ((groups,) if groups else ())


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        ("float[1,s] x", "has a fixed first axis of 1 rows"),
        ("float x", "has no axes"),
        ("float[] x", "declares no shape"),
        ("seq(float[n]) x", "is not a tensor"),
        ("", "the model has no inputs"),
    ],
)
def test_inputs_without_rows_are_refused(inputs: str, why: str) -> None:
    """A model without row inputs gets a verdict, not an error: it serves one request at a time."""
    body = "y = Identity (x)" if inputs else "y = Constant <value_float = 1.0> ()"
    verdict = analyse(parsed(inputs, body))
    assert (verdict.analysed, verdict.proven) == (True, False)
    assert why in verdict.reason


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("y = Identity (x)", "it has its rows on axis 1"),
        ("y = Constant <value_float = 1.0> ()", "it has no axis of rows"),
        ("y = Shape (x)", "it depends on the number of rows"),
    ],
)
def test_outputs_must_be_rows(body: str, why: str) -> None:
    """An output that cannot be split by rows cannot be shared by requests."""
    turned = "t = Transpose (x) y = Identity (t)" if "axis 1" in why else body
    verdict = analyse(parsed("float[n,4] x", turned))
    assert not verdict.proven
    assert why in verdict.reason


def twice() -> onnx.ModelProto:
    """Return a model with two initialisers of one name; ONNX Runtime uses the last."""
    model = parsed("float[n,4] x", "y = ReduceSum (x, axes)")
    for axis in (1, 0):
        array = numpy_helper.from_array(np.array([axis]), "axes")
        model.graph.initializer.append(array)
    return model


def two_versions() -> onnx.ModelProto:
    """Return a model with two opset versions, in which Softmax differs."""
    model = parsed("float[n,3,4] x", "y = Softmax <axis = 1> (x)")
    model.opset_import.append(helper.make_opsetid("ai.onnx", 11))
    return model


def renamed_operator() -> onnx.ModelProto:
    """Return a model with a function called Relu."""
    body = [helper.make_node("Softmax", ["x"], ["y"], axis=0)]
    opsets = [helper.make_opsetid("", 21)]
    model = parsed("float[n,4] x", "y = Relu (x)")
    model.functions.append(helper.make_function("", "Relu", ["x"], ["y"], body, opsets))
    return model


def unsorted() -> onnx.ModelProto:
    """Return a model whose first node reads the second node's output."""
    return parsed("float[n,4] x", "y = Relu (t) t = Neg (x)")


@pytest.mark.parametrize("build", [twice, two_versions, renamed_operator, unsorted])
def test_ambiguous_models_are_not_analysed(
    build: Callable[[], onnx.ModelProto],
) -> None:
    """An ambiguous model is not analysed: one of its readings may mix rows."""
    verdict = analyse(build())
    assert (verdict.analysed, verdict.proven) == (False, False)
    assert verdict.reason


def test_a_size_that_alone_fits_is_taken() -> None:
    """An axis traced as the constant 12 becomes a condition: requests of other lengths are not
    joined."""
    body = """shape = Constant <value_ints = [0, 12, 2, 2]> () r = Reshape (x, shape)
    s = Softmax (r) flat = Constant <value_ints = [-1, 48]> () y = Reshape (s, flat)"""
    verdict = analyse(parsed("float[n,s,4] x", body))
    assert verdict.proven
    assert verdict.equal_axes == ((("x", 1), (CONSTANT, 12)),)
    unused = "w = Shape (r) y = Identity (x) z = Cast <to = 1> (w)"
    head = "shape = Constant <value_ints = [0, 12, 2, 2]> () r = Reshape (x, shape)"
    assert analyse(parsed("float[n,s,4] x", f"{head} {unused}")).proven


def test_a_size_that_an_engine_makes_fit_is_a_condition() -> None:
    """ONNX Runtime runs this Reshape to [N, 2] as [-1, 2]: 2 rows of 3 elements become 3 rows, and
    the middle one holds parts of both."""
    body = """all = Shape (x) zero = Constant <value_ints = [0]> () n = Gather (all, zero)
    two = Constant <value_ints = [2]> () target = Concat <axis = 0> (n, two)
    pairs = Reshape (x, target) s = Softmax (pairs) y = Reshape (s, all)"""
    model = parsed("float[n,s] x", body)
    assert analyse(model).equal_axes == ((("x", 1), (CONSTANT, 2)),)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    with_zeros, with_ones = (
        session.run(None, {"x": np.array([[0, 0, 0], [other] * 3], np.float32)})[0]
        for other in (0, 1)
    )
    assert not np.array_equal(with_zeros[0], with_ones[0]), "no condition would be needed"


def test_a_size_that_is_only_read_fixes_nothing() -> None:
    """A constant size that is only read proves nothing: engines read it without running the Reshape
    that would fail."""
    body = """shape = Constant <value_ints = [0, 12]> () r = Reshape (x, shape)
    width = Shape <start = 1> (r) minus = Constant <value_ints = [-1]> ()
    flat = Concat <axis = 0> (minus, width) a = Reshape (x, flat) s = Softmax (a)
    whole = Shape (x) y = Reshape (s, whole)"""
    assert not analyse(parsed("float[n,s] x", body)).proven


def test_a_malformed_model_raises_nothing() -> None:
    """No content that protobuf accepts makes the analysis raise."""
    assert not analyse(onnx.ModelProto()).proven
    node = helper.make_node("Reshape", ["x"], ["y"], axis="a", perm=[1.5])
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])
    graph = helper.make_graph([node, onnx.NodeProto()], "g", [value], [output])
    assert not analyse(helper.make_model(graph)).proven
