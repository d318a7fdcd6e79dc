"""Measured values by round, and their comparison with a reference of the same rounds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

Figures = Mapping[str, float]
"""Result of one measurement, by metric, e.g. {"p50 ms": 1.2}."""
Case = Callable[[], Figures]


class Record:
    """The figures of every case by metric, in order of measurement."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, list[float]]] = {}

    def add(self, case: str, figures: Figures) -> None:
        """Add one measurement of `case`."""
        for metric, value in figures.items():
            self._values.setdefault(metric, {}).setdefault(case, []).append(value)

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics."""
        return list(self._values)

    def only(self, *metrics: str) -> Record:
        """Return a copy with these metrics only, in this order."""
        kept = Record()
        kept._values = {name: self._values[name] for name in metrics if name in self._values}
        return kept

    def of(self, metric: str, cases: Iterable[str] | None = None) -> dict[str, list[float]]:
        """Return the values of one metric by case, for all cases that have it or only `cases`."""
        values = self._values[metric]
        return {case: values[case] for case in (cases or values) if case in values}


def interleaved(cases: Mapping[str, Case], rounds: int) -> Record:
    """Measure each case once per round, so that a busy moment of the machine affects all of them.
    Every other round runs in reverse, so that no case always follows the same one."""
    record, order = Record(), list(cases)
    for number in range(rounds):
        for name in order if number % 2 == 0 else reversed(order):
            record.add(name, cases[name]())
    return record


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and range of several values."""

    median: float
    min: float
    max: float


def spread(values: Sequence[float]) -> Spread:
    """Return median and range of at least one value; ValueError for none."""
    if not values:
        raise ValueError("values: expected at least one, got none")
    return Spread(statistics.median(values), min(values), max(values))


def ratios(values: Sequence[float], reference: Sequence[float]) -> Spread | None:
    """Return median and range of the ratios by round: what slows a round affects both its values.

    None if the rounds do not pair up or a reference is zero.
    """
    if len(values) != len(reference) or not values or 0 in reference:
        return None
    return spread([value / base for value, base in zip(values, reference, strict=True)])


def differences(values: Sequence[float], reference: Sequence[float]) -> Spread | None:
    """Return median and range of the differences by round; None if they do not pair up."""
    if len(values) != len(reference) or not values:
        return None
    return spread([value - base for value, base in zip(values, reference, strict=True)])


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` (0 to 1) of all values do not exceed; 0 for
    no values."""
    if not 0 <= share <= 1:
        raise ValueError(f"share: expected 0 to 1, got {share}")
    if not values:
        return 0.0
    ordered = sorted(values)
    place = -(-len(ordered) * share // 1)  # ceiling
    return ordered[max(int(place) - 1, 0)]
