"""Tests of the reading of large graphs in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from registry.bundles import onnx_apart
from registry.bundles.onnx_apart import read_apart
from registry.bundles.onnx_files import FEW, OnnxContents, OnnxReader
from runtime_image.contract.wire_format import TooManyFields
from tests.support import models


def large(folder: Path, nodes: int, first: bytes = b"") -> Path:
    """Return a model whose graph has so many empty nodes behind the bytes `first`."""
    graph = first + b"\x0a\x00" * nodes
    size, left = b"", len(graph)
    while left > 127:
        size, left = size + bytes([left & 127 | 128]), left >> 7
    path = folder / "large.onnx"
    path.write_bytes(b"\x08\x08\x3a" + size + bytes([left]) + graph)
    return path


def test_a_large_graph_is_read_elsewhere(tmp_path: Path) -> None:
    """Only a file with more than a few fields starts a process, and its fields count."""
    asked: list[int] = []

    def apart(model: Path, fields_max: int) -> tuple[OnnxContents, int]:
        asked.append(fields_max)
        return read_apart(model, fields_max)

    reader = OnnxReader(3 * FEW, apart)
    assert reader.read(large(tmp_path, FEW // 2)) == OnnxContents(())
    assert asked == []
    left = reader.left
    compiled = b"\x0a\x0b\x22\x09EPContext"
    found = reader.read(large(tmp_path, FEW, compiled))

    assert (found.locations, found.compiled) == ((), "")
    assert asked == [left - FEW - 1]
    assert left - FEW - reader.left > FEW


def test_the_process_finds_the_same(tmp_path: Path) -> None:
    """Its contents are those of a reader in this process."""
    model = models.external(tmp_path, 1)
    here = OnnxReader(1000)

    contents, parsed = read_apart(model, 1000)

    assert contents == here.read(model)
    assert contents.locations
    assert parsed == 1000 - here.left


def test_a_file_beyond_a_bound_is_refused(tmp_path: Path) -> None:
    """Fields beyond the limit, and a process that ends at a bound of the kernel, are too many; what
    is no model has the reader's own text."""
    with pytest.raises(TooManyFields, match="at most 10 fields"):
        read_apart(large(tmp_path, 20), 10)
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"\x0b\x0b")
    with pytest.raises(ValueError, match="wire type 3 is not used by ONNX"):
        read_apart(broken, 10)
    with pytest.raises(TooManyFields, match=f"within {onnx_apart.CPU_S} s and 512 MiB"):
        read_apart(tmp_path / "gone.onnx", 10)
