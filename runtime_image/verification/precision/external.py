"""Reads the external data of a model into it.

The package onnx refuses files with several hard links, which those of a model folder are.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableSequence
from pathlib import Path
from typing import Any, NamedTuple

import onnx
from onnx import TensorProto


class Span(NamedTuple):
    """Bytes of a file that are a tensor's data."""

    path: Path
    offset: int
    length: int


def external(model: onnx.ModelProto, folder: Path) -> Iterator[tuple[TensorProto, Span]]:
    """Yield all tensors, also those of branches, loop bodies and functions, whose data lies in
    files of `folder`, with the declared spans. Raises ValueError for a malformed one, and
    OSError."""
    waiting: list[Any] = [model]  # messages
    while waiting:
        message = waiting.pop()
        if isinstance(message, TensorProto):
            if message.data_location == TensorProto.EXTERNAL:
                yield message, _span(message, folder)
            continue
        for field, value in message.ListFields():
            if field.message_type is not None:
                waiting += value if isinstance(value, MutableSequence) else [value]


def load_external(model: onnx.ModelProto, folder: Path) -> None:
    """Give the tensors of `external` their data. Raises the same, also for data beyond a file."""
    for tensor, span in list(external(model, folder)):
        size = span.path.stat().st_size
        if span.offset + span.length > size:
            raise ValueError(
                f"tensor {tensor.name}: expected data within the {size} bytes of {span.path.name},"
                f" got {span.length} bytes from {span.offset} on"
            )
        with span.path.open("rb") as file:
            file.seek(span.offset)
            tensor.raw_data = file.read(span.length)
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]


def _span(tensor: TensorProto, folder: Path) -> Span:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    path = folder / entries.get("location", "")
    offset = int(entries.get("offset") or 0)
    declared = entries.get("length")
    length = int(declared) if declared else max(0, path.stat().st_size - offset)
    if offset < 0 or length < 0:
        raise ValueError(f"tensor {tensor.name}: expected no negative span, got {offset}, {length}")
    return Span(path, offset, length)
