"""Shapes for which a model is compiled. Pure.

A request outside the ranges never reaches a compiled session: TensorRT's provider would rebuild its
engine inside the run, for minutes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from runtime_image.contract.compiled import ShapeRange
from runtime_image.contract.errors import BAD_INPUT, UnfitInput
from runtime_image.contract.signature import DYNAMIC, Signature, TensorSpec

UNBOUNDED: Final = 2**31
"""Limit of rows without ranges."""


class OutsideRanges(UnfitInput):
    """The shape of one input is outside the ranges."""


def outside(
    shapes: Mapping[str, Sequence[int]], ranges: tuple[ShapeRange, ...]
) -> ShapeRange | None:
    """Return the first range that the shapes of a run violate, None if all are inside. An input
    without a range has fixed axes."""
    for one in ranges:
        shape = shapes.get(one.input)
        if shape is None or len(shape) != len(one.smallest):
            return one
        for size, least, most in zip(shape, one.smallest, one.largest, strict=True):
            if not least <= size <= most:
                return one
    return None


def refusal(shapes: Mapping[str, Sequence[int]], violated: ShapeRange) -> OutsideRanges:
    """Return the error of a request that is outside a range."""
    got = shapes.get(violated.input)
    expected = f"a shape from {_text(violated.smallest)} to {_text(violated.largest)}"
    return OutsideRanges(
        BAD_INPUT,
        f"input {violated.input}: this model is compiled for {expected}, got"
        f" {'nothing' if got is None else _text(got)}",
        input=violated.input,
        expected=expected,
        got="" if got is None else _text(got),
    )


def rows_max(ranges: tuple[ShapeRange, ...]) -> int:
    """Return the most rows of a joined run that is inside the ranges."""
    return max(1, min((one.largest[0] for one in ranges if one.largest), default=UNBOUNDED))


def problem(signature: Signature, ranges: tuple[ShapeRange, ...]) -> str:
    """Return why a model with this signature cannot be compiled for `ranges`, "" if it can."""
    known = {one.input: one for one in ranges}
    if len(known) < len(ranges):
        return "an input has two ranges"
    names = [tensor.name for tensor in signature.inputs]
    if strange := sorted(set(known) - set(names)):
        return f"shapes of {strange[0]!r}: the model's inputs are {names}"
    for tensor in signature.inputs:
        one = known.get(tensor.name)
        found = _unfit(tensor, one) if one is not None else _unranged(tensor)
        if found:
            return f"shapes of {tensor.name!r}: {found}"
    return ""


def _unranged(tensor: TensorSpec) -> str:
    if tensor.shape is None:
        return "the model declares no shape, and there is no range"
    return "an axis is dynamic and has no range" if DYNAMIC in tensor.shape else ""


def _unfit(tensor: TensorSpec, one: ShapeRange) -> str:
    ends = (one.smallest, one.usual, one.largest)
    declared = (DYNAMIC,) * len(one.smallest) if tensor.shape is None else tensor.shape
    if any(len(end) != len(declared) for end in ends):
        return f"expected {len(declared)} axes, got {' '.join(map(_text, ends))}"
    for axis, (size, least, usual, most) in enumerate(zip(declared, *ends, strict=True)):
        if not 0 < least <= usual <= most:
            return f"axis {axis}: expected 1 <= smallest <= usual <= largest"
        if size != DYNAMIC and (least, most) != (size, size):
            return f"axis {axis} is fixed at {size}, got {least} to {most}"
    return ""


def _text(shape: Sequence[int]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"
