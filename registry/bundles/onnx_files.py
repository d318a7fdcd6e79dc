"""Finds the external data files that an ONNX model names, and compiled parts, from its bytes alone.

A tensor may keep its data in another file and name it in `external_data`, as entry "location",
relative to the model's folder (onnx.proto, TensorProto). Only messages that can contain tensors are
parsed, in protobuf's wire format (protobuf.dev, "Encoding"). Everything else is skipped by its
length, so that a model of gigabytes costs a few page reads.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from registry.bundles.paths import FILES_MAX, check_path
from registry.errors import BadBundle, ModelRefused
from runtime_image.contract.compiled import NODE
from runtime_image.contract.wire_format import (
    FIELDS_MAX,
    BeyondLimit,
    Field,
    TooManyFields,
    WireReader,
)

LOCATIONS_MAX: Final = FILES_MAX
DEPTH_MAX: Final = 100
FEW: Final = 100_000
"""Fields that take some 0.1 s in a thread; more than most graphs have."""
LOCATION_MAX: Final = 4096

NAME_MAX: Final = 80
"""Bytes of a node's name that are shown."""

_GRAPH_OF_MODEL: Final = 7
_NODE_NAME, _OP_TYPE = 3, 4
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


class OnnxContents(NamedTuple):
    """What an ONNX file says of other files and of compiled parts."""

    locations: tuple[str, ...]
    """Locations that its tensors name, sorted and unmodified. One counts even if `data_location` is
    not EXTERNAL: repeated messages merge, so that the two may come from different places."""
    compiled: str | None = None
    """The name of a node with a compiled part, None without one."""
    nested: tuple[str, ...] = ()
    """Locations that tensors of branches and loop bodies name, sorted."""


ReadApart = Callable[[Path, int], tuple[OnnxContents, int]]
"""Returns the contents of a file, of which it parses at most so many fields, and their number."""


class OnnxReader:
    """Reader of several files, which parses at most `fields_max` fields of all together."""

    def __init__(self, fields_max: int = FIELDS_MAX, apart: ReadApart | None = None) -> None:
        """`apart` reads files with more than FEW fields, in another process."""
        self.left = fields_max
        """Fields that may still be parsed."""
        self._apart = apart

    def read(self, model: Path) -> OnnxContents:
        """Return the contents of an ONNX file.

        Raises ValueError if the bytes are not an ONNX model, TooManyFields, and OSError.
        """
        if model.stat().st_size == 0:
            raise ValueError("the file is empty")
        if self._apart is None or self.left <= FEW:
            return self._walk(model, self.left)
        try:
            return self._walk(model, FEW)
        except TooManyFields:
            contents, parsed = self._apart(model, self.left)
        self.left -= parsed
        return contents

    def _walk(self, model: Path, fields_max: int) -> OnnxContents:
        with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            reader = WireReader(data, fields_max)
            try:
                return _Walk(data, reader).contents()
            finally:
                self.left = max(0, self.left - reader.parsed)


def check_original(path: str, found: OnnxContents) -> None:
    """Raise ModelRefused if the model at bundle path `path` has a compiled part."""
    if found.compiled is not None:
        raise ModelRefused(
            f"{path}: expected a model without compiled parts, got the node {found.compiled!r}"
            " (EPContext), which holds code for one device: deploy the model that it was made of;"
            ' with engine = "auto" in [runtime] the server compiles that itself',
            detail={"path": path, "node": found.compiled},
        )


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


_Message = tuple[str, int, int, Iterator[Field]]
"""Kind, span and unread fields of a message."""


class _Walk:
    """Parser of one file, without recursion: the file determines the depth."""

    def __init__(self, data: mmap.mmap, reader: WireReader) -> None:
        self._data = data
        self._fields = reader.fields

    def contents(self) -> OnnxContents:
        found: set[str] = set()
        nested: set[str] = set()
        compiled: str | None = None
        has_graph = False
        # Iterators, not spans: what waits is as much as the depth, not as the nodes.
        path: list[_Message] = [self._message("model", 0, len(self._data))]
        while path:
            message, start, end, fields = path[-1]
            children = _CHILDREN[message]
            for number, first, last, _ in fields:
                child = children.get(number) if first else None
                if child == "entry":
                    self._entry(first, last, found if _is_outer(path) else nested)
                elif child:
                    if len(path) > DEPTH_MAX:
                        raise BeyondLimit(
                            f"expected at most {DEPTH_MAX} levels of messages, got more"
                        )
                    has_graph = has_graph or (message == "model" and number == _GRAPH_OF_MODEL)
                    path.append(self._message(child, first, last))
                    break
                elif message == "node" and number == _OP_TYPE and self._is_compiled(first, last):
                    compiled = self._name(start, end)
            else:
                path.pop()
        if not has_graph:
            raise ValueError("there is no graph in it")
        return OnnxContents(tuple(sorted(found | nested)), compiled, tuple(sorted(nested)))

    def _message(self, kind: str, start: int, end: int) -> _Message:
        wanted = {_OP_TYPE, *_CHILDREN[kind]} if kind == "node" else _CHILDREN[kind]
        return kind, start, end, self._fields(start, end, wanted)

    def _is_compiled(self, first: int, last: int) -> bool:
        # Of any domain: which ones a session takes for its own is ONNX Runtime's matter.
        return last - first == len(NODE) and self._data[first:last] == NODE

    def _name(self, start: int, end: int) -> str:
        """Return the name of the node at a span."""
        name = b""
        for number, first, last, _ in self._fields(start, end):
            if number == _NODE_NAME:
                name = self._data[first : min(last, first + NAME_MAX)]
        return name.decode("utf-8", "replace")

    def _entry(self, start: int, end: int, found: set[str]) -> None:
        key = value = b""
        for number, first, last, _ in self._fields(start, end):
            # In protobuf the last value of a repeated scalar field counts.
            if number == _KEY:
                key = self._data[first : min(last, first + LOCATION_MAX)]
            elif number == _VALUE:
                if last - first > LOCATION_MAX:
                    raise BeyondLimit(
                        f"expected locations of at most {LOCATION_MAX} bytes, got {last - first}"
                    )
                value = self._data[first:last]
        if key == b"location":
            found.add(value.decode("utf-8", "surrogateescape"))
        if len(found) > LOCATIONS_MAX:
            raise BeyondLimit(
                f"expected tensor data in at most {LOCATIONS_MAX} files, got more: write one with"
                " onnx.save(model, path, save_as_external_data=True, location='weights.bin')"
            )


def _is_outer(path: list[_Message]) -> bool:
    """Whether the innermost message belongs to the main graph itself, not to a function or to the
    graph of a branch."""
    return path[1][0] == "graph" and all(one[0] != "graph" for one in path[2:])
