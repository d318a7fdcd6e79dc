"""Arithmetic and comparison of sizes, with the semantics of ONNX's integer operators.

A result that no polynomial expresses is a symbol derived from the operands; if N is among these,
Unknown is raised.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

import numpy as np

from runtime_image.verification.rows.sizes import (
    ONE,
    ZERO,
    Size,
    Symbols,
    Unknown,
    at_least,
    lower,
    never_more,
)

ELEMENTS_MAX: Final = 4096
"""Max elements of a tensor whose numbers are tracked."""


class TooMany(Exception):
    """A tensor has too many numbers to track each of them."""


Pair = Callable[[Symbols, Size, Size], Size | None]


def paired(step: Pair, symbols: Symbols, left: Size | None, right: Size | None) -> Size | None:
    if left is None or right is None:
        return None
    try:
        return step(symbols, left, right)
    except Unknown:
        return None


def each(function: Callable[..., Any], *arrays: Any) -> Any:
    """Apply a function of numbers to arrays elementwise; the result is an array even for rank 0.

    Raises TooMany.
    """
    shape = np.broadcast_shapes(*(np.shape(array) for array in arrays))
    if math.prod(shape) > ELEMENTS_MAX:
        raise TooMany
    found = np.empty(shape, dtype=object)
    found[...] = np.frompyfunc(function, len(arrays), 1)(*arrays)
    return found


def guarded(step: Pair) -> Pair:
    """Wrap arithmetic that may overflow, unlike polynomials: the result is then a new symbol."""

    @wraps(step)
    def guarded(symbols: Symbols, left: Size, right: Size) -> Size | None:
        if any(symbol.low is None for symbol in left.symbols | right.symbols):
            return symbols.derived((step.__name__, left, right), None)
        return step(symbols, left, right)

    return guarded


@guarded
def add(_symbols: Symbols, left: Size, right: Size) -> Size:
    return left + right


@guarded
def subtract(_symbols: Symbols, left: Size, right: Size) -> Size:
    return left - right


@guarded
def multiply(_symbols: Symbols, left: Size, right: Size) -> Size:
    return left * right


@guarded
def divide(symbols: Symbols, left: Size, right: Size) -> Size | None:
    """Integer division as in C: truncated towards 0."""
    a, b = left.constant, right.constant
    if b == 0:
        return None
    if a is not None and b is not None:
        quotient = abs(a) // abs(b)
        return Size.of(quotient if (a < 0) == (b < 0) else -quotient)
    if b is not None or at_least(right, 1):
        exact = left.divided(right)
        if exact is not None:
            return exact
    if at_least(left, 0) and at_least(right, 1):
        return symbols.derived(("quotient", left, right), 0, (left,))
    return symbols.derived(("quotient", left, right), None)


@guarded
def remainder(symbols: Symbols, left: Size, right: Size) -> Size | None:
    a, b = left.constant, right.constant
    if b == 0:
        return None
    if a is not None and b is not None:
        return Size.of(a % b) if a >= 0 and b > 0 else symbols.fresh("remainder", None)
    if (b is not None or at_least(right, 1)) and left.divided(right) is not None:
        return ZERO
    if at_least(left, 0) and at_least(right, 1):
        return symbols.derived(("remainder", left, right), 0, (right - ONE,))
    return symbols.derived(("remainder", left, right), None)


def maximum(symbols: Symbols, left: Size, right: Size) -> Size:
    if never_more(left, right):
        return right
    if never_more(right, left):
        return left
    first, second = sorted((left, right), key=repr)
    lows = [low for low in (lower(left), lower(right)) if low is not None]
    return symbols.derived(("max", first, second), max(lows, default=None))


def minimum(symbols: Symbols, left: Size, right: Size) -> Size:
    return symbols.minimum(left, right)


def is_equal(symbols: Symbols, left: Size, right: Size) -> Size:
    """Return 1, 0, or a symbol if both are possible."""
    if left == right:
        return ONE
    if at_least(left - right, 1) or at_least(right - left, 1):
        return ZERO
    first, second = sorted((left, right), key=repr)
    return symbols.derived(("equal", first, second), 0, (ONE,))


def is_not(symbols: Symbols, left: Size | None, right: Size | None) -> Size | None:
    if left is None or right is None:
        return None
    try:
        return ONE - is_equal(symbols, left, right)
    except Unknown:
        return None


def is_less(symbols: Symbols, left: Size, right: Size) -> Size:
    if never_more(left + ONE, right):
        return ONE
    if never_more(right, left):
        return ZERO
    return symbols.derived(("less", left, right), 0, (ONE,))


def is_less_or_equal(symbols: Symbols, left: Size, right: Size) -> Size:
    return ONE - is_less(symbols, right, left)


def both(_symbols: Symbols, left: Size, right: Size) -> Size:
    return left * right


def either(_symbols: Symbols, left: Size, right: Size) -> Size:
    return left + right - left * right


def chosen(
    symbols: Symbols, condition: Size | None, left: Size | None, right: Size | None
) -> Size | None:
    if condition is None:
        return None
    if condition.constant is not None:
        return left if condition.constant else right
    if left is None or right is None:
        return None
    if left == right:
        return left
    lows = [lower(left), lower(right)]
    low = None if None in lows else min(low for low in lows if low is not None)
    try:
        return symbols.derived(("where", condition, left, right), low)
    except Unknown:
        return None


def narrowed(symbols: Symbols, size: Size | None) -> Size | None:
    """Convert to 32 bits: unchanged for a single size, else a number that may have overflowed."""
    if size is None:
        return None
    number = size.constant
    if number is not None and -(2**31) <= number < 2**31:
        return size
    if len(size.terms) == 1 and size.symbols and size == Size.symbol(*size.symbols):
        return size
    return None if size.has_rows else symbols.derived(("narrowed", size), None)
