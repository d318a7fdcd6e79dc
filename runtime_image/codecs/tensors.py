"""Checks named inputs against their signature before any memory is allocated for them.

Tensors in JSON are nested lists with strict element types, never ragged. msgspec's C decoder checks
the types; its decoders are built once per spec. A refused value is decoded again in Python, only to
find the wrong element.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from struct import Struct
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from runtime_image.contract import dtypes
from runtime_image.contract.errors import BAD_INPUT, RequestError, bad_input
from runtime_image.contract.model import InputRule
from runtime_image.contract.proposals import did_you_mean, nearest
from runtime_image.contract.signature import DYNAMIC, UNKNOWN_RANK_MAX, Signature, TensorSpec

Encoding = Literal["binary", "json", "image", "audio", "bytes", "object"]
TEXT_MAX: Final = 80
"""Max characters of client text in an error message."""
BESIDE_EMPTY_MAX: Final = 2**24
"""Max product of the sizes beside an empty axis; past keys of a language model have some 2**17."""
_LENGTH: Final = Struct("<I")


@dataclass(slots=True)
class RawInput:
    """One checked input whose numbers are not decoded yet.

    `payload` by `encoding`: "binary" a view of little-endian row-major elements; "json" a list,
    nested or flat, or one element for rank 0; "image" and "audio" a view of the encoded file;
    "bytes" a view of the body; "object" any Python value. `dtype` is the signature's, `shape` the
    tensor's; both are empty for "object", and `shape` also for "image" and "audio", whose size is
    unknown until they are decoded.
    """

    encoding: Encoding
    dtype: str
    shape: tuple[int, ...]
    payload: Any


def shorten(text: str) -> str:
    """Cut `text` to TEXT_MAX characters, to keep errors readable."""
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 3] + "..."


def describe(spec: TensorSpec) -> str:
    """Return the spec as errors show it: FP32 of shape [-1, 3]."""
    return f"{spec.dtype} {spec.shape_text}"


def bad_body(expected: str, got: str) -> RequestError:
    """Return the BAD_INPUT error of a body as a whole, without an input's name."""
    return RequestError(
        BAD_INPUT, f"body: expected {expected}, got {got}", expected=expected, got=got
    )


def check_names(names: Iterable[str], signature: Signature) -> None:
    """Raise BAD_INPUT for an unknown, repeated or missing input."""
    wanted = {spec.name: spec for spec in signature.inputs}
    seen: set[str] = set()
    for name in names:
        if name not in wanted:
            known = ", ".join(wanted) or "no input at all"
            hint = did_you_mean(nearest(name, wanted, 1))
            raise bad_input(shorten(name), f"one of: {known}", "an unknown name", hint)
        if name in seen:
            raise bad_input(name, "to be given once", "two values")
        seen.add(name)
    for name, spec in wanted.items():
        if name not in seen:
            raise bad_input(name, describe(spec), "nothing: this input is missing")


def check_shape(spec: TensorSpec, shape: tuple[int, ...]) -> None:
    """Raise BAD_INPUT if a tensor of `shape` does not fit `spec`.

    An empty tensor costs its client no bytes, but a model may compute with its other axes: those
    without a declared size have at most BESIDE_EMPTY_MAX places.
    """
    if spec.shape is None and len(shape) > UNKNOWN_RANK_MAX:
        raise bad_input(spec.name, f"at most {UNKNOWN_RANK_MAX} axes", f"{len(shape)} axes")
    if not spec.accepts(shape):
        raise bad_input(spec.name, describe(spec), f"shape {shorten(str(list(shape)))}")
    if 0 not in shape:
        return
    declared = spec.shape or (DYNAMIC,) * len(shape)
    own = (got for got, want in zip(shape, declared, strict=True) if got and want == DYNAMIC)
    if math.prod(own) > BESIDE_EMPTY_MAX:
        raise bad_input(
            spec.name,
            f"at most {BESIDE_EMPTY_MAX} places beside an empty axis",
            f"shape {shorten(str(list(shape)))}",
        )


def unequal_rows(shapes: Mapping[str, Sequence[int]], signature: Signature) -> RequestError | None:
    """Return the BAD_INPUT error of inputs with a dynamic first axis that differ in rows, None if
    they do not. Such a request may be right, because first axes of a model need not be related,
    but it cannot be joined to others."""
    first: tuple[str, int] | None = None
    for spec in signature.inputs:
        if not spec.shape or spec.shape[0] != DYNAMIC:
            continue
        rows = shapes[spec.name][0]
        if first is None:
            first = (spec.name, rows)
        elif rows != first[1]:
            return bad_input(spec.name, f"{first[1]} rows like input {first[0]!r}", f"{rows} rows")
    return None


def from_binary(spec: TensorSpec, dtype: str, shape: tuple[int, ...], data: memoryview) -> RawInput:
    """Return raw elements as an input; raises BAD_INPUT if dtype, shape, length or content is
    wrong.

    Python's integers cannot overflow, so a huge shape fails the length check and allocates nothing.
    BYTES elements must be UTF-8 text, as for tensor(string); they are returned decoded, flat.
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
    """Return the elements of a BYTES tensor: each is a 4-byte little-endian length and its
    bytes."""
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


FLOAT_MAX: Final[dict[str, float]] = {
    "BF16": math.nextafter((2 - 2.0**-8) * 2.0**127, 0),
    "FP16": math.nextafter(65520.0, 0),
    "FP32": math.nextafter((2 - 2.0**-24) * 2.0**127, 0),
    "FP64": (2 - 2.0**-52) * 2.0**1023,
}
"""Largest number in JSON that each float type rounds to a finite value (IEEE 754): just below half
a step beyond the type's largest, which many languages print with fewer digits, rounded up."""
BINARY_FORM: Final = (
    "%s as binary data: parameters.binary_data_size, the header Inference-Header-Content-Length and"
    " the elements behind the JSON part"
)
EXPLAINED_MAX: Final = 1024 * 1024
"""Bytes. In a longer value, a wrong element is described as the decoder does it."""
_LISTS: Final = re.compile(rb"[\[\s]++")
"""The lists that begin before the first element of a JSON value."""
_CACHED: Final = 1024
_UINT64_MAX: Final = dtypes.INTEGER_RANGE["UINT64"][1]
_NAMES: Final[dict[type, str]] = {
    dict: "an object",
    list: "a list",
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number with a fraction or exponent",
    type(None): "null",
}


def has_null(spec: TensorSpec, rules: Mapping[str, InputRule]) -> bool:
    """Whether `null` stands for NaN in an input, as it does in answers: in floats not declared
    finite."""
    rule = rules.get(spec.name)
    return spec.dtype in dtypes.FLOATS and not (rule is not None and rule.finite)


def read(spec: TensorSpec, raw: msgspec.Raw, *, null: bool = False) -> tuple[Any, tuple[int, ...]]:
    """Return the nested lists of one tensor and their shape; raises BAD_INPUT if they do not
    fit. `null`: elements may be null."""
    if spec.dtype == "BF16":
        raise bad_input(spec.name, BINARY_FORM % spec.dtype, "JSON")
    if spec.shape is None:
        spec = _ranked(spec, raw)
    try:
        value = _nested(spec, null).decode(raw)
    except (ValueError, RecursionError) as error:
        raise _explain(spec, raw, error, null) from None
    shape = _measure(spec, value)
    check_shape(spec, shape)
    if spec.dtype == "UINT64":
        _check_uint64(spec.name, _flatten(value, len(shape)))
    return value, shape


def read_flat(
    spec: TensorSpec, shape: tuple[int, ...], raw: msgspec.Raw, *, null: bool = False
) -> list[Any]:
    """Return the elements of one tensor as a flat row-major list; raises BAD_INPUT."""
    flat = TensorSpec(spec.name, spec.dtype, (DYNAMIC,))
    try:
        values: list[Any] = _nested(flat, null).decode(raw)
    except (ValueError, RecursionError) as error:
        raise _explain(flat, raw, error, null) from None
    count = math.prod(shape)
    if len(values) != count:
        raise bad_input(
            spec.name, f"{count} elements for shape {list(shape)}", f"{len(values)} elements"
        )
    if spec.dtype == "UINT64":
        _check_uint64(spec.name, values)
    return values


def nested_type(spec: TensorSpec, *, null: bool = False) -> Any:
    """Return the msgspec type of a tensor: nested lists, fixed axes with their length; for an
    unknown rank an element or any list. `null`: elements may be null."""
    kind = _element(spec.dtype)
    if null:
        kind = kind | None
    if spec.shape is None:
        return kind | list[Any]
    for size in reversed(spec.shape):
        kind = list[kind]  # type: ignore[valid-type]  # built at run time
        if size != DYNAMIC:
            kind = Annotated[kind, Meta(min_length=size, max_length=size)]
    return kind


@lru_cache(maxsize=_CACHED)
def _nested(spec: TensorSpec, null: bool) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(nested_type(spec, null=null))


def _element(dtype: str) -> Any:
    if dtype == dtypes.BYTES:
        return str
    if dtype == "BOOL":
        return bool
    if dtype in dtypes.FLOATS:
        largest = FLOAT_MAX[dtype]
        return Annotated[float, Meta(ge=-largest, le=largest)]
    low, high = dtypes.INTEGER_RANGE[dtype]
    # msgspec has no bounds beyond int64: the upper bound of UINT64 is checked after decoding.
    return Annotated[int, Meta(ge=low, le=None if dtype == "UINT64" else high)]


def _ranked(spec: TensorSpec, raw: msgspec.Raw) -> TensorSpec:
    """Return the spec of an unknown rank with the rank of a value: as many axes as lists begin
    before its first element. Raises BAD_INPUT beyond UNKNOWN_RANK_MAX."""
    lists = _LISTS.match(memoryview(raw))
    rank = lists[0].count(b"[") if lists is not None else 0
    if rank > UNKNOWN_RANK_MAX:
        raise bad_input(spec.name, f"at most {UNKNOWN_RANK_MAX} axes", f"{rank} axes")
    return TensorSpec(spec.name, spec.dtype, (DYNAMIC,) * rank)


def _measure(spec: TensorSpec, value: Any) -> tuple[int, ...]:
    """Return the shape of decoded lists. Fixed axes are checked already; dynamic ones may be
    ragged, which raises BAD_INPUT. Dynamic axes inside an empty one have the size 0."""
    assert spec.shape is not None, "an unknown rank is replaced by the value's"
    shape = list(spec.shape)
    level = [value]
    last = max((axis for axis, size in enumerate(shape) if size == DYNAMIC), default=-1)
    for axis in range(last + 1):
        size = len(level[0]) if level else max(shape[axis], 0)
        other = next((len(item) for item in level if len(item) != size), size)
        if other != size:
            raise bad_input(
                spec.name,
                f"lists of one length on axis {axis} for {describe(spec)}",
                f"lengths {size} and {other}",
            )
        shape[axis] = size
        if axis < last:
            level = list(chain.from_iterable(level))
    return tuple(shape)


def _flatten(value: Any, rank: int) -> Iterable[int]:
    flat: Iterable[Any] = [value]
    for _ in range(rank):
        flat = chain.from_iterable(flat)
    return flat


def _check_uint64(name: str, values: Iterable[int]) -> None:
    largest = max(values, default=0)
    if largest > _UINT64_MAX:
        raise bad_input(name, f"integers up to {_UINT64_MAX}", shorten(str(largest)))


def _explain(spec: TensorSpec, raw: msgspec.Raw, error: Exception, null: bool) -> RequestError:
    """Return the error that locates the fault in a value that the decoder refused.

    A large one is not decoded again: as Python objects, JSON takes up to thirty times its size.
    """
    if len(memoryview(raw)) > EXPLAINED_MAX:
        return bad_input(spec.name, describe(spec), shorten(str(error)))
    try:
        value = msgspec.json.decode(raw)
    except (ValueError, RecursionError) as malformed:
        return bad_input(spec.name, describe(spec), shorten(str(malformed)))
    wanted, got = _fault(spec, value, (), null) or (describe(spec), shorten(str(error)))
    return bad_input(spec.name, wanted, got)


def _fault(
    spec: TensorSpec, value: Any, path: tuple[int, ...], null: bool
) -> tuple[str, str] | None:
    """Return expected and actual value of the first wrong element under `path`, or None."""
    where = f" at index {list(path)}" if path else ""
    assert spec.shape is not None, "an unknown rank is replaced by the value's"
    if len(path) == len(spec.shape):
        if value is None and spec.dtype in dtypes.FLOATS:
            got = f"null, which stands for NaN,{where}"
            return None if null else (f"finite {spec.dtype} values", got)
        wrong = _element_fault(spec.dtype, value)
        return None if wrong is None else (describe(spec), wrong + where)
    if not isinstance(value, list):
        return describe(spec), f"{_NAMES[type(value)]} instead of a list{where}"
    size = spec.shape[len(path)]
    if size not in (DYNAMIC, len(value)):
        return describe(spec), f"a list of {len(value)}{where}"
    for index, item in enumerate(value):
        fault = _fault(spec, item, (*path, index), null)
        if fault is not None:
            return fault
    return None


def _element_fault(dtype: str, value: Any) -> str | None:
    wanted = _element_types(dtype)
    if type(value) not in wanted:
        return _NAMES[type(value)]
    if dtype in FLOAT_MAX:
        low, high = -FLOAT_MAX[dtype], FLOAT_MAX[dtype]
    elif dtype in dtypes.INTEGER_RANGE:
        low, high = dtypes.INTEGER_RANGE[dtype]
    else:
        return None
    return None if low <= value <= high else f"{shorten(str(value))}, out of range,"


def _element_types(dtype: str) -> tuple[type, ...]:
    if dtype == dtypes.BYTES:
        return (str,)
    if dtype == "BOOL":
        return (bool,)
    return (float, int) if dtype in dtypes.FLOATS else (int,)
