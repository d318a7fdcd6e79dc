"""Types and JSON values as sorted lines of `path: type`."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Any

import msgspec

SCALARS = {bool: "bool", int: "int", float: "float", str: "str", bytes: "bytes"}
NAMES_FROM_DATA = frozenset(
    {"cpu_ms", "inputs", "labels", "latency_ms", "outputs", "phases", "phases_ms", "times_ms"}
)
"""JSON objects whose keys are data: names of phases, inputs and labels, counts of rows."""
UNINFORMATIVE = {"null", "{}", "[]"}
"""Types that are omitted where another value shows the type."""
_MADE = object()


def fields_of(path: str, kind: Any) -> Iterator[str]:
    """Yield the lines of a type; structures field by field, under their encoded names."""
    origin = typing.get_origin(kind)
    if origin is typing.Annotated:
        yield from fields_of(path, typing.get_args(kind)[0])
    elif origin in (typing.Union, types.UnionType):
        yield from _union(path, typing.get_args(kind))
    elif origin is typing.Literal:
        yield f"{path}: {' | '.join(sorted(map(repr, typing.get_args(kind))))}"
    elif origin is tuple or kind is tuple:
        yield from _tuple(path, typing.get_args(kind))
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        yield from fields_of(f"{path}.*", typing.get_args(kind)[1])
    elif isinstance(origin, type) and issubclass(origin, Iterable):
        yield from fields_of(f"{path}[]", typing.get_args(kind)[0])
    elif isinstance(kind, type) and kind not in SCALARS:
        yield from _structure(path, kind)
    else:
        yield f"{path}: {SCALARS.get(kind, 'any')}"


def _union(path: str, members: tuple[Any, ...]) -> Iterator[str]:
    rest = [one for one in members if one not in (type(None), msgspec.UnsetType)]
    plain = [one for one in rest if one in SCALARS or typing.get_origin(one) is typing.Literal]
    if len(plain) == len(rest) > 1:
        yield f"{path}?: {' | '.join(sorted(SCALARS.get(one, str(one)) for one in rest))}"
        return
    for one in rest:
        yield from fields_of(f"{path}?" if len(rest) < len(members) else path, one)


def _tuple(path: str, members: tuple[Any, ...]) -> Iterator[str]:
    if len(members) == 2 and members[1] is Ellipsis:
        yield from fields_of(f"{path}[]", members[0])
        return
    for place, one in enumerate(members):
        yield from fields_of(f"{path}.{place}", one)


def _structure(path: str, kind: Any) -> Iterator[str]:
    if issubclass(kind, Enum):
        yield f"{path}: {' | '.join(sorted(repr(one.value) for one in kind))}"
    elif typing.is_typeddict(kind):
        for name, hint in typing.get_type_hints(kind, include_extras=True).items():
            is_left_out = typing.get_origin(hint) is typing.NotRequired or not kind.__total__
            inner = typing.get_args(hint)[0] if is_left_out and kind.__total__ else hint
            yield from fields_of(f"{path}.{name}{'~' if is_left_out else ''}", inner)
    elif issubclass(kind, msgspec.Struct):
        yield from _struct(path, kind)
    elif issubclass(kind, tuple):  # msgspec writes a named tuple as an array
        hints = typing.get_type_hints(kind)
        for place, name in enumerate(kind._fields):  # type: ignore[attr-defined]
            yield from fields_of(f"{path}.{place}", hints[name])
    elif dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        for one in dataclasses.fields(kind):
            is_made = one.default_factory is not dataclasses.MISSING
            has_default = is_made or one.default is not dataclasses.MISSING
            default = one.default if has_default and not is_made else _MADE
            yield from _field(f"{path}.{one.name}", hints[one.name], has_default, default)
    else:
        yield f"{path}: any"


def _struct(path: str, kind: type[msgspec.Struct]) -> Iterator[str]:
    config, hints = kind.__struct_config__, typing.get_type_hints(kind)
    if config.tag is not None:
        yield f"{path}.{config.tag_field}: {config.tag!r}"
    for place, one in enumerate(msgspec.structs.fields(kind)):
        name = str(place) if config.array_like else one.encode_name
        is_plain = one.default not in (msgspec.NODEFAULT, msgspec.UNSET)
        default = one.default if is_plain else _MADE
        yield from _field(f"{path}.{name}", hints[one.name], not one.required, default)


def _field(path: str, kind: Any, has_default: bool, default: object) -> Iterator[str]:
    """Yield a field's lines: ~ marks a default, and a plain default is shown."""
    if not has_default:
        yield from fields_of(path, kind)
        return
    is_plain = default is None or type(default) in SCALARS
    for line in fields_of(f"{path}~", kind):
        is_own = line.partition(":")[0].rstrip("?") == f"{path}~"
        yield f"{line} = {default!r}" if is_plain and is_own else line


class JsonShape:
    """Merged shape of several JSON values: each path with every type that it had."""

    def __init__(self) -> None:
        self._types: dict[str, set[str]] = {}

    def add(self, path: str, value: Any) -> None:
        """Merge one value into the shape, below `path`."""
        if isinstance(value, dict):
            self._types.setdefault(path, set()).add("{}")
            is_data = path.rpartition(".")[2] in NAMES_FROM_DATA
            for key, inner in value.items():
                self.add(f"{path}.*" if is_data else f"{path}.{key}", inner)
        elif isinstance(value, list):
            self._types.setdefault(path, set()).add("[]")
            for inner in value:
                self.add(f"{path}[]", inner)
        else:
            self._types.setdefault(path, set()).add(_scalar(value))

    def keys(self) -> list[str]:
        """Return the paths without types, for values that may be null or empty."""
        paths = (line.partition(":")[0] for line in self.lines())
        return [re.sub(r"(\[\]|\.\*)+$", "", path) for path in paths]

    def lines(self) -> list[str]:
        """Return the sorted lines. Objects and lists have a line only if all of them were empty."""
        parents = {path.rpartition(".")[0] for path in self._types}
        parents |= {path.removesuffix("[]") for path in self._types if path.endswith("[]")}
        found = []
        for path, kinds in sorted(self._types.items()):
            shown = kinds - UNINFORMATIVE or kinds
            if path not in parents or shown - UNINFORMATIVE:
                found.append(f"{path}: {' | '.join(sorted(shown))}")
        return found


def _scalar(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    return "number" if isinstance(value, int | float) else "string"
