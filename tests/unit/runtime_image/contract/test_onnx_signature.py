"""Inputs and outputs of ONNX files, read without the package onnx."""

from __future__ import annotations

import random
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from runtime_image.contract import dtypes
from runtime_image.contract.onnx_signature import GraphSignature, GraphTensor, graph_signature
from tests.support import models


@pytest.mark.parametrize("dtype", sorted(models.ONNX_TYPES))
def test_every_type_has_its_name(tmp_path: Path, dtype: str) -> None:
    """The names are the protocol's."""
    found = graph_signature(models.every_dtype(tmp_path, dtype))
    assert found.inputs == (GraphTensor("x", dtype, (-1, 4)),)
    assert found.outputs == (GraphTensor("y", dtype, (-1, 4)),)
    assert dtype in dtypes.ALL


def written(folder: Path, *values: onnx.ValueInfoProto) -> Path:
    """Write a model with these inputs, which need not make sense."""
    graph = helper.make_graph([], "g", list(values), [])
    path = folder / "m.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString())
    return path


def test_what_is_not_declared_is_unknown(tmp_path: Path) -> None:
    """Shapes and types that the trial finds, or that are no tensors."""
    info = helper.make_tensor_value_info
    path = written(
        tmp_path,
        info("none", TensorProto.FLOAT, None),
        info("scalar", TensorProto.FLOAT, []),
        info("named", TensorProto.FLOAT, ["n", 3, None, 0]),
        info("float8", TensorProto.FLOAT8E4M3FN, [1]),
        helper.make_tensor_sequence_value_info("sequence", TensorProto.FLOAT, None),
    )
    assert graph_signature(path) == GraphSignature(
        (
            GraphTensor("none", "FP32", None),
            GraphTensor("scalar", "FP32", ()),
            GraphTensor("named", "FP32", (-1, 3, -1, -1)),
            GraphTensor("float8", "", (1,)),
            GraphTensor("sequence", "", None),
        ),
        (),
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty"),
        (b"\x08\x07", "there is no graph in it"),
        (b"\x3a\x05", "truncated, or not protobuf"),
        (b"\x3a\x02\x5a\x09", "truncated, or not protobuf"),
        (b"\x0e", "wire type 6 is not used by ONNX"),
        (b"\x80" * 20, "a number is longer than 10 bytes"),
        (b"\x80", "byte 0: truncated"),
    ],
)
def test_other_bytes_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    """The error says where reading ended."""
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=message):
        graph_signature(path)


def test_the_fields_of_a_file_are_bounded(tmp_path: Path) -> None:
    """A hostile file ends the reading, not the memory."""
    with pytest.raises(ValueError, match="at most 5 fields"):
        graph_signature(models.add_one(tmp_path), fields_max=5)
    wide = written(tmp_path, helper.make_tensor_value_info("x", 1, [1] * 65))
    with pytest.raises(ValueError, match="at most 64 dimensions"):
        graph_signature(wide)
    long = written(tmp_path, helper.make_tensor_value_info("x" * 5000, 1, [1]))
    with pytest.raises(ValueError, match="names of at most 4096 bytes"):
        graph_signature(long)


def test_damaged_files_are_read_or_refused(tmp_path: Path) -> None:
    """Nothing but ValueError is raised, whatever byte changes."""
    whole = models.two_inputs(tmp_path).read_bytes()
    chance, path, refused = random.Random(18), tmp_path / "m.onnx", 0
    for _ in range(1000):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(data[: chance.randrange(1, len(data) + 1)])
        try:
            graph_signature(path)
        except ValueError:
            refused += 1
    assert refused > 100
