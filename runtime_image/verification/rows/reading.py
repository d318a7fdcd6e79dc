"""Reads a model's graph without the content of its large tensors.

protobuf cannot parse messages beyond 2 GB, and the analysis does not need weights. The file is
traversed in protobuf's wire format (protobuf.dev, "Encoding") and copied message by message. A
tensor's data is left out if it is longer than `DATA_MAX`, or `INTEGERS_MAX` for integers, which may
be shapes and indices. So are long lists in the attributes of tree ensembles. Names, types and sizes
of tensors are kept.
"""

from __future__ import annotations

import mmap
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Final

from onnx import ModelProto, TensorProto

from runtime_image.contract.wire_runs import last_of_run

DATA_MAX: Final = 4096
INTEGERS_MAX: Final = 2**20
"""Max bytes. Gather's indices for a whole feature map are some hundred kB."""
KEPT_MAX: Final = 256 * 2**20
"""Max bytes of a graph without its large data; far above the largest known."""
FIELDS_MAX: Final = 5_000_000
DEPTH_MAX: Final = 60

_VARINT, _I64, _LEN, _I32 = 0, 1, 2, 5
_VARINT_BYTES: Final = 10

_CHILDREN: Final[dict[str, dict[int, str]]] = {
    "model": {7: "graph", 25: "function"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
}
"""Message -> field number -> nested message, from onnx.proto; other fields are copied."""
_DROPPED: Final[dict[str, frozenset[int]]] = {
    "model": frozenset({14, 20}),
    "graph": frozenset({10, 13, 14}),
    "node": frozenset({6}),
    "attribute": frozenset({13}),
}
"""Fields for metadata, training, value_info and documentation: the analysis does not use them."""
_DATA: Final = frozenset({4, 5, 6, 7, 9, 10, 11})
"""Fields of a tensor that hold its elements."""
_OP_TYPE, _OP_TYPE_MAX = 4, 100
_LISTS: Final = frozenset({7, 8, 9})
"""Fields of an attribute with floats, integers and texts."""
_TREES: Final = frozenset({b"TreeEnsemble", b"TreeEnsembleClassifier", b"TreeEnsembleRegressor"})
"""Operators whose attributes may have an element for each of millions of nodes, of which the
analysis reads none."""
_TYPE: Final = 2
_INTEGERS: Final = frozenset({TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL})


class Unreadable(ValueError):
    """The bytes are not an ONNX model, or exceed the limits."""


def read_model(path: Path) -> ModelProto:
    """Read the model without large data. Raises Unreadable, OSError or protobuf's error."""
    if path.stat().st_size == 0:
        raise Unreadable("the file is empty")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        reduced = _Reduction(data).message("model", 0, len(data), 0)
    model = ModelProto()
    model.ParseFromString(bytes(reduced))
    if not model.HasField("graph"):
        raise Unreadable("there is no graph in it: not an ONNX model")
    return model


class _Reduction:
    """State of reading one file: counts fields and kept bytes."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._fields = 0
        self._kept = 0
        self._is_tree = False
        """Whether the innermost node that is read is a tree ensemble."""

    def message(self, kind: str, start: int, end: int, depth: int) -> bytearray:
        """Return the message in this span without dropped fields and large data."""
        if depth > DEPTH_MAX:
            raise Unreadable(f"messages are nested deeper than {DEPTH_MAX}")
        if kind == "tensor":
            return self._tensor(start, end)
        children, dropped = _CHILDREN[kind], _DROPPED.get(kind, frozenset())
        outer = self._is_tree
        if kind == "node":
            self._is_tree = self._op_type(start, end) in _TREES
        result = bytearray()
        for number, tag, first, last, wire in self._walk(start, end, children):
            if number in dropped or (kind == "attribute" and self._is_long(number, last - tag)):
                continue
            if wire == _LEN and number in children:
                part = self.message(children[number], first, last, depth + 1)
                result += _varint_bytes(number << 3 | _LEN) + _varint_bytes(len(part)) + part
            else:
                result += self._copied(tag, last)
        self._is_tree = outer
        return result

    def _op_type(self, start: int, end: int) -> bytes:
        found = b""
        for number, _, first, last, _ in self._walk(start, end, {_OP_TYPE}):
            if number == _OP_TYPE:
                found = self._data[first : min(last, first + _OP_TYPE_MAX)]
        return found

    def _is_long(self, number: int, size: int) -> bool:
        return self._is_tree and number in _LISTS and size > INTEGERS_MAX

    def _tensor(self, start: int, end: int) -> bytearray:
        fields = list(self._walk(start, end))
        integers = any(
            number == _TYPE and wire == _VARINT and self._varint(first, last)[0] in _INTEGERS
            for number, _, first, last, wire in fields
        )
        length = sum(last - tag for number, tag, _, last, _ in fields if number in _DATA)
        keeps = length <= (INTEGERS_MAX if integers else DATA_MAX)
        result = bytearray()
        for number, tag, _, last, _ in fields:
            if keeps or number not in _DATA:
                result += self._copied(tag, last)
        return result

    def _copied(self, start: int, end: int) -> bytes:
        self._kept += end - start
        if self._kept > KEPT_MAX:
            raise Unreadable(
                f"expected at most {KEPT_MAX >> 20} MiB of graph without its weights, got more"
            )
        return self._data[start:end]

    def _walk(
        self, start: int, end: int, parsed: Container[int] = ()
    ) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield field number, start of the tag, start and end of the value, and wire type. Fields
        of one tag that follow each other, unless they are `parsed`, are one with the last's value
        from the second on."""
        at = start
        before = 0
        while at < end:
            self._fields += 1
            if self._fields > FIELDS_MAX:
                raise Unreadable(f"expected at most {FIELDS_MAX} fields, got more")
            begin = at
            tag, first = self._varint(at, end)
            number, wire = tag >> 3, tag & 7
            if tag == before and (wire != _LEN or number not in parsed):
                at = last_of_run(self._data, tag, at, end)
                _, first = self._varint(at, end)
            before = tag
            if wire == _LEN:
                length, first = self._varint(first, end)
                last = first + length
            elif wire == _VARINT:
                last = self._varint(first, end)[1]
            elif wire in (_I64, _I32):
                last = first + (8 if wire == _I64 else 4)
            else:
                raise Unreadable(f"byte {at}: wire type {wire} is not used by ONNX")
            if number == 0 or last > end:
                raise Unreadable(f"byte {at}: truncated, or not protobuf")
            yield number, begin, first, last, wire
            at = last

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        value = 0
        for index in range(_VARINT_BYTES):
            if at + index >= end:
                raise Unreadable(f"byte {at}: truncated")
            byte = self._data[at + index]
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return value, at + index + 1
        raise Unreadable(f"byte {at}: a number is longer than {_VARINT_BYTES} bytes")


def _varint_bytes(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
