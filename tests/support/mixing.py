"""Models whose rows are not independent, although five made-up rows near the sample suggest it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from tests.support import models
from tests.support.models import ROW, Weights, written


def first_text(folder: Path) -> Path:
    """Every row of `y` is row 0 of the text `x`."""
    return written(
        folder,
        "first_text",
        "(string[n] x) => (string[n] y)",
        """
        zero = Constant <value = int64[1] {0}> ()
        first = Gather(x, zero)
        count = Shape(x)
        y = Expand(first, count)
        """,
    )


def compress(folder: Path) -> Path:
    """Rows with a value of -3 or less in column 0 are omitted from `y` FP32 [m, 4]."""
    return written(
        folder,
        "compress",
        f"({ROW} x) => (float[m,4] y)",
        """
        zero = Constant <value = int64 {0}> ()
        column = Gather <axis = 1> (x, zero)
        least = Constant <value = float {-3}> ()
        wanted = Greater(column, least)
        y = Compress <axis = 0> (x, wanted)
        """,
    )


def zero_times_sum(folder: Path) -> Path:
    """y = x + 0 * (sum of x over the rows): NaN for all after one infinity."""
    return written(
        folder,
        "zero_times_sum",
        f"({ROW} x) => ({ROW} y)",
        """
        rows = Constant <value = int64[1] {0}> ()
        zero = Constant <value = float {0}> ()
        total = ReduceSum(x, rows)
        nothing = Mul(total, zero)
        y = Add(x, nothing)
        """,
    )


def rare_branch(folder: Path) -> Path:
    """y = x, plus 1 where the largest value of all rows is above 100."""
    return written(
        folder,
        "rare_branch",
        f"({ROW} x) => ({ROW} y)",
        """
        limit = Constant <value = float {100}> ()
        most = ReduceMax <keepdims = 0> (x)
        above = Greater(most, limit)
        one = Cast <to = 1> (above)
        y = Add(x, one)
        """,
    )


def tiny_softmax(folder: Path) -> Path:
    """Softmax over the rows, too small for any absolute tolerance."""
    return written(
        folder,
        "tiny_softmax",
        f"({ROW} x) => ({ROW} y)",
        """
        soft = Softmax <axis = 0> (x)
        tiny = Constant <value = float {0.00001}> ()
        y = Mul(soft, tiny)
        """,
    )


def adds_largest(folder: Path) -> Path:
    """y = x + max(5, largest of all rows), INT64 [n, 1]."""
    return written(
        folder,
        "adds_largest",
        "(int64[n,1] x) => (int64[n,1] y)",
        """
        five = Constant <value = int64 {5}> ()
        most = ReduceMax <keepdims = 0> (x)
        larger = Max(most, five)
        y = Add(x, larger)
        """,
    )


def less_largest(folder: Path) -> Path:
    """y = x - largest of all rows, INT64 [n, 1]."""
    return written(
        folder,
        "less_largest",
        "(int64[n,1] x) => (int64[n,1] y)",
        "most = ReduceMax <keepdims = 0> (x)\n y = Sub(x, most)",
    )


def quantised(folder: Path) -> Path:
    """A label from a layer with 8-bit weights whose inputs are scaled over all rows."""
    random = np.random.default_rng(0)
    weights: dict[str, Weights] = {"weights": random.integers(0, 255, (4, 10)).astype(np.uint8)}  # type: ignore[dict-item]  # written() takes any array
    return written(
        folder,
        "quantised",
        f"({ROW} x) => (int64[n] label)",
        """
        middle = Constant <value = uint8 {128}> ()
        small, scale, zero = DynamicQuantizeLinear(x)
        sums = MatMulInteger(small, weights, zero, middle)
        floats = Cast <to = 1> (sums)
        label = ArgMax <axis = 1, keepdims = 0> (floats)
        """,
        weights,
    )


MIXING: Final[dict[str, Callable[[Path], Path]]] = {
    "Gather": first_text,
    "Compress": compress,
    "ReduceSum": zero_times_sum,
    "ReduceMax": rare_branch,
    "Softmax": tiny_softmax,
    "ReduceMax of integers": adds_largest,
    "ReduceMax of one integer": less_largest,
    "DynamicQuantizeLinear": quantised,
    "Softmax over the batch": models.softmax_over_batch,
}
"""Models by the operator that mixes rows."""


def drops_seven(folder: Path) -> Path:
    """Rows with 7 in column 0 are omitted from `y` FP32 [m, 4]; no comparison sends such a row."""
    return written(
        folder,
        "drops_seven",
        f"({ROW} x) => (float[m,4] y)",
        """
        zero = Constant <value = int64 {0}> ()
        seven = Constant <value = float {7}> ()
        column = Gather <axis = 1> (x, zero)
        is_seven = Equal(column, seven)
        wanted = Not(is_seven)
        y = Compress <axis = 0> (x, wanted)
        """,
    )
