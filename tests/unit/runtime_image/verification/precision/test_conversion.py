"""Candidates made by ONNX Runtime's tools, in this process."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import set_external_data

from runtime_image.contract.model import ModelSpec
from runtime_image.contract.precision import CandidateName, Optimisation
from runtime_image.engines.onnx import OnnxEngine
from runtime_image.verification.child import verdict_of
from runtime_image.verification.precision.conversion import BYTES_MAX, make
from runtime_image.verification.precision.external import load_external
from runtime_image.verification.precision.order import NotConverted, Order

CANDIDATES: Final[tuple[CandidateName, ...]] = ("fp16", "int8", "int8-dynamic")
NODES: Final = "h = MatMul(x, w) r = Relu(h) y = MatMul(r, v)"
VALUES: Final = "(float[n,8] x) => (float[n,4] y)"
RANDOM: Final = np.random.default_rng(0)
W, V = (RANDOM.normal(size=shape).astype(np.float32) for shape in ((8, 64), (64, 4)))
X: Final[npt.NDArray[np.float32]] = RANDOM.normal(size=(96, 8)).astype(np.float32)


def graph(text: str = f"g {VALUES} {{ {NODES} }}", opset: int = 21) -> onnx.ModelProto:
    """Return a model in ONNX's text form, with the weights of a small network."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> {text}')
    model.graph.initializer.extend(
        [numpy_helper.from_array(W, "w"), numpy_helper.from_array(V, "v")]
    )
    return model


def order(folder: Path, name: CandidateName, model: onnx.ModelProto | None = None) -> Order:
    """Return the order for a model, which is saved with samples unless it is there already."""
    if model is not None:
        onnx.save(model, folder / "model.onnx")
    np.savez(folder / "samples.npz", x=X)
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    spec = ModelSpec("f@1", model="model.onnx", optimise=Optimisation("auto", 0.01, "samples.npz"))
    target = folder / "made" / "model.onnx"
    paths = (str(folder), str(scratch), str(folder / "model.onnx"), str(target))
    return Order("make", name, spec, *paths)


def outputs(path: str) -> Any:
    engine = OnnxEngine(Path(path), device_kind="cpu", threads=1)
    return engine.run({"x": X}, engine.ticket())["y"]


def operators(path: str) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path).graph.node)


@pytest.mark.parametrize("name", CANDIDATES)
def test_a_candidate_is_one_file_with_the_same_inputs_and_outputs(
    tmp_path: Path, name: CandidateName
) -> None:
    """Weights are inside, callers notice nothing, and the answers are nearly the same."""
    given = order(tmp_path, name, graph())

    assert make(given) == ""

    assert [path.name for path in Path(given.target).parent.iterdir()] == ["model.onnx"]
    before, after = (
        OnnxEngine(Path(path), device_kind="cpu", threads=1).signature
        for path in (given.model, given.target)
    )
    assert before.inputs == after.inputs
    assert [(one.name, one.dtype) for one in after.outputs] == [("y", "FP32")]
    wanted, got = outputs(given.model), outputs(given.target)
    cosine = np.sum(wanted * got) / np.linalg.norm(wanted) / np.linalg.norm(got)
    assert cosine > 0.98
    assert not np.array_equal(wanted, got)


@pytest.mark.parametrize("name", CANDIDATES)
def test_weights_in_files_with_other_names_are_read(tmp_path: Path, name: CandidateName) -> None:
    """Files of a model folder are hard links; the candidate is that of the model in one file."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir()
    one, other = order(inside, name, graph()), order(outside, name)
    outer = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0}
    onnx.save(graph(), outside / "model.onnx", **outer)
    os.link(outside / "w.bin", tmp_path / "blob")

    assert make(one) == make(other) == ""

    assert np.array_equal(outputs(one.target), outputs(other.target))


def test_weights_of_branches_and_functions_are_read(tmp_path: Path) -> None:
    """External data is found in every message that has a tensor."""
    weight = numpy_helper.from_array(W, "w")
    (tmp_path / "w.bin").write_bytes(b"....." + weight.raw_data)
    set_external_data(weight, "w.bin", offset=5)
    weight.ClearField("raw_data")
    constant = helper.make_node("Constant", [], ["w"], value=weight)
    model = onnx.ModelProto()
    model.functions.add(name="f").node.append(constant)
    branch = helper.make_graph([constant], "b", [], [], [weight])
    model.graph.node.append(helper.make_node("If", ["c"], ["y"], then_branch=branch))

    load_external(model, tmp_path)

    branch = model.graph.node[0].attribute[0].g
    of_nodes = [one.attribute[0].t for one in (model.functions[0].node[0], branch.node[0])]
    for tensor in (*of_nodes, branch.initializer[0]):
        assert np.array_equal(numpy_helper.to_array(tensor), W)
        assert not tensor.external_data


@pytest.mark.parametrize("span", [(-1, 4), (4, -1), (0, 9), (9, 1), (2**62, 4)])
def test_data_beyond_its_file_is_refused(tmp_path: Path, span: tuple[int, int]) -> None:
    """No other byte is read, and no buffer of a claimed size is made."""
    (tmp_path / "w.bin").write_bytes(b"12345678")
    model = graph()
    weight = model.graph.initializer[0]
    set_external_data(weight, "w.bin", *span)

    with pytest.raises(ValueError, match=r"within the 8 bytes of w\.bin, got|no negative span"):
        load_external(model, tmp_path)


def test_static_int8_is_symmetric_and_signed(tmp_path: Path) -> None:
    """Every pair of nodes around an operator has a scale and the zero point 0, in INT8: this is
    what TensorRT takes, too."""
    given = order(tmp_path, "int8", graph())
    make(given)

    model = onnx.load(given.target)
    points = {node.input[2] for node in model.graph.node if node.op_type == "QuantizeLinear"}
    zeros = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    assert points
    assert {zeros[point].dtype for point in points} == {np.dtype(np.int8)}
    assert not any(zeros[point].any() for point in points)
    assert verdict_of(Path(given.target)).proven


def test_dynamic_int8_mixes_rows(tmp_path: Path) -> None:
    """Its scales depend on all rows of a run; the analysis finds that."""
    given = order(tmp_path, "int8-dynamic", graph())
    make(given)

    verdict = verdict_of(Path(given.target))
    assert operators(given.target)["MatMulInteger"] == 2
    assert (verdict.proven, verdict.operator) == (False, "DynamicQuantizeLinear")


def test_fp16_is_sorted(tmp_path: Path) -> None:
    """The tool adds casts at the end of the list of nodes; the analysis walks them in order."""
    given = order(tmp_path, "fp16", graph())
    make(given)

    assert operators(given.target)["Cast"] == 2
    assert verdict_of(Path(given.target)).proven


@pytest.mark.parametrize("name", CANDIDATES)
def test_weights_beside_the_model_are_taken_in(tmp_path: Path, name: CandidateName) -> None:
    """The original may have its weights in a file of its own."""
    onnx.save(
        graph(),
        tmp_path / "model.onnx",
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    given = order(tmp_path, name)

    make(given)

    (tmp_path / "weights.bin").unlink()
    assert outputs(given.target).shape == (96, 4)


FUNCTIONS = """<ir_version: 10, opset_import: ["" : 21, "local" : 1]>
g (float[n,8] x) => (float[n,64] y) { y = local.f(x, w) }
<domain: "local", opset_import: ["" : 21]> f (p, q) => (o) { h = MatMul(p, q) o = Relu(h) }"""


@pytest.mark.parametrize("name", CANDIDATES)
def test_functions_of_a_model_are_converted_too(tmp_path: Path, name: CandidateName) -> None:
    """The tools would leave them out, and FP16 would then not even load."""
    model = onnx.parser.parse_model(FUNCTIONS)
    model.graph.initializer.append(numpy_helper.from_array(W, "w"))
    given = order(tmp_path, name, model)

    make(given)

    assert operators(given.target)["f"] == 0
    assert outputs(given.target).shape == (96, 64)


def claims(model: onnx.ModelProto, size: int) -> onnx.ModelProto:
    """Let a weight claim to have `size` bytes in another file."""
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "weights.bin"), ("length", str(size))):
        entry = weight.external_data.add()
        entry.key, entry.value = key, value
    return model


def retyped(dtype: int) -> onnx.ModelProto:
    """Return the model with weights of another type."""
    model = graph()
    for weight in model.graph.initializer:
        weight.CopyFrom(helper.make_tensor(weight.name, dtype, [1, 1], [1.0]))
    return model


def test_unconvertible_models_are_named(tmp_path: Path) -> None:
    """Each reason is a sentence for the table."""
    cases = {
        f"over the limit {BYTES_MAX}": claims(graph(), BYTES_MAX),
        "has weights in BF16": retyped(TensorProto.BFLOAT16),
        "has no FP32 weights": retyped(TensorProto.DOUBLE),
    }
    for reason, model in cases.items():
        for name in CANDIDATES:
            with pytest.raises(NotConverted, match=reason):
                make(order(tmp_path, name, model))
    quantised = order(tmp_path, "int8", graph())
    make(quantised)
    with pytest.raises(NotConverted, match="the model is quantised already"):
        make(replace(quantised, name="fp16", model=quantised.target))
    nothing = graph("g (float[n,64] x) => (float[n,64] y) { s = ReduceSum(w) y = Sub(x, s) }")
    with pytest.raises(NotConverted, match="no operator that can be quantised"):
        make(order(tmp_path, "int8-dynamic", nothing))


FACTORS = "g (float[n,8] x) => (float[n,8] y) { s = Mul(x, k) y = Div(s, k) }"
BRANCH = "g (float[n,8] x) => (float[n,8] y) { t = Sub(x, k) u = Relu(t) y = Add(x, u) }"
LOOP = """g (float[n,8] x) => (float[n,8] y) { c = Constant<value = bool {1}>()
    y = If(c)<then_branch = t () => (float[n,8] a) {
        k = Constant<value = float {1e5}>() a = Mul(x, k) },
    else_branch = e () => (float[n,8] b) { b = Identity(x) }> }"""
WEIGHTS = "g (float[n,8] x) => (float[n,8] y) { y = Gemm(x, k) }"
BIAS = "g (float[n,8] x) => (float[n,8] y) { y = Gemm(x, q, k) }"
EPSILON = "g (float[n,8] x) => (float[n,8] y) { s = Add(x, k) y = MatMul(s, q) }"


@pytest.mark.parametrize(
    ("text", "value", "reason"),
    [
        (BRANCH, 1e5, "constant k has the size 1e+05, FP16 ends at 65504"),
        (BRANCH, -1e9, "constant k has the size 1e+09, FP16 ends at 65504"),
        (LOOP, 1.0, "constant k has the size 1e+05, FP16 ends at 65504"),
        (WEIGHTS, 1e-9 * np.eye(8), "constant k has sizes from 1e-09 to 1e-09, in FP16 they would"),
        (FACTORS, 1e-9, "constant k has sizes from 1e-09 to 1e-09, in FP16 they would be off by"),
        (FACTORS, [1e-7] * 8, "constant k has sizes from 1e-07 to 1e-07, in FP16 they would be"),
    ],
)
def test_constants_that_fp16_cannot_hold_are_named(
    tmp_path: Path, text: str, value: Any, reason: str
) -> None:
    """Whatever the samples show: the tool clamps them, and a branch may hide it."""
    with pytest.raises(NotConverted, match=f"^{re.escape(reason)}"):
        make(order(tmp_path, "fp16", constant(text, value)))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (BRANCH, 65504.0),
        (BRANCH, 3.4028235e38),
        (BRANCH, float("inf")),
        (BRANCH, float("nan")),
        (EPSILON, 1e-12),
        (BIAS, [1e-9] * 8),
        (FACTORS, 1e-3),
        (FACTORS, [1.0] * 7 + [1e-12]),
        (FACTORS, [0.0] * 8),
        ("g (float[n,8] x) => (float[n,8] y) { y = Max(x, k) }", 1e5),
    ],
)
def test_constants_that_lose_nothing_are_taken(tmp_path: Path, text: str, value: Any) -> None:
    """The largest numbers stand for infinity, an epsilon beside larger numbers and a dead weight
    beside others are nothing in FP16, and some operators stay in FP32."""
    assert make(order(tmp_path, "fp16", constant(text, value))) == ""


def constant(text: str, value: Any) -> onnx.ModelProto:
    """Return a model with the constant `k` and the weights `q`."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
    weights = {"k": np.asarray(value, np.float32), "q": np.eye(8, dtype=np.float32)}
    for name, array in weights.items():
        if not (name == "k" and "If" in text):
            model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def test_old_models_are_brought_to_an_opset_that_the_tools_know(tmp_path: Path) -> None:
    """Scales with an axis exist from opset 13 on. A model that cannot be converted is named."""
    for name in ("int8", "int8-dynamic"):
        given = order(tmp_path, name, graph(opset=11))
        make(given)
        assert onnx.load(given.target).opset_import[0].version >= 13
    broken = graph(opset=7)
    broken.ir_version = 3  # the converter then expects weights among the inputs
    with pytest.raises(NotConverted, match="has opset 7, quantisation needs 13, and"):
        make(order(tmp_path, "int8", broken))


@pytest.mark.filterwarnings("ignore:All-NaN axis encountered:RuntimeWarning")
def test_samples_without_a_range_are_named(tmp_path: Path) -> None:
    """The tool would say "scale issue"."""
    given = order(tmp_path, "int8", graph())
    samples = X.copy()
    samples[:, 3] = np.nan
    np.savez(tmp_path / "samples.npz", x=samples)

    with pytest.raises(
        NotConverted, match=r"^tensor \w has values from nan to nan with the calibr"
    ):
        make(given)
