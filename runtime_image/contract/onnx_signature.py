"""Inputs and outputs that an ONNX file declares, read without the package onnx and without weights.

For checks before an upload: a trial finds the same later, from the session. An engine reads here
whether a shape is declared at all. Source: onnx.proto.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from runtime_image.contract import dtypes
from runtime_image.contract.signature import DYNAMIC
from runtime_image.contract.wire_format import FIELDS_MAX, BeyondLimit, WireReader

TENSORS_MAX: Final = 100_000
"""Max inputs, outputs and initializers, whose names are kept."""
RANK_MAX: Final = 64
NAME_MAX: Final = 4096

_GRAPH = 7
_INITIALIZER, _INPUT, _OUTPUT = 5, 11, 12
_TENSOR_NAME = 8
_NAME, _TYPE = 1, 2
_TENSOR_TYPE = 1
_ELEMENT, _SHAPE = 1, 2
_DIMENSION = 1
_DIMENSION_VALUE = 1
_ELEMENTS: Final = {
    1: "FP32",
    2: "UINT8",
    3: "INT8",
    4: "UINT16",
    5: "INT16",
    6: "INT32",
    7: "INT64",
    8: dtypes.BYTES,
    9: "BOOL",
    10: "FP16",
    11: "FP64",
    12: "UINT32",
    13: "UINT64",
    16: "BF16",
}
"""TensorProto.DataType to the Open Inference Protocol's names."""


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """One input or output. `dtype` is "" for a type that the protocol has no name for, `shape` is
    None if the file does not declare one; in it, -1 is a dynamic dimension."""

    name: str
    dtype: str
    shape: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class GraphSignature:
    """Inputs that a caller must give, without those that have a default, and outputs."""

    inputs: tuple[GraphTensor, ...]
    outputs: tuple[GraphTensor, ...]


def graph_signature(model: Path, fields_max: int = FIELDS_MAX) -> GraphSignature:
    """Return what an ONNX file declares. Raises ValueError for other bytes, and OSError. Blocking;
    skips the weights."""
    with graph_reader(model, fields_max) as reader:
        return reader.signature()


def unshaped(model: Path) -> frozenset[str] | None:
    """Return the names of the inputs and outputs without a declared shape, None if the file cannot
    be read. Blocking; skips nodes and weights."""
    try:
        with graph_reader(model) as reader:
            found = [
                reader.tensor(first, last)
                for graph in reader.parts(0, reader.size, _GRAPH)
                for number, first, last, _ in reader.fields(*graph)
                if number in (_INPUT, _OUTPUT)
            ]
    except (OSError, ValueError):
        return None
    return frozenset(one.name for one in found if one.shape is None)


@contextmanager
def graph_reader(model: Path, fields_max: int = FIELDS_MAX) -> Iterator[GraphReader]:
    """Open a file. Raises ValueError for an empty one, and OSError."""
    if model.stat().st_size == 0:
        raise ValueError("the file is empty")
    with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        yield GraphReader(data, fields_max)


class GraphReader:
    """Reader of the messages of one file; `fields_max` bounds its time. Raises as `WireReader`."""

    def __init__(self, data: mmap.mmap, fields_max: int) -> None:
        self._data = data
        self.size = len(data)
        """Bytes of the file."""
        self.fields = WireReader(data, fields_max).fields

    def signature(self) -> GraphSignature:
        """Return what the file declares."""
        found: dict[int, list[GraphTensor]] = {_INPUT: [], _OUTPUT: []}
        defaults: set[str] = set()
        has_graph = False
        for graph in self.parts(0, self.size, _GRAPH):
            has_graph = True
            for number, first, last, _ in self.fields(*graph):
                if number in found:
                    found[number].append(self.tensor(first, last))
                elif number == _INITIALIZER:
                    defaults.update(self.texts(first, last, _TENSOR_NAME))
                if len(defaults) > TENSORS_MAX or len(found.get(number, ())) > TENSORS_MAX:
                    raise BeyondLimit(f"expected at most {TENSORS_MAX} tensors, got more")
        if not has_graph:
            raise ValueError("there is no graph in it")
        inputs = tuple(one for one in found[_INPUT] if one.name not in defaults)
        return GraphSignature(inputs, tuple(found[_OUTPUT]))

    def tensor(self, start: int, end: int) -> GraphTensor:
        """Return the input or output (ValueInfoProto) at a span."""
        element, shape = 0, None
        for type_at in self.parts(start, end, _TYPE):
            for tensor_at in self.parts(*type_at, _TENSOR_TYPE):
                for number, first, last, value in self.fields(*tensor_at):
                    if number == _ELEMENT:
                        element = value
                    elif number == _SHAPE:
                        shape = self._shape(first, last)
        names = self.texts(start, end, _NAME) or [""]
        return GraphTensor(names[-1], _ELEMENTS.get(element, ""), shape)

    def _shape(self, start: int, end: int) -> tuple[int, ...]:
        sizes = []
        for first, last in self.parts(start, end, _DIMENSION):
            size = DYNAMIC
            for number, _, _, value in self.fields(first, last):
                # 0 is what some exporters write for an unknown size; negative ones are varints of
                # 64 bits.
                if number == _DIMENSION_VALUE and 0 < value < 2**63:
                    size = value
            sizes.append(size)
            if len(sizes) > RANK_MAX:
                raise BeyondLimit(f"expected at most {RANK_MAX} dimensions, got more")
        return tuple(sizes)

    def texts(self, start: int, end: int, field: int) -> list[str]:
        """Return the texts of a message's fields of one number."""
        return [self.text(*part) for part in self.parts(start, end, field)]

    def text(self, first: int, last: int) -> str:
        """Return the text at a span."""
        if last - first > NAME_MAX:
            raise BeyondLimit(f"expected names of at most {NAME_MAX} bytes, got {last - first}")
        return self._data[first:last].decode("utf-8", "replace")

    def parts(self, start: int, end: int, field: int) -> Iterator[tuple[int, int]]:
        """Yield the spans of a message's length-delimited fields of one number."""
        for number, first, last, _ in self.fields(start, end):
            # 0 for fields of other types. An empty message counts: it is an unknown dimension.
            if number == field and first:
                yield first, last
