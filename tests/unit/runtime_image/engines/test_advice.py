"""Common models that cannot be served are refused with a remedy."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from runtime_image.contract.errors import LoadError
from runtime_image.engines.advice import explained
from runtime_image.engines.onnx import OnnxEngine

ROW = "float[n,4]"
OPSETS = '"" : 21, "ai.onnx.ml" : 3, "my.domain" : 1'


def refusal(folder: Path, model: onnx.ModelProto) -> str:
    path = folder / "model.onnx"
    onnx.save(model, path)
    with pytest.raises(LoadError) as caught:
        OnnxEngine(path, device_kind="cpu", threads=1)
    return str(caught.value)


def parsed(values: str, nodes: str, ir: int = 10, opsets: str = OPSETS) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f"<ir_version: {ir}, opset_import: [{opsets}]> g {values} {{ {nodes} }}"
    )


def classifier() -> onnx.ModelProto:
    """Return a classifier as converters write it by default: probabilities as a list of maps."""
    scores = helper.make_node(
        "LinearClassifier",
        ["x"],
        ["label", "scores"],
        domain="ai.onnx.ml",
        coefficients=[1.0] * 12,
        intercepts=[0.0] * 3,
        classlabels_ints=[0, 1, 2],
    )
    maps = helper.make_node(
        "ZipMap", ["scores"], ["probability"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2]
    )
    score = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    listed = helper.make_sequence_type_proto(helper.make_map_type_proto(TensorProto.INT64, score))
    graph = helper.make_graph(
        [scores, maps],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [
            helper.make_tensor_value_info("label", TensorProto.INT64, ["n"]),
            helper.make_value_info("probability", listed),
        ],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def test_the_advice_for_maps_names_zipmap(tmp_path: Path) -> None:
    """The default conversion of a classifier is refused; the error names the option to set."""
    told = refusal(tmp_path, classifier())
    assert told.startswith("output 'probability' has type seq(map(int64,tensor(float)))")
    assert "options={'zipmap': False}" in told


@pytest.mark.parametrize(
    ("onnx_type", "code", "wide"),
    [
        ("float8e4m3fn", 17, "FLOAT"),
        ("float8e5m2", 19, "FLOAT"),
        ("uint4", 21, "UINT8"),
        ("int4", 22, "INT8"),
    ],
)
def test_the_advice_for_types_without_numpy_names_cast(
    onnx_type: str, code: int, wide: str, tmp_path: Path
) -> None:
    """The error names the tensor and the type to cast to."""
    taken = refusal(tmp_path, parsed(f"({onnx_type}[n] x) => (float[n] y)", "y = Cast<to=1>(x)"))
    assert taken.startswith(f"input 'x' has type tensor({onnx_type})")
    assert taken.endswith(f"declare the input as {wide} and Cast it inside the graph")

    nodes = f"y = Cast<to={code}>(x)"
    given = refusal(tmp_path, parsed(f"(float[n] x) => ({onnx_type}[n] y)", nodes))
    assert given.startswith(f"output 'y' has type tensor({onnx_type})")
    assert given.endswith(f"let the graph end with a Cast to {wide}")


def test_the_advice_for_a_newer_ir_version_names_the_older(tmp_path: Path) -> None:
    """The error names the newest supported IR version, and a model stamped with it loads."""
    model = parsed(f"({ROW} x) => ({ROW} y)", "y = Identity(x)", ir=99)
    told = refusal(tmp_path, model)
    assert told.startswith(f"the model has IR version 99, ONNX Runtime {ort.__version__} reads up")

    model.ir_version = int(told.partition("m.ir_version = ")[2].partition(";")[0])
    onnx.save(model, tmp_path / "model.onnx")
    engine = OnnxEngine(tmp_path / "model.onnx", device_kind="cpu", threads=1)
    assert engine.run({"x": np.zeros((1, 4), np.float32)}, engine.ticket())["y"].shape == (1, 4)


@pytest.mark.parametrize(
    ("model", "remedy"),
    [
        (
            parsed(f"({ROW} x) => ({ROW} y)", "y = Identity(x)", opsets='"" : 99'),
            "export it with opset_version=",
        ),
        (
            parsed(
                "(string[n] x) => (string[n] y)",
                'y = StringNormalizer<case_change_action = "LOWER", locale = "xx_XX.UTF-8">(x)',
            ),
            "set the node's attribute locale to 'C.UTF-8'",
        ),
        (
            parsed(f"({ROW} x) => ({ROW} y)", "y = my.domain.Mine(x)"),
            "the operator Mine of domain my.domain",
        ),
    ],
)
def test_other_known_causes_have_a_remedy(
    model: onnx.ModelProto, remedy: str, tmp_path: Path
) -> None:
    """The message contains neither a path of the engine's sources nor a C++ signature."""
    told = refusal(tmp_path, model)
    assert remedy in told
    assert "onnxruntime_src" not in told


def test_an_unknown_reason_is_passed_on() -> None:
    """An unknown reason is passed on in the engine's words."""
    assert explained("something new", "1.0") == "something new"
