"""Request body of `fnctl invoke`, from its -d and -i options."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from pathlib import Path, PurePath
from typing import NoReturn

import typer

from admin.client.client import Payload
from runtime_image.contract.model import CONTENT_TYPES, JSON, OCTETS

FILE_MAX = 256 * 1024 * 1024
"""Max bytes of a file; no server can be configured to accept more."""
PICTURE = "image/*"
"""Content type of functions that take images in any format."""
_SHOWN_MAX = 60
_MEDIA = re.compile(r"[\w.+-]+/[\w.+-]+(\s*;[ -~]*)?", re.ASCII)


def payload(
    data: str | None, inputs: Sequence[str], media: str = "", takes: Collection[str] = ()
) -> Payload:
    """Return the body for -d `data` or the -i `inputs`; raises typer.BadParameter on wrong usage.

    `media` is the content type of the file of a single -i. If it is "", the type follows from
    `takes` (the content types that the function accepts) and from the file's suffix.

    -d is a JSON document, or @FILE with one, sent unchanged. A single -i with the file of a
    picture, a sound, an array or raw bytes sends the file itself. All other inputs become
    {"inputs": {...}}, with the digits of each value unchanged.
    """
    if (data is None) == (not inputs):
        _wrong("-d / -i", "expected either -d JSON or -i TENSOR=VALUE")
    media = media or _declared(inputs, takes)
    if media:
        return _as_asked(inputs, media)
    if data is not None:
        return Payload(_checked("-d", _value("-d", data)).encode(), JSON)
    named = dict(_split(item) for item in inputs)
    if len(named) != len(inputs):
        _wrong("-i", "expected each tensor once")
    raw = [name for name, value in named.items() if _is_raw(value)]
    if not raw:
        pairs = (
            f"{json.dumps(name)}: {_checked(f'-i {name}', _value(f'-i {name}', value))}"
            for name, value in named.items()
        )
        return Payload(f'{{"inputs": {{{", ".join(pairs)}}}}}'.encode(), JSON)
    if len(named) > 1:
        _wrong("-i", f"expected JSON values or .json files for several tensors; {raw[0]} is raw")
    return _raw(raw[0], Path(named[raw[0]][1:]))


def is_one_file(inputs: Sequence[str]) -> bool:
    """Return whether the -i `inputs` are a single TENSOR=@FILE."""
    return len(inputs) == 1 and inputs[0].partition("=")[2].startswith("@")


def _declared(inputs: Sequence[str], takes: Collection[str]) -> str:
    """Return the content type for the single file of `inputs` if the function's types decide it,
    whatever the file's name; "" if the suffix decides."""
    if not is_one_file(inputs):
        return ""
    by_suffix = CONTENT_TYPES.get(PurePath(inputs[0]).suffix.lower(), "")
    if PICTURE in takes:
        is_other = by_suffix in (OCTETS, "") and not inputs[0].lower().endswith(".json")
        return "image/x-unknown" if is_other else ""
    return OCTETS if OCTETS in takes else ""


def _as_asked(inputs: Sequence[str], media: str) -> Payload:
    if _MEDIA.fullmatch(media) is None:
        _wrong("--type", f"expected a content type like {OCTETS}, got {media[:_SHOWN_MAX]!r}")
    values = [_split(item)[1] for item in inputs]
    if len(values) != 1 or not values[0].startswith("@"):
        _wrong("--type", "expected one -i TENSOR=@FILE beside it")
    return Payload(_read("-i", Path(values[0][1:])), media)


def _split(item: str) -> tuple[str, str]:
    name, equals, value = item.partition("=")
    if not name or not equals:
        _wrong("-i", f"expected TENSOR=VALUE or TENSOR=@FILE, got {item[:_SHOWN_MAX]!r}")
    return name, value


def _is_raw(value: str) -> bool:
    return value.startswith("@") and Path(value).suffix.lower() != ".json"


def _raw(name: str, path: Path) -> Payload:
    media = CONTENT_TYPES.get(path.suffix.lower(), OCTETS)
    if path.suffix.lower() == ".npy":
        quoted = name.replace("\\", "\\\\").replace('"', '\\"')
        media = f'{media}; input="{quoted}"'
    return Payload(_read(f"-i {name}", path), media)


def _value(option: str, value: str) -> str:
    """Return the JSON text of a value or of the @FILE that it names."""
    if not value.startswith("@"):
        return value
    try:
        return _read(option, Path(value[1:])).decode()
    except UnicodeDecodeError as error:
        _wrong(option, f"{value[1:]}: expected JSON in UTF-8, got other bytes at {error.start}")


def _checked(option: str, text: str) -> str:
    def refuse(word: str) -> NoReturn:
        raise ValueError(f"JSON has no {word}")

    try:
        json.loads(text, parse_constant=refuse, parse_int=str, parse_float=str)
    except (ValueError, RecursionError) as error:
        hint = "; a text needs double quotes" if text[:1].isalpha() else ""
        _wrong(option, f"expected JSON, got {text[:_SHOWN_MAX]!r}: {error}{hint}")
    return text


def _read(option: str, path: Path) -> bytes:
    try:
        with path.expanduser().open("rb") as file:
            data = file.read(FILE_MAX + 1)
    except OSError as error:
        _wrong(option, f"{path}: {error.strerror}")
    if len(data) > FILE_MAX:
        _wrong(option, f"{path}: expected at most {FILE_MAX} bytes, got more")
    return data


def _wrong(option: str, text: str) -> NoReturn:
    raise typer.BadParameter(text, param_hint=option)
