"""Agreement of a candidate's outputs with the original's, summed up over samples.

Cosine similarity is taken over all judged samples of an output together, as if they were one
vector: the cosine of a single number would only be its sign. Integers and strings are compared for
equality. Differences are in units of the output.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

NOTHING: Final = (
    "nothing could be compared: the original's outputs have only NaN and infinity, or no values"
)


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement over `samples`: the smallest cosine similarity of any float output, named `output`,
    the largest difference of any value, and the share of samples with the same label and the same
    integers and strings. Fields are None without such an output. `broken` is a reason to refuse the
    candidate whatever the figures are, "" for none."""

    samples: int
    cosine: float | None = None
    output: str = ""
    largest_difference: float | None = None
    same_label: float | None = None
    broken: str = ""


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
    """Compares runs, one sample after the other. `labels` is the output whose largest entry is the
    label, "" for none."""

    labels: str
    _sums: dict[str, _Sums] = field(default_factory=dict)
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
        for name, wanted in original.items():
            got: Any = candidate.get(name)
            self._broken = _why_not_comparable(name, wanted, got)
            if self._broken:
                return
            if wanted.dtype.kind != "f":
                self._labelled |= bool(wanted.size)
                is_same = is_same and bool(np.array_equal(wanted, got))
                continue
            self._add_floats(name, wanted.astype(np.float64), np.asarray(got, np.float64))
            if name == self.labels and np.isfinite(wanted).any():
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
        return Agreement(self._samples, lowest, output, largest, same)

    def _add_floats(self, name: str, wanted: Any, got: Any) -> None:
        """Add one output. Values that are not finite are equal in both, and left out."""
        finite = np.isfinite(wanted)
        wanted, got = wanted[finite], got[finite]
        sums = self._sums.setdefault(name, _Sums())
        sums.count += wanted.size
        sums.products += float(np.sum(wanted * got))
        sums.original += float(np.sum(wanted * wanted))
        sums.candidate += float(np.sum(got * got))
        difference = float(np.abs(wanted - got).max(initial=0.0))
        self._largest = max(self._largest, min(difference, sys.float_info.max))


def _labels(scores: Any) -> Any:
    """Return the place of the largest entry of each row."""
    return np.argmax(scores.reshape(scores.shape[0] if scores.ndim else 1, -1), axis=1)


def _why_not_comparable(name: str, wanted: Any, got: Any) -> str:
    """Return "" if both outputs can be compared, else why not."""
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
