"""Named inputs against their signature, before anything is allocated for them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final, Literal

from runtime_image.contract import dtypes
from runtime_image.contract.errors import BAD_INPUT, RequestError, bad_input
from runtime_image.contract.signature import DYNAMIC, Signature, TensorSpec

Encoding = Literal["binary", "json", "image", "audio", "bytes", "object"]
TEXT_MAX: Final = 80
"""Characters of client text that an error repeats."""
_LENGTH: Final = Struct("<I")


@dataclass(slots=True)
class RawInput:
    """One checked input whose numbers are not decoded yet.

    `payload` by `encoding`: "binary" a view of little-endian row-major elements; "json" a list,
    nested or flat, or one element for rank 0; "image" and "audio" a view of the encoded file;
    "bytes" a view of the body; "object" any Python value. `dtype` is the signature's and `shape`
    that of the tensor; both are empty for "object", and `shape` also for "image" and "audio",
    whose size only decoding tells.
    """

    encoding: Encoding
    dtype: str
    shape: tuple[int, ...]
    payload: Any


def shorten(text: str) -> str:
    """`text` cut to TEXT_MAX characters, so that an error stays readable."""
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 3] + "..."


def describe(spec: TensorSpec) -> str:
    """The spec as errors write it: FP32 of shape [-1, 3]."""
    return f"{spec.dtype} of shape {list(spec.shape)}"


def bad_body(expected: str, got: str) -> RequestError:
    """A complaint about the body as a whole, where no input can be named."""
    return RequestError(
        BAD_INPUT, f"body: expected {expected}, got {got}", expected=expected, got=got
    )


def check_names(names: Iterable[str], signature: Signature) -> None:
    """Raise BAD_INPUT for an unknown, repeated or missing input, or one of dtype BF16.

    NumPy has no BF16 of its own, so no replica could decode it.
    """
    wanted = {spec.name: spec for spec in signature.inputs}
    seen: set[str] = set()
    for name in names:
        if name not in wanted:
            known = ", ".join(wanted) or "no input at all"
            raise bad_input(shorten(name), f"one of: {known}", "an unknown name")
        if name in seen:
            raise bad_input(name, "to be given once", "two values")
        seen.add(name)
    for name, spec in wanted.items():
        if name not in seen:
            raise bad_input(name, describe(spec), "nothing: this input is missing")
        if spec.dtype == "BF16":
            raise bad_input(name, "a dtype that can be decoded here", "BF16, as the model declares")


def check_shape(spec: TensorSpec, shape: tuple[int, ...]) -> None:
    """Raise BAD_INPUT where a tensor of `shape` does not fit `spec`."""
    if not spec.accepts(shape):
        raise bad_input(spec.name, describe(spec), f"shape {shorten(str(list(shape)))}")


def check_rows(inputs: dict[str, RawInput], signature: Signature) -> None:
    """Raise BAD_INPUT where inputs with a dynamic first axis differ in rows."""
    if len(inputs) < 2:
        return
    first: tuple[str, int] | None = None
    for spec in signature.inputs:
        if not spec.shape or spec.shape[0] != DYNAMIC:
            continue
        rows = inputs[spec.name].shape[0]
        if first is None:
            first = (spec.name, rows)
        elif rows != first[1]:
            raise bad_input(spec.name, f"{first[1]} rows like input {first[0]!r}", f"{rows} rows")


def from_binary(spec: TensorSpec, dtype: str, shape: tuple[int, ...], data: memoryview) -> RawInput:
    """Raw elements as an input; raises BAD_INPUT where dtype, shape, length or content is wrong.

    Integers of any size multiply exactly, so a huge shape meets the length check and no memory.
    Elements of dtype BYTES are UTF-8 text here, as tensor(string) is; they come decoded, flat.
    """
    if dtype != spec.dtype:
        raise bad_input(spec.name, describe(spec), f"dtype {shorten(dtype)}")
    check_shape(spec, shape)
    count = math.prod(shape)
    if dtype == dtypes.BYTES:
        return RawInput("json", dtype, shape, _strings(spec.name, data, count))
    size = count * dtypes.ITEM_SIZE[dtype]
    if len(data) != size:
        expected = f"{size} bytes for {dtype} of shape {list(shape)}"
        raise bad_input(spec.name, expected, f"{len(data)} bytes")
    if dtype == "BOOL" and bytes(data).translate(None, b"\x00\x01"):
        raise bad_input(spec.name, "bytes 0 or 1 for BOOL", "another byte")
    return RawInput("binary", dtype, shape, data)


def _strings(name: str, data: memoryview, count: int) -> list[str]:
    """Elements of a BYTES tensor: each a 4-byte little-endian length and that many bytes."""
    if len(data) < count * _LENGTH.size:
        raise bad_input(name, f"{count} BYTES elements", f"{len(data)} bytes for all of them")
    texts: list[str] = []
    at = 0
    for index in range(count):
        start = at + _LENGTH.size
        size = _LENGTH.unpack_from(data, at)[0] if start <= len(data) else 0
        at = start + size
        if at > len(data):
            raise bad_input(name, f"{count} BYTES elements", f"an end inside element {index}")
        try:
            texts.append(str(data[start:at], "utf-8"))
        except UnicodeDecodeError:
            raise bad_input(name, "UTF-8 text", f"other bytes in element {index}") from None
    if at != len(data):
        raise bad_input(name, f"{count} BYTES elements", f"{len(data) - at} bytes after the last")
    return texts
