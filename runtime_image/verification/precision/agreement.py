"""Agreement of a candidate's outputs with the original's, summed up over samples.

Float outputs are judged column by column (`columns.py`). Cosine similarity is taken over all judged
samples of an output together, as if they were one vector: the cosine of a single number would only
be its sign. Integers, flags and strings are compared for equality. Differences are in units of the
output.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from runtime_image.codecs import bfloat16
from runtime_image.verification.precision.columns import Column, Columns, axes_of

NOTHING: Final = (
    "nothing could be compared: the original's outputs have only NaN and infinity, or no values"
)
PIECE: Final = 2**20
"""Max values that are summed up at once: copies of a large output in FP64 need memory."""
UNIT: Final = 1e-3
"""Largest distance of a row's sum from 1 in an output of probabilities."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement over `samples`: the smallest cosine similarity of any float output, named `output`,
    the largest difference of any value, the share of samples with the same label and the same
    integers and strings, and the worst column of any float output. Fields are None without such an
    output. `broken` is a reason to refuse the candidate whatever the figures are, "" for none."""

    samples: int
    cosine: float | None = None
    output: str = ""
    largest_difference: float | None = None
    same_label: float | None = None
    broken: str = ""
    column: Column | None = None


@dataclass(slots=True)
class _Sums:
    """Sums over the finite values of one float output: their count, the products of both, and the
    squares of each."""

    count: int = 0
    products: float = 0.0
    original: float = 0.0
    candidate: float = 0.0

    def cosine(self) -> float:
        """Return the cosine similarity: 1 if both are zero, 0 if one is."""
        if not self.original or not self.candidate:
            return 1.0 if self.original == self.candidate else 0.0
        found = self.products / (math.sqrt(self.original) * math.sqrt(self.candidate))
        return found if math.isfinite(found) else 0.0  # squares of huge FP64 values overflow


@dataclass(slots=True)
class Comparison:
    """Compares runs, one sample after the other.

    `labels` is the output whose largest entry is the label; "": that of each output that has
    probabilities. `shapes` are the outputs' declared ones.
    """

    labels: str
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    _sums: dict[str, _Sums] = field(default_factory=dict)
    _columns: dict[tuple[str, int], Columns] = field(default_factory=dict)
    _samples: int = 0
    _largest: float = 0.0
    _labelled: bool = False
    _relabelled: int = 0
    _broken: str = ""

    def add(self, original: Mapping[str, Any], candidate: Mapping[str, Any]) -> None:
        """Compare the outputs of one sample. Nothing is compared after a broken one."""
        if self._broken:
            return
        self._samples += 1
        is_same = True
        for name, found in original.items():
            wanted, got = _numbers(found), _numbers(candidate.get(name))
            self._broken = _why_not_comparable(name, wanted, got)
            if self._broken:
                return
            if wanted.dtype.kind != "f":
                self._labelled |= bool(wanted.size)
                is_same = is_same and bool(np.array_equal(wanted, got))
                continue
            with np.errstate(over="ignore", invalid="ignore"):
                self._add_floats(name, wanted, got)
            if self._has_label(name, wanted):
                self._labelled = True
                is_same = is_same and bool(np.array_equal(_labels(wanted), _labels(got)))
        self._relabelled += not is_same

    def agreement(self) -> Agreement:
        """Return the agreement over all samples so far."""
        if self._broken or not self._samples:
            reason = self._broken or "no sample was compared"
            return Agreement(self._samples, broken=reason)
        cosines = [(sums.cosine(), name) for name, sums in self._sums.items() if sums.count]
        if not cosines and not self._labelled:
            return Agreement(self._samples, broken=NOTHING)
        lowest, output = min(cosines, default=(None, ""))
        same = 1 - self._relabelled / self._samples if self._labelled else None
        largest = self._largest if cosines else None
        found = (columns.worst(self._samples) for columns in self._columns.values())
        worst = max(filter(None, found), key=lambda one: one.disagreement, default=None)
        return Agreement(self._samples, lowest, output, largest, same, column=worst)

    def _has_label(self, name: str, scores: Any) -> bool:
        if not self.labels:
            return _are_probabilities(scores)
        return name == self.labels and bool(np.isfinite(scores).any())

    def _add_floats(self, name: str, wanted: Any, got: Any) -> None:
        """Add one output. Values that are not finite are equal in both, and left out."""
        sums = self._sums.setdefault(name, _Sums())
        axes = axes_of(wanted.shape, self.shapes.get(name, ()))
        columns = [self._along(name, axis, wanted) for axis in axes]
        for places, one, other in _pieces(wanted, got):
            sums.count += one.size
            sums.products += float(np.sum(one * other))
            sums.original += float(np.sum(one * one))
            sums.candidate += float(np.sum(other * other))
            difference = float(np.abs(one - other).max(initial=0.0))
            self._largest = max(self._largest, min(difference, sys.float_info.max))
            for each in columns:
                each.add(places, one, other)

    def _along(self, name: str, axis: int, wanted: Any) -> Columns:
        """Return the columns of an output along an axis, together if their number changes."""
        found = self._columns.setdefault((name, axis), Columns(name, axis, wanted))
        found.fit(wanted.shape)
        return found


def _numbers(value: Any) -> Any:
    """Return BF16, which has no arithmetic, as FP32."""
    is_bf16 = isinstance(value, np.ndarray) and value.dtype == bfloat16.BF16
    return bfloat16.widened(value) if is_bf16 else value


def _pieces(wanted: Any, got: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Yield the places, in row-major order, and both values in FP64 where the original is
    finite."""
    one, other = wanted.reshape(-1), got.reshape(-1)
    for start in range(0, one.size, PIECE):
        part = one[start : start + PIECE].astype(np.float64)
        places = np.flatnonzero(np.isfinite(part))
        if places.size:
            rest = other[start : start + PIECE].astype(np.float64)
            yield places + start, part[places], rest[places]


def _are_probabilities(scores: Any) -> bool:
    """Whether each row has the probabilities of several classes."""
    if scores.ndim != 2 or scores.shape[1] < 2 or not scores.size:
        return False
    with np.errstate(invalid="ignore", over="ignore"):
        sums = scores.sum(axis=1, dtype=np.float64)
        return bool((scores >= 0).all() and (np.abs(sums - 1) <= UNIT).all())


def _labels(scores: Any) -> Any:
    """Return the place of the largest entry of each row."""
    return np.argmax(scores.reshape(scores.shape[0] if scores.ndim else 1, -1), axis=1)


def _why_not_comparable(name: str, wanted: Any, got: Any) -> str:
    """Return "" if both outputs can be compared, else why not."""
    if not isinstance(wanted, np.ndarray):
        return f"output {name} is no tensor, and cannot be compared"
    if not isinstance(got, np.ndarray) or got.dtype.kind != wanted.dtype.kind:
        return f"output {name} is not of the original's type"
    if got.shape != wanted.shape:
        return f"output {name} has shape {list(got.shape)}, the original's {list(wanted.shape)}"
    if wanted.dtype.kind != "f":
        return ""
    finite = np.isfinite(wanted)
    if not np.isfinite(got[finite]).all():
        return f"output {name} has NaN or infinity where the original has numbers"
    if not np.array_equal(got[~finite], wanted[~finite], equal_nan=True):
        return f"output {name} has other values where the original has NaN or infinity"
    return ""
