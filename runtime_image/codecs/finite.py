"""Refuses NaN and infinities where the manifest declares an input finite, without numpy.

JSON has neither, and its numbers are held to the range of their dtype; only binary elements can
carry one. Views are read in the machine's byte order, which is little-endian on every platform
that a replica's wheels exist for.
"""

from __future__ import annotations

import math
from typing import Final

from runtime_image.codecs.request import Parsed
from runtime_image.contract import dtypes
from runtime_image.contract.errors import RequestError, bad_input
from runtime_image.contract.model import InputRule

_EXPONENT: Final = {"FP16": 0x7C00, "BF16": 0x7F80}
"""IEEE 754: all exponent bits set means an infinity or a NaN."""


def check(parsed: Parsed, rules: dict[str, InputRule]) -> None:
    """Raise BAD_INPUT naming the first element that is not finite in an input declared so."""
    for name, raw in parsed.inputs.items():
        rule = rules.get(name)
        if rule is None or not rule.finite:
            continue
        if raw.encoding != "binary" or raw.dtype not in dtypes.FLOATS:
            continue
        index = first_not_finite(raw.dtype, raw.payload)
        if index is not None:
            raise refusal(name, raw.dtype, raw.shape, index)


def first_not_finite(dtype: str, data: memoryview) -> int | None:
    """Position of the first NaN or infinity among the elements of `data`, or None."""
    mask = _EXPONENT.get(dtype)
    if mask is not None:
        bits = data.cast("B").cast("H")
        return next((at for at, value in enumerate(bits) if value & mask == mask), None)
    octets = data.cast("B")
    values = (octets.cast("f") if dtype == "FP32" else octets.cast("d")).tolist()
    # A NaN or infinity never leaves a sum again, so a finite sum clears all elements at once.
    if math.isfinite(sum(values)):
        return None
    return next((at for at, value in enumerate(values) if not math.isfinite(value)), None)


def refusal(name: str, dtype: str, shape: tuple[int, ...], position: int) -> RequestError:
    """The error about the element at row-major `position` of a tensor of `shape`."""
    index: list[int] = []
    for size in reversed(shape):
        position, place = divmod(position, size)
        index.insert(0, place)
    return bad_input(name, f"finite {dtype} values", f"NaN or infinity at index {index}")
