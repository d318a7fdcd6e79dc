"""Samples from `model_warmup`: what a deploy's trial runs, as JSON values."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from admin.cli.bundle_files import open_file
from admin.cli.repository.config import ModelConfig, WarmupInput
from admin.cli.repository.fields import Findings
from registry.bundles.paths import check_path
from registry.errors import BadBundle
from runtime_image.contract import dtypes

FOLDER: Final = "warmup"
"""Folder of `input_data_file`s in a model's folder."""
ITEMS_MAX: Final = 10_000
"""Max items of an input: a sample is JSON in a function.toml."""
_FORMATS: Final = {
    "BOOL": "?",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
}
_INSTEAD: Final = "the trial runs zeros instead"


def sample(folder: Path, config: ModelConfig, names: Sequence[str], findings: Findings) -> Any:
    """Return the values by input of the sample in a model's folder; {} for zeros, which the trial
    makes by itself. `names` are the model's inputs."""
    warmup = config.warmup
    if warmup is None:
        return {}
    missing = [name for name in names if name not in {one.name for one in warmup.inputs}]
    if missing:
        text = f"expected all inputs, {missing[0]!r} is missing; {_INSTEAD}"
        findings.ignore(warmup.line, "model_warmup.inputs", text)
        return {}
    found = {}
    for one in warmup.inputs:
        rows = (warmup.rows,) if config.has_rows else ()
        try:
            found[one.name] = _value(folder, one, rows)
        except ValueError as error:
            path = f"model_warmup.inputs.{one.name}"
            findings.ignore(one.line, path, f"{error}; {_INSTEAD}")
            return {}
    return found


def _value(folder: Path, one: WarmupInput, rows: tuple[int, ...]) -> Any:
    """Return one input's value as nested lists. Raises ValueError."""
    if not one.dtype:
        raise ValueError("expected a data_type, got none")
    if any(size < 1 for size in one.dims):
        raise ValueError(f"expected dims of 1 and more, got {list(one.dims)}")
    count = math.prod(one.dims)
    if count * math.prod(rows) > ITEMS_MAX:
        raise ValueError(f"expected at most {ITEMS_MAX} items, got {count * math.prod(rows)}")
    if one.source.startswith("@"):
        items = _from_file(folder, one, count)
    else:
        make = _maker(one)
        items = [make() for _ in range(count)]
    return _nested(iter(items * math.prod(rows)), (*rows, *one.dims))


def _maker(one: WarmupInput) -> Callable[[], Any]:
    """Return the function that makes an item. Random ones are the same in every run, so that a
    deploy of an unchanged folder changes nothing."""
    if one.dtype == dtypes.BYTES:
        return lambda: ""  # as in Triton, also for random_data
    is_float = one.dtype in dtypes.FLOATS
    if one.source == "zero":
        zero = False if one.dtype == "BOOL" else 0.0 if is_float else 0
        return lambda: zero
    chance = random.Random(one.name)  # noqa: S311 - a sample, no secret
    if is_float:
        return lambda: round(chance.random(), 3)
    if one.dtype == "BOOL":
        return lambda: chance.random() < 0.5
    return lambda: chance.randrange(2)  # any model takes 0 and 1, also as an index


def _from_file(folder: Path, one: WarmupInput, count: int) -> list[Any]:
    name = one.source[1:]
    most = ITEMS_MAX * 8 + 1
    try:
        with open_file(folder, check_path(f"{FOLDER}/{name}")) as file:
            data = file.read(most)
    except BadBundle as error:
        raise ValueError(error.message) from error
    if one.dtype == dtypes.BYTES:
        return list(_texts(data, count))
    code = _FORMATS.get(one.dtype)
    if code is None:
        raise ValueError(f"values of {one.dtype} have no JSON form")
    size = struct.calcsize(f"<{count}{code}")
    if len(data) != size:
        got = f"{len(data)}" if len(data) < most else "more"
        raise ValueError(f"{FOLDER}/{name}: expected {size} bytes, got {got}")
    items = list(struct.unpack(f"<{count}{code}", data))
    if any(isinstance(item, float) and not math.isfinite(item) for item in items):
        raise ValueError(f"{FOLDER}/{name}: NaN and infinities have no JSON form")
    return items


def _texts(data: bytes, count: int) -> Iterator[str]:
    """Yield strings, each after its length in 4 bytes."""
    at = 0
    for _ in range(count):
        if at + 4 > len(data):
            raise ValueError(f"expected {count} strings, the file ends before")
        (length,) = struct.unpack_from("<I", data, at)
        piece = data[at + 4 : at + 4 + length]
        at += 4 + length
        if len(piece) != length:
            raise ValueError(f"expected a string of {length} bytes, the file ends before")
        try:
            yield piece.decode()
        except UnicodeDecodeError:
            raise ValueError("a string that is not UTF-8 has no JSON form") from None
    if at != len(data):
        raise ValueError(f"expected {count} strings, there are more bytes")


def _nested(items: Iterator[Any], shape: Sequence[int]) -> Any:
    if not shape:
        return next(items)
    return [_nested(items, shape[1:]) for _ in range(shape[0])]
