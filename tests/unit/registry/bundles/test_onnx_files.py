"""Tests of the external data files that an ONNX model names."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from registry.bundles.foreign_formats import not_onnx
from registry.bundles.onnx_files import (
    OnnxReader,
    check_external,
    check_original,
    external_paths,
)
from registry.errors import BadBundle, ModelRefused
from runtime_image.contract.wire_format import BeyondLimit, TooManyFields
from tests.support import models


def tensor(location: str, key: str = "location") -> TensorProto:
    """Return a tensor with external data."""
    made = TensorProto(name="w", dims=[1], data_type=TensorProto.FLOAT)
    made.data_location = TensorProto.EXTERNAL
    made.external_data.add(key=key, value=location)
    return made


def graph(name: str = "g", *initializers: TensorProto) -> onnx.GraphProto:
    return helper.make_graph([], name, [], [], list(initializers))


def write(folder: Path, model: onnx.ModelProto) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def external_locations(path: Path, **bounds: int) -> tuple[str, ...]:
    """Return the locations that a model file names."""
    return OnnxReader(**bounds).read(path).locations


def test_a_saved_model(tmp_path: Path) -> None:
    """The external file of a model saved by onnx is found."""
    assert external_locations(models.external(tmp_path, 1)) == ("external.bin",)


def test_a_model_in_one_file(tmp_path: Path) -> None:
    """A model with embedded weights names no file, also with a loop body."""
    assert external_locations(models.big(tmp_path, 1)) == ()
    assert external_locations(models.slow(tmp_path)) == ()


def test_every_place_a_tensor_can_be(tmp_path: Path) -> None:
    """Tensors in graphs, attributes, sparse tensors, functions and training info are all found."""
    inner = helper.make_node("If", [], [], then_branch=graph("then", tensor("branch")))
    many = helper.make_node("X", [], [])
    many.attribute.add(name="list", type=onnx.AttributeProto.TENSORS).tensors.append(tensor("list"))
    loops = many.attribute.add(name="graphs", type=onnx.AttributeProto.GRAPHS)
    loops.graphs.append(graph("more", tensor("graphs")))
    one = many.attribute.add(name="sparse", type=onnx.AttributeProto.SPARSE_TENSOR)
    one.sparse_tensor.values.CopyFrom(tensor("sparse-values"))
    some = many.attribute.add(name="sparses", type=onnx.AttributeProto.SPARSE_TENSORS)
    some.sparse_tensors.add().indices.CopyFrom(tensor("sparse-indices"))
    whole = graph("main", tensor("initializer"))
    constant = helper.make_node("Constant", [], ["c"], value=tensor("constant"))
    whole.node.extend([constant, inner, many])
    whole.sparse_initializer.add().values.CopyFrom(tensor("sparse-initializer"))
    model = helper.make_model(whole)
    function = model.functions.add(name="f", domain="d")
    function.node.append(helper.make_node("Constant", [], ["c"], value=tensor("function")))
    function.attribute_proto.append(helper.make_attribute("a", tensor("function-default")))
    model.training_info.add().algorithm.CopyFrom(graph("train", tensor("training")))

    assert external_locations(write(tmp_path, model)) == (
        "branch",
        "constant",
        "function",
        "function-default",
        "graphs",
        "initializer",
        "list",
        "sparse-indices",
        "sparse-initializer",
        "sparse-values",
        "training",
    )


def test_locations_outside_the_main_graph(tmp_path: Path) -> None:
    """`nested` are those of branches and functions: their files must have no other name."""
    whole = graph("main", tensor("outer"), tensor("both"))
    inner = graph("then", tensor("branch"), tensor("both"))
    whole.node.append(helper.make_node("If", ["c"], ["y"], then_branch=inner))
    whole.node.append(helper.make_node("Constant", [], ["c"], value=tensor("constant")))
    model = helper.make_model(whole)
    function = model.functions.add(name="f", domain="d")
    function.node.append(helper.make_node("Constant", [], ["c"], value=tensor("function")))

    found = OnnxReader().read(write(tmp_path, model))

    assert found.nested == ("both", "branch", "function")
    assert found.locations == ("both", "branch", "constant", "function", "outer")


def test_a_location_without_its_flag_counts(tmp_path: Path) -> None:
    """A location counts although the tensor is not marked EXTERNAL, because merging could set the
    mark."""
    half = tensor("side.bin")
    half.ClearField("data_location")

    assert external_locations(write(tmp_path, helper.make_model(graph("g", half)))) == ("side.bin",)


def test_other_entries_are_no_locations(tmp_path: Path) -> None:
    """Offset, length and checksum are not files; each file is listed once."""
    both = [tensor("1", "offset"), tensor("a.bin"), tensor("a.bin")]

    assert external_locations(write(tmp_path, helper.make_model(graph("g", *both)))) == ("a.bin",)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"\x08\x07", "no graph"),
        (b"this is a text, not a model", "truncated|wire type"),
        (b"\x3a\x05\x08", "truncated"),
        (b"\x3a", "truncated"),
        (b"\x3a\x80", "truncated"),
        (b"\x3a" + b"\xff" * 10 + b"\x01", "longer than 10 bytes"),
        (b"\x0b", "wire type 3"),
        (b"\x00\x01", "truncated, or not protobuf"),
        (b"\x3a\x02\x0a\x7f", "truncated"),
        (b"\x09\x01", "truncated"),
    ],
)
def test_invalid_models(tmp_path: Path, data: bytes, reason: str) -> None:
    """Bytes that are not a model raise ValueError with the reason."""
    path = tmp_path / "model.onnx"
    path.write_bytes(data)

    with pytest.raises(ValueError, match=reason):
        external_locations(path)


def test_a_truncated_model(tmp_path: Path) -> None:
    """A truncated model file is refused."""
    with pytest.raises(ValueError, match="truncated"):
        external_locations(models.corrupt(tmp_path))


def test_depth_is_bounded(tmp_path: Path) -> None:
    """Deeply nested graphs are refused without exhausting the stack."""
    nested = b""
    for _ in range(60):
        for tag in (b"\x32", b"\x2a", b"\x0a"):
            length = len(nested)
            size = bytes([length]) if length < 128 else bytes([length & 127 | 128, length >> 7])
            nested = tag + size + nested
    path = tmp_path / "model.onnx"
    length = len(nested)
    path.write_bytes(b"\x3a" + bytes([length & 127 | 128, length >> 7]) + nested)

    with pytest.raises(ValueError, match="at most 100 levels"):
        external_locations(path)


def test_locations_are_bounded(tmp_path: Path) -> None:
    """More files than a bundle may have, or an overlong name, are refused."""
    many = [tensor(f"f{n}") for n in range(5001)]
    with pytest.raises(BeyondLimit, match=r"at most 5000 files, got more: .* onnx\.save"):
        external_locations(write(tmp_path, helper.make_model(graph("g", *many))))
    with pytest.raises(ValueError, match="at most 4096 bytes, got 5000"):
        external_locations(write(tmp_path, helper.make_model(graph("g", tensor("x" * 5000)))))


def test_fields_are_bounded(tmp_path: Path) -> None:
    """A file of very many tiny fields is refused."""
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x08\x07\x10\x07" * 51)

    with pytest.raises(TooManyFields, match="at most 100 fields"):
        external_locations(path, fields_max=100)


RUNS = {
    "ints": np.arange(-3, 10_000),
    "floats": np.linspace(0, 1, 10_000),
    "strings": [b"x" * (n % 300) for n in range(10_000)],
}


@pytest.mark.parametrize("kind", RUNS)
def test_elements_of_one_field_count_as_one(tmp_path: Path, kind: str) -> None:
    """Converters of tree ensembles write a field for each element. What follows them is read."""
    trees = onnx.NodeProto(op_type="TreeEnsembleRegressor")
    values = RUNS[kind] if kind == "strings" else RUNS[kind].tolist()
    getattr(trees.attribute.add(name="nodes"), kind).extend(values)
    trees.attribute.add(name="t").t.CopyFrom(tensor("behind.bin"))
    whole = graph("g")
    whole.node.append(trees)
    path = write(tmp_path, helper.make_model(whole))
    most = 50 if kind != "strings" else 6000  # only short ones are passed over together

    assert external_locations(path, fields_max=most) == ("behind.bin",)


def test_a_limit_is_no_other_format(tmp_path: Path) -> None:
    """A file beyond a limit is not called "not an ONNX model"."""
    path = write(tmp_path, helper.make_model(graph("g")))

    said = not_onnx("m.onnx", BeyondLimit("expected at most 5 fields, got more"), path)

    assert said == "m.onnx is beyond a limit: expected at most 5 fields, got more"


def test_locations_are_relative_to_the_model() -> None:
    """A location is relative to the model file, also in a sub-folder."""
    assert external_paths("model.onnx", ["w.bin", "./v.bin"]) == ("w.bin", "v.bin")
    assert external_paths("a/model.onnx", ["b/w.bin"]) == ("a/b/w.bin",)


@pytest.mark.parametrize(
    "location", ["../w.bin", "/etc/passwd", "a/../../w.bin", "", "*/_ORT_MEM_ADDR_/*", "a\\b"]
)
def test_locations_outside_are_refused(location: str) -> None:
    """A location outside the folder, or in memory, is refused even if a file matches."""
    with pytest.raises(BadBundle, match="keeps tensor data"):
        check_external("model.onnx", [location], [location, "w.bin"])


def test_locations_must_be_in_the_bundle() -> None:
    """External data that is not in the bundle is refused by its path."""
    check_external("a/m.onnx", ["w.bin"], ["a/m.onnx", "a/w.bin"])
    with pytest.raises(BadBundle, match=r"'a/w\.bin', which is not in the bundle"):
        check_external("a/m.onnx", ["w.bin"], ["a/m.onnx", "w.bin"])


def _in_graph(model: onnx.ModelProto, node: onnx.NodeProto) -> None:
    model.graph.node.append(node)


def _in_branch(model: onnx.ModelProto, node: onnx.NodeProto) -> None:
    inner = helper.make_graph([node], "then", [], [])
    outer = helper.make_graph([helper.make_node("Loop", [], [], body=inner)], "outer", [], [])
    model.graph.node.append(helper.make_node("If", [], [], then_branch=outer))


def _in_function(model: onnx.ModelProto, node: onnx.NodeProto) -> None:
    model.functions.add(name="f", domain="d").node.append(node)


def _in_training(model: onnx.ModelProto, node: onnx.NodeProto) -> None:
    model.training_info.add().algorithm.node.append(node)


@pytest.mark.parametrize("place", [_in_graph, _in_branch, _in_function, _in_training])
@pytest.mark.parametrize("domain", ["com.microsoft", "", "Com.Microsoft"])
def test_a_compiled_part_is_found_wherever_a_node_can_be(
    tmp_path: Path, place: Callable[[onnx.ModelProto, onnx.NodeProto], None], domain: str
) -> None:
    """Its node is named, in any graph or function and of any domain, and the model is refused."""
    model = helper.make_model(graph())
    place(model, models.compiled_node("the engine", domain))

    found = OnnxReader().read(write(tmp_path, model))

    assert found.compiled == "the engine"
    with pytest.raises(ModelRefused, match=r"^a/m\.onnx: expected .* got the node 'the engine'"):
        check_original("a/m.onnx", found)


def test_a_compiled_part_may_have_no_name(tmp_path: Path) -> None:
    """A node without a name, or with two types, is found; an ordinary model has none."""
    model = helper.make_model(graph())
    model.graph.node.append(onnx.NodeProto(op_type="EPContext"))
    path = write(tmp_path, model)
    assert OnnxReader().read(path).compiled == ""
    path.write_bytes(path.read_bytes().replace(b"EPContext", b"EPContexT"))
    assert OnnxReader().read(path).compiled is None
    # In protobuf the last value of a repeated field counts, so both are looked at.
    node = onnx.NodeProto(op_type="EPContext").SerializeToString() + b"\x22\x03Add"
    whole = b"\x0a" + bytes([len(node)]) + node
    path.write_bytes(b"\x3a" + bytes([len(whole)]) + whole)
    assert OnnxReader().read(path).compiled == ""


def test_a_tag_that_others_cut_is_refused(tmp_path: Path) -> None:
    """ONNX Runtime cuts a tag of five bytes to 32 bits, and so reads a graph where a field of
    another number stands: such a file is refused, as what is hidden in it would be opened."""
    inner = graph("g", tensor("../secret")).SerializeToString()
    path = tmp_path / "model.onnx"
    for last, is_cut in ((b"\x00", False), (b"\x70", True)):
        tag = b"\xba\x80\x80\x80" + last
        path.write_bytes(b"\x3a\x00" + tag + bytes([len(inner)]) + inner)
        if is_cut:
            with pytest.raises(ValueError, match="more than 32 bits"):
                external_locations(path)
        else:
            assert external_locations(path) == ("../secret",)


def test_fields_of_several_files_are_bounded_together(tmp_path: Path) -> None:
    """A reader parses no more fields of all its files than of one."""
    path = write(tmp_path, helper.make_model(graph("g", tensor("w"))))
    reader = OnnxReader(fields_max=100)
    read = 0
    with pytest.raises(TooManyFields):  # noqa: PT012 - which of them fails depends on their size
        while read < 100:
            reader.read(path)
            read += 1
    assert read > 1


def test_many_nodes_take_no_memory(tmp_path: Path) -> None:
    """What waits to be read grows with the depth of a file, not with its nodes."""
    nodes = 100_000 * b"\x0a\x00"
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x3a\xc0\x9a\x0c" + nodes)
    tracemalloc.start()
    try:
        assert external_locations(path) == ()
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
