"""Request body of `fnctl invoke`, from its -d and -i options."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any, Final, NamedTuple, NoReturn

import typer

from admin.client.client import Payload
from admin.text import plain
from runtime_image.contract.dtypes import BYTES
from runtime_image.contract.model import CONTENT_TYPES, JSON, OCTETS
from runtime_image.contract.proposals import did_you_mean, nearest
from runtime_image.contract.signature import TensorSpec, from_json

FILE_MAX = 256 * 1024 * 1024
"""Max bytes of a file; no server can be configured to accept more."""
PICTURE = "image/*"
"""Content type of functions that take images in any format."""
SHOWN_MAX = 60
"""Max characters of a value that an error repeats."""
_MEDIA = re.compile(r"[\w.+-]+/[\w.+-]+(\s*;[ -~]*)?", re.ASCII)


class Taken(NamedTuple):
    """What a function takes: content types, and tensors by name. Both are empty if it is not known,
    or if the function takes any."""

    types: Sequence[str] = ()
    tensors: Mapping[str, TensorSpec] = {}

    @classmethod
    def read(cls, description: Mapping[str, Any]) -> Taken:
        """Return what a description of a function says."""
        types = description.get("content_types") or ()
        try:
            signature = from_json(description["signature"])
        except (AttributeError, KeyError, TypeError, ValueError):
            return cls(types)
        is_known = signature.kind == "tensors"
        return cls(types, {one.name: one for one in signature.inputs} if is_known else {})


_ANY: Final = Taken()


def payload(
    data: str | None, inputs: Sequence[str], media: str = "", taken: Taken = _ANY
) -> Payload:
    """Return the body for -d `data` or the -i `inputs`; raises typer.BadParameter on wrong usage.

    `media` is the content type of the file of a single -i. If it is "", the type follows from
    `taken` and from the file's suffix.

    -d is a JSON document, or @FILE with one, sent unchanged. A single -i with the file of a
    picture, a sound, an array or raw bytes sends the file itself. All other inputs become
    {"inputs": {...}}, with the digits of each value unchanged.
    """
    if (data is None) == (not inputs):
        wrong("-d / -i", "expected either -d JSON or -i NAME=VALUE")
    named = dict(split_input(item) for item in inputs)
    if len(named) != len(inputs):
        wrong("-i", "expected each tensor once")
    _check_names(named, taken.tensors)
    media = media or _declared(inputs, taken.types)
    if media:
        return _as_asked(inputs, media)
    if data is not None:
        text = _checked("-d", _value("-d", data), lambda: _file_hint("-d ", data))
        return Payload(text.encode(), JSON)
    raw = [name for name, value in named.items() if _is_raw(value)]
    if not raw:
        pairs = (
            f"{json.dumps(name)}: {_input(name, value, taken.tensors.get(name))}"
            for name, value in named.items()
        )
        return Payload(f'{{"inputs": {{{", ".join(pairs)}}}}}'.encode(), JSON)
    if len(named) > 1:
        wrong("-i", f"expected JSON values or .json files for several tensors; {raw[0]} is raw")
    return _raw(raw[0], Path(named[raw[0]][1:]))


def _check_names(names: Iterable[str], tensors: Mapping[str, TensorSpec]) -> None:
    """Refuse what is no input of the function. A file is sent without the name, so the server could
    not."""
    for name in names:
        if tensors and name not in tensors:
            wrong(
                "-i",
                f"expected an input of the function: {', '.join(tensors)}; got"
                f" {name[:SHOWN_MAX]!r}{did_you_mean(nearest(name, tensors, 1))}",
            )


def _input(name: str, value: str, spec: TensorSpec | None) -> str:
    """Return the JSON text of an input's value."""

    def hint() -> str:
        return _file_hint(f"-i {name}=", value) or _value_hint(name, value, spec)

    return _checked(f"-i {name}", _value(f"-i {name}", value), hint)


def _file_hint(option: str, value: str) -> str:
    """Return the end of the error for a value that is no JSON but looks like a file, else ""."""
    is_file = PurePath(value).suffix.lower() in (*CONTENT_TYPES, ".bin")
    with suppress(OSError, ValueError):  # too long for a path, or none
        is_file |= Path(value).is_file()
    return f"; did you mean {option}@{value[:SHOWN_MAX]}?" if is_file else ""


def _value_hint(name: str, value: str, spec: TensorSpec | None) -> str:
    """Return the end of the error for a value that is no JSON: what the input takes."""
    if spec is not None and spec.dtype != BYTES:
        takes = f"{spec.dtype} {spec.shape_text}"
        return f"; {name} takes {takes}, as numbers in JSON or as a file: -i {name}=@FILE"
    axes = len(spec.shape or ()) if spec is not None else 0
    text = "[" * axes + json.dumps(value[:SHOWN_MAX], ensure_ascii=False) + "]" * axes
    return f"; a text needs double quotes: -i {shlex.quote(f'{name}={text}')}"


def _is_one_file(inputs: Sequence[str]) -> bool:
    return len(inputs) == 1 and inputs[0].partition("=")[2].startswith("@")


def _declared(inputs: Sequence[str], takes: Collection[str]) -> str:
    """Return the content type for the single file of `inputs` if the function's types decide it,
    whatever the file's name; "" if the suffix decides."""
    if not _is_one_file(inputs):
        return ""
    by_suffix = CONTENT_TYPES.get(PurePath(inputs[0]).suffix.lower(), "")
    if PICTURE in takes:
        is_other = by_suffix in (OCTETS, "") and not inputs[0].lower().endswith(".json")
        return "image/x-unknown" if is_other else ""
    return OCTETS if OCTETS in takes else ""


def _as_asked(inputs: Sequence[str], media: str) -> Payload:
    if _MEDIA.fullmatch(media) is None:
        wrong("--type", f"expected a content type like {OCTETS}, got {media[:SHOWN_MAX]!r}")
    values = [split_input(item)[1] for item in inputs]
    if len(values) != 1 or not values[0].startswith("@"):
        wrong("--type", "expected one -i TENSOR=@FILE beside it")
    return Payload(read_file("-i", Path(values[0][1:])), media)


def split_input(item: str) -> tuple[str, str]:
    """Return name and value of an -i option. Raises typer.BadParameter."""
    name, equals, value = item.partition("=")
    if not name or not equals:
        wrong("-i", f"expected NAME=VALUE or NAME=@FILE, got {item[:SHOWN_MAX]!r}")
    return name, value


def _is_raw(value: str) -> bool:
    return value.startswith("@") and Path(value).suffix.lower() != ".json"


def _raw(name: str, path: Path) -> Payload:
    media = CONTENT_TYPES.get(path.suffix.lower(), OCTETS)
    if path.suffix.lower() == ".npy":
        quoted = name.replace("\\", "\\\\").replace('"', '\\"')
        media = f'{media}; input="{quoted}"'
    return Payload(read_file(f"-i {name}", path), media)


def _value(option: str, value: str) -> str:
    """Return the JSON text of a value or of the @FILE that it names."""
    if not value.startswith("@"):
        return value
    try:
        return read_file(option, Path(value[1:])).decode()
    except UnicodeDecodeError as error:
        wrong(option, f"{value[1:]}: expected JSON in UTF-8, got other bytes at {error.start}")


def _checked(option: str, text: str, hint: Callable[[], str]) -> str:
    """Return `text`, which must be JSON; `hint` returns the end of the error if it is not."""

    try:
        _parse(text)
    except (ValueError, RecursionError) as error:
        wrong(option, f"expected JSON, got {text[:SHOWN_MAX]!r}: {error}{hint()}")
    return text


def is_json(text: str) -> bool:
    """Return whether a text is JSON."""
    try:
        _parse(text)
    except (ValueError, RecursionError):
        return False
    return True


def _parse(text: str) -> None:
    def refuse(word: str) -> NoReturn:
        raise ValueError(f"JSON has no {word}")

    json.loads(text, parse_constant=refuse, parse_int=str, parse_float=str)


def read_file(option: str, path: Path) -> bytes:
    """Return a file's bytes. Raises typer.BadParameter."""
    try:
        with path.expanduser().open("rb") as file:
            data = file.read(FILE_MAX + 1)
    except OSError as error:
        wrong(option, f"{path}: {error.strerror}")
    if len(data) > FILE_MAX:
        wrong(option, f"{path}: expected at most {FILE_MAX} bytes, got more")
    return data


def wrong(option: str, text: str) -> NoReturn:
    """Raise typer.BadParameter for an option."""
    raise wrong_value(option, text)


def wrong_value(option: str, text: str) -> typer.BadParameter:
    """Return the error for an option; names in it may be a stranger's."""
    return typer.BadParameter(plain(text), param_hint=plain(option))
