"""Finds the external data files that an ONNX model names, from its bytes alone.

A tensor may keep its data in another file and name it in `external_data`, as entry "location",
relative to the model's folder (onnx.proto, TensorProto). Only messages that can contain tensors are
parsed, in protobuf's wire format (protobuf.dev, "Encoding"). Everything else is skipped by its
length, so that a model of gigabytes costs a few page reads.
"""

from __future__ import annotations

import mmap
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

from registry.bundles.paths import check_path
from registry.bundles.wire_format import FIELDS_MAX, Field, WireReader
from registry.errors import BadBundle

LOCATIONS_MAX: Final = 1000
DEPTH_MAX: Final = 100
LOCATION_MAX: Final = 4096

_GRAPH_OF_MODEL: Final = 7
_KEY, _VALUE = 1, 2

_CHILDREN: Final[dict[str, dict[int, str]]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}
"""Message -> field number -> nested message, from onnx.proto; all other fields are skipped."""


def external_locations(model: Path, fields_max: int = FIELDS_MAX) -> tuple[str, ...]:
    """Return the locations that the tensors of an ONNX file name, sorted and unmodified.

    A tensor with a location counts even if `data_location` is not EXTERNAL: repeated messages
    merge, so that the two may come from different places. Raises ValueError if the bytes are not an
    ONNX model or have more than `fields_max` fields, and OSError.
    """
    if model.stat().st_size == 0:
        raise ValueError("the file is empty")
    with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _Walk(data, fields_max).locations()


def external_paths(model: str, locations: Iterable[str]) -> tuple[str, ...]:
    """Return the bundle paths of `locations` for the model at bundle path `model`.

    Raises BadBundle on a location outside the model's folder or one that is not a plain path.
    """
    folder, slash, _ = model.rpartition("/")
    return tuple(f"{folder}{slash}{_plain(model, location)}" for location in locations)


def check_external(model: str, locations: Iterable[str], files: Collection[str]) -> None:
    """Raise BadBundle unless every location of `model` is one of the bundle paths `files`."""
    for path in external_paths(model, locations):
        if path not in files:
            raise BadBundle(
                f"{model!r} keeps tensor data in {path!r}, which is not in the bundle",
                detail={"path": path, "rule": "is named by the model but not in the bundle"},
            )


def _plain(model: str, location: str) -> str:
    # ONNX Runtime marks data in its own memory by locations with stars, and would use the offset
    # of such a tensor as an address.
    if "*" in location:
        raise BadBundle(
            f"{model!r} keeps tensor data in {location[:120]!r}: expected a plain file name",
            detail={"path": location[:120], "rule": "has a star"},
        )
    try:
        return check_path(location.removeprefix("./"))
    except BadBundle as error:
        raise BadBundle(
            f"{model!r} keeps tensor data outside its folder: {error.message}", detail=error.detail
        ) from error


class _Walk:
    """Parser of one file, without recursion: the file determines the depth."""

    def __init__(self, data: mmap.mmap, fields_max: int) -> None:
        self._data = data
        self._fields = WireReader(data, fields_max).fields

    def locations(self) -> tuple[str, ...]:
        found: set[str] = set()
        has_graph = False
        pending = [("model", 0, len(self._data), 0)]
        while pending:
            message, start, end, depth = pending.pop()
            if message == "entry":
                self._entry(start, end, found)
                continue
            if depth > DEPTH_MAX:
                raise ValueError(f"messages are nested deeper than {DEPTH_MAX}")
            children = _CHILDREN[message]
            for number, first, last, _ in self._messages(start, end, children):
                has_graph = has_graph or (message == "model" and number == _GRAPH_OF_MODEL)
                pending.append((children[number], first, last, depth + 1))
        if not has_graph:
            raise ValueError("there is no graph in it")
        return tuple(sorted(found))

    def _messages(self, start: int, end: int, children: dict[int, str]) -> Iterator[Field]:
        for field in self._fields(start, end):
            if field[0] in children and field[1]:
                yield field

    def _entry(self, start: int, end: int, found: set[str]) -> None:
        key = value = b""
        for number, first, last, _ in self._fields(start, end):
            # In protobuf the last value of a repeated scalar field counts.
            if number == _KEY:
                key = self._data[first : min(last, first + LOCATION_MAX)]
            elif number == _VALUE:
                if last - first > LOCATION_MAX:
                    raise ValueError(f"a location is longer than {LOCATION_MAX} bytes")
                value = self._data[first:last]
        if key == b"location":
            found.add(value.decode("utf-8", "surrogateescape"))
        if len(found) > LOCATIONS_MAX:
            raise ValueError(f"tensor data lies in more than {LOCATIONS_MAX} files")
