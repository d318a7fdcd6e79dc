"""Columns of float outputs: each one's error beside the spread that it has in the original.

A cosine is blind to an offset, to a factor and to small columns: a model that answers 290 +- 0.23
agrees with the constant 290 to six places. The spread of a column is what its answers tell.

A column is an entry of the last axis: a feature, or a class. It is also one of the second axis, on
which images and maps have their channels, and of a first axis of fixed size. All other axes, and
the samples, are the values of a column. Axes of any size are none, unless all are: then the last
one is. Columns beyond `COLUMNS_MAX` are taken together with their neighbours, and all of them where
each has fewer than `VALUES_MIN` values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from runtime_image.contract.precision import error_max
from runtime_image.contract.signature import DYNAMIC

COLUMNS_MAX: Final = 65_536
VALUES_MIN: Final = 8
FLAT: Final = 8.0
"""A spread of so many units in the last place of the largest value is rounding: the column is
constant."""
PLACES: Final = 9
"""Decimal places of a slope: a constant candidate has one of 0 but for rounding."""
ERROR_MAX: Final = 1e9
"""Error of a column that cannot be measured. JSON has no infinity."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of an output: `part` is its name there, "" if the output has one only.

    `spread` is the standard deviation of the original, 0 for a constant column. `error` is the
    root of the mean squared error as a share of the spread, or of a constant column's magnitude,
    with one standard error of so few samples. `bias` is the mean error in units of the output,
    `gain` the slope of the candidate on the original, None for a constant column.
    """

    output: str
    part: str
    error: float
    spread: float
    bias: float
    gain: float | None

    @property
    def disagreement(self) -> float:
        """The smallest tolerance that has this column within."""
        return self.error / error_max(1.0, is_constant=self.gain is None)


def axes_of(shape: tuple[int, ...], declared: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axes whose entries are columns, (-1,) for one column.

    `declared` is the shape in the model's signature; an axis of any size has rows or positions.
    """
    rank = len(shape)
    if len(declared) != rank:
        declared = (DYNAMIC, *shape[1:])
    axes = sorted({0, 1, rank - 1} & set(range(rank)))
    fixed = tuple(axis for axis in axes if declared[axis] != DYNAMIC and shape[axis] > 1)
    if fixed:
        return fixed
    return (rank - 1,) if rank > 1 and shape[-1] > 1 else (-1,)


class Columns:
    """Sums over the columns of one output along one axis.

    They are sums of differences from the first value of each column, so that a small spread beside
    a large offset is exact.
    """

    def __init__(self, output: str, axis: int, values: Any) -> None:
        self._output = output
        self._axis = axis
        self._last = values.ndim - 1
        self._size = values.shape[axis] if axis >= 0 else 1
        self._inner = 1
        self._block = max(1, -(-self._size // COLUMNS_MAX))
        self._ulp = float(np.finfo(values.dtype).eps)
        width = max(1, -(-self._size // self._block))
        self._first = np.full(width, np.nan)
        self._sums = np.zeros((6, width))

    def fit(self, shape: tuple[int, ...]) -> None:
        """Take the shape of the next sample. All columns are one if their number changes."""
        if self._axis < 0:
            return
        self._inner = math.prod(shape[self._axis + 1 :])
        if shape[self._axis] != self._size:
            self._first, self._sums = _together(self._first, self._sums)
            self._axis, self._size, self._block = -1, 1, 1

    def add(self, places: Any, wanted: Any, got: Any) -> None:
        """Add the values at these places of the output in row-major order."""
        at = places // self._inner % self._size // self._block
        if np.isnan(self._first).any():
            fresh = np.full_like(self._first, np.nan)
            fresh[at[::-1]] = wanted[::-1]  # the first of several at one place
            self._first = np.where(np.isnan(self._first), fresh, self._first)
        apart, error = wanted - self._first[at], got - wanted
        weights = (None, apart, apart * apart, error, error * error, apart * error)
        for row, weight in enumerate(weights):
            self._sums[row] += np.bincount(at, weight, minlength=len(self._first))

    def worst(self, samples: int) -> Column | None:
        """Return the column that agrees least, None without a value."""
        first, sums = self._first, self._sums
        is_one = len(first) == 1
        if not is_one and sums[0].max() < VALUES_MIN:
            first, sums = _together(first, sums)
            is_one = True
        there = np.flatnonzero(sums[0])
        if not there.size:
            return None
        with np.errstate(all="ignore"):
            return self._least(there, first[there], sums[:, there], samples, is_one=is_one)

    def _least(self, there: Any, first: Any, sums: Any, samples: int, *, is_one: bool) -> Column:
        mean, square, bias, error, product = sums[1:] / sums[0]
        spread = np.sqrt(np.maximum(0.0, square - mean * mean))
        size = np.hypot(first + mean, spread)
        is_flat = ~(spread > FLAT * self._ulp * size)
        # Of n samples, the ratio of two RMS figures is known to a share of 1 / sqrt(n).
        rms = np.sqrt(error) * (1 + 1 / math.sqrt(samples))
        shares = np.where(rms > 0, rms / np.where(is_flat, size, spread), 0.0)
        shares = np.nan_to_num(np.minimum(shares, ERROR_MAX), nan=ERROR_MAX)
        unit = np.where(is_flat, error_max(1.0, is_constant=True), error_max(1.0))
        place = int(np.argmax(shares / unit))
        slope = 1 + (product[place] - mean[place] * bias[place]) / spread[place] ** 2
        flat = bool(is_flat[place])
        return Column(
            self._output,
            "" if is_one else self._part(int(there[place])),
            float(shares[place]),
            0.0 if flat else _number(spread[place]),
            _number(bias[place]),
            None if flat else round(_number(slope), PLACES) + 0.0,  # no -0
        )

    def _part(self, place: int) -> str:
        kind = "column" if self._axis == self._last else "channel"
        if self._block == 1:
            return f"{kind} {place}"
        first = place * self._block
        return f"{kind}s {first} to {min(first + self._block, self._size) - 1}"


def _together(first: Any, sums: Any) -> tuple[Any, Any]:
    """Return the sums of all columns as those of one."""
    there = np.flatnonzero(sums[0])
    if not there.size:
        return np.full(1, np.nan), np.zeros((6, 1))
    base = first[there[0]]
    count, apart, square, bias, error, product = sums[:, there]
    moved = first[there] - base
    rows = (
        count,
        apart + count * moved,
        square + 2 * moved * apart + count * moved * moved,
        bias,
        error,
        product + moved * bias,
    )
    return np.array([base]), np.array([[row.sum()] for row in rows])


def _number(value: Any) -> float:
    return float(np.nan_to_num(value, nan=0.0, posinf=ERROR_MAX, neginf=-ERROR_MAX))
