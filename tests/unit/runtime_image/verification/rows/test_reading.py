"""Reading a graph without the contents of its large tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from runtime_image.verification.rows.reading import DATA_MAX, Unreadable, read_model

LARGE = np.ones(DATA_MAX, np.float32)
SMALL = np.ones(4, np.float32)
INDICES = np.arange(2**16)


def tensor(name: str, array: np.ndarray, typed: bool = False) -> TensorProto:
    if typed:
        return helper.make_tensor(name, TensorProto.FLOAT, array.shape, array)
    return numpy_helper.from_array(array, name)


def branch(name: str) -> onnx.GraphProto:
    node = helper.make_node("Constant", [], [f"{name}_c"], value=tensor("", LARGE))
    output = helper.make_tensor_value_info(f"{name}_c", TensorProto.FLOAT, None)
    return helper.make_graph([node], name, [], [output], [tensor(f"{name}_w", LARGE)])


def model() -> onnx.ModelProto:
    choice = helper.make_node("If", ["x"], ["y"], then_branch=branch("a"), else_branch=branch("b"))
    held = [tensor("raw", LARGE), tensor("typed", LARGE, True), tensor("small", SMALL)]
    graph = helper.make_graph([choice], "g", [], [], [*held, tensor("indices", INDICES)])
    function = helper.make_function(
        "house", "F", [], ["c"], [helper.make_node("Constant", [], ["c"], value=tensor("", LARGE))],
        [helper.make_opsetid("", 21)],
    )  # fmt: skip
    return helper.make_model(graph, functions=[function])


def test_only_the_content_of_large_tensors_is_left_out(tmp_path: Path) -> None:
    """Contents of large tensors are skipped everywhere: initialisers, branches, nodes,
    functions."""
    whole = model()
    path = tmp_path / "model.onnx"
    path.write_bytes(whole.SerializeToString())
    read = read_model(path)
    assert read.ByteSize() < 2**16 * 8 + 3000

    by_name = {tensor.name: tensor for tensor in read.graph.initializer}
    assert [*by_name] == ["raw", "typed", "small", "indices"]
    assert all(not by_name[name].raw_data for name in ("raw", "typed"))
    assert not by_name["typed"].float_data
    assert [*by_name["raw"].dims] == [DATA_MAX]
    assert numpy_helper.to_array(by_name["small"]).tolist() == SMALL.tolist()
    assert numpy_helper.to_array(by_name["indices"]).tolist() == INDICES.tolist()

    kept = read.graph.node[0].attribute[0].g
    assert kept.initializer[0].dims == [DATA_MAX]
    assert (read.graph.input, read.graph.node[0].op_type) == (whole.graph.input, "If")
    assert read.functions[0].node[0].attribute[0].t.data_type == TensorProto.FLOAT


@pytest.mark.parametrize("kind", ["ints", "floats", "strings"])
def test_only_trees_lose_long_lists(tmp_path: Path, kind: str) -> None:
    """One element for each of millions of nodes is left out; any other operator keeps its lists,
    also one with a tree in a branch."""
    some = {"ints": [1], "floats": [1.0], "strings": [b"LEAF"]}[kind]
    graph = onnx.GraphProto()
    for name in ("TreeEnsembleRegressor", "Constant", "If"):
        node = graph.node.add(op_type=name)
        inner = node.attribute.add(name="g").g
        inner.node.add(op_type="TreeEnsembleClassifier").attribute.add(name="few").ints[:] = [1, 2]
        getattr(node.attribute.add(name="many"), kind).extend(some * 2**20)
        node.attribute.add(name="last").i = 7
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx.ModelProto(graph=graph).SerializeToString())

    read = read_model(path)

    counts = [len(getattr(node.attribute[1], kind)) for node in read.graph.node]
    assert counts == [1, 2**20, 2**20]
    assert [node.attribute[2].i for node in read.graph.node] == [7, 7, 7]
    assert [*read.graph.node[0].attribute[0].g.node[0].attribute[0].ints] == [1, 2]


@pytest.mark.parametrize("kind", ["ints", "floats", "strings"])
def test_runs_of_fields_are_read_as_they_are(tmp_path: Path, kind: str) -> None:
    """Elements of every length, before and after other fields."""
    values = {
        "ints": [-1, 0, 1, 127, 128, 2**62, -(2**63)] * 1000,
        "floats": [float(n) for n in range(5000)],
        "strings": [b"x" * (n % 300) for n in range(5000)],
    }[kind]
    whole = model()
    node = whole.graph.node.add(op_type="Any")
    attribute = node.attribute.add(name="list", type=onnx.AttributeProto.INTS)
    getattr(attribute, kind).extend(values)
    node.attribute.add(name="next").i = 3
    path = tmp_path / "model.onnx"
    path.write_bytes(whole.SerializeToString())

    assert read_model(path).graph.node[1] == node


@pytest.mark.parametrize("cut", range(1, 400, 37))
def test_a_truncated_model_is_unreadable(tmp_path: Path, cut: int) -> None:
    """A truncated model is unreadable wherever it is cut, and never judged as a smaller one."""
    path = tmp_path / "model.onnx"
    path.write_bytes(model().SerializeToString()[:-cut])
    with pytest.raises(Unreadable):
        read_model(path)


def message(number: int, body: bytes) -> bytes:
    """Return a length-delimited field that holds a message; its length takes two bytes."""
    return bytes([number << 3 | 2, len(body) & 0x7F | 0x80, len(body) >> 7]) + body


def test_messages_may_not_nest_without_end(tmp_path: Path) -> None:
    """The nesting depth is bounded, because the file controls it."""
    graph = b""
    for _ in range(100):
        graph = message(1, message(5, message(6, graph)))
    path = tmp_path / "model.onnx"
    path.write_bytes(message(7, graph))
    with pytest.raises(Unreadable, match="nested deeper"):
        read_model(path)
