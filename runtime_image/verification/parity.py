"""Agreement of two sessions of one model, output by output. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from runtime_image.contract.compiled import OutputParity

WORST: Final = 1e30
"""Difference of outputs that cannot be compared: other shapes, or not finite in one of them only.
JSON has no infinity."""


class Parity:
    """Worst agreement of every output over all samples added so far.

    Of labels, flags and texts, the difference is the share of entries that differ in all samples
    together: synthetic inputs have near ties.
    """

    def __init__(self) -> None:
        self._worst: dict[str, OutputParity] = {}
        self._entries: dict[str, list[int]] = {}
        self.samples = 0

    def add(self, wanted: Mapping[str, Any], got: Mapping[str, Any]) -> None:
        """Add the outputs of one run: those of the ordinary and those of the compiled session."""
        self.samples += 1
        for name, value in wanted.items():
            other = got.get(name)
            if not _is_alike(value, other):
                self._keep(_parity(name, WORST, WORST, -1.0))
            elif value.dtype.kind in "fV":
                self._keep(_compared(name, value, other))
            else:
                self._count(name, value, other)

    def _keep(self, found: OutputParity) -> None:
        worst = self._worst.setdefault(found["output"], found)
        worst["largest_difference"] = max(worst["largest_difference"], found["largest_difference"])
        worst["relative_difference"] = max(
            worst["relative_difference"], found["relative_difference"]
        )
        worst["cosine"] = min(worst["cosine"], found["cosine"])

    def _count(self, name: str, wanted: Any, got: Any) -> None:
        entries = self._entries.setdefault(name, [0, 0])
        entries[0] += int(np.count_nonzero(wanted != got))
        entries[1] += wanted.size

    def outputs(self) -> list[OutputParity]:
        """Return the worst agreement of every output."""
        for name, (different, total) in self._entries.items():
            share = different / max(1, total)
            self._keep(_parity(name, share, share, 1.0 - share))
        return list(self._worst.values())


def refutation(outputs: Iterable[OutputParity], tolerance: float) -> str:
    """Return which output differs by more than `tolerance`, with figures; "" if none does."""
    worst = max(outputs, key=lambda one: one["relative_difference"], default=None)
    if worst is None or worst["relative_difference"] <= tolerance:
        return ""
    return (
        f"output {worst['output']} of the compiled model differs by"
        f" {worst['relative_difference']:.3g} of its largest value, the tolerance is"
        f" {tolerance:g} (largest difference {worst['largest_difference']:.3g}, cosine similarity"
        f" {worst['cosine']:.6f})"
    )


def _compared(name: str, wanted: Any, got: Any) -> OutputParity:
    one, other = wanted.astype(np.float64).ravel(), got.astype(np.float64).ravel()
    finite = np.isfinite(one)
    same = np.array_equal(one[~finite], other[~finite], equal_nan=True)
    if not same or not np.isfinite(other[finite]).all():
        return _parity(name, WORST, WORST, -1.0)
    one, other = one[finite], other[finite]
    largest = float(np.abs(one - other).max(initial=0.0))
    scale = float(np.abs(one).max(initial=0.0))
    relative = largest / scale if scale else (WORST if largest else 0.0)
    return _parity(name, largest, relative, _cosine(one, other))


def _is_alike(wanted: Any, got: Any) -> bool:
    if not isinstance(wanted, np.ndarray) or not isinstance(got, np.ndarray):
        return False
    return bool(wanted.shape == got.shape and wanted.dtype == got.dtype)


def _cosine(one: Any, other: Any) -> float:
    norms = float(np.linalg.norm(one)) * float(np.linalg.norm(other))
    if not norms:
        return 1.0 if not one.any() and not other.any() else 0.0
    return min(1.0, float(one @ other) / norms)


def _parity(name: str, largest: float, relative: float, cosine: float) -> OutputParity:
    return {
        "output": name,
        "largest_difference": min(largest, WORST),
        "relative_difference": min(relative, WORST),
        "cosine": cosine,
    }
