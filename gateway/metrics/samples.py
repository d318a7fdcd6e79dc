"""Samples of each function's histograms: what was counted since the last sample."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from gateway.metrics.counters import Histogram

Durations = Callable[[], Iterable[tuple[tuple[str, str], Histogram]]]


class RateSample(NamedTuple):
    """Requests of one function since the last sample, by bucket of their duration, and first bytes
    of its answers, by bucket of the time to them; () for none.

    The bounds are SECONDS, and those of `gateway.metrics.exchanges`; there is one more bucket than
    there are bounds.
    """

    namespace: str
    name: str
    counts: tuple[int, ...] = ()
    first_bytes: tuple[int, ...] = ()


class RateSampler:
    """Samples histograms: O(functions) per sample, no cost per request.

    `durations` and `first_bytes` return the histograms by namespace and name.
    """

    def __init__(self, durations: Durations, first_bytes: Durations) -> None:
        self._durations, self._first_bytes = _Changes(durations), _Changes(first_bytes)

    def sample(self) -> list[RateSample]:
        """Return what was counted since the last sample, of functions that had anything."""
        durations, first_bytes = self._durations.take(), self._first_bytes.take()
        return [
            RateSample(*key, durations.get(key, ()), first_bytes.get(key, ()))
            for key in {**durations, **first_bytes}
        ]


class _Changes:
    """Changes of histograms since the last time."""

    def __init__(self, source: Durations) -> None:
        self._source = source
        self._before: dict[tuple[str, str], tuple[Histogram, float, list[int]]] = {}

    def take(self) -> dict[tuple[str, str], tuple[int, ...]]:
        """Return the new counts per bucket, of functions that have any."""
        found, now = {}, {}
        for key, distribution in self._source():
            known = self._before.get(key)
            if known is None or known[0] is not distribution:
                known = (distribution, 0.0, [])
            total = distribution.total
            if total != known[1]:
                counts = distribution.buckets()
                before = known[2] or [0] * len(counts)
                found[key] = tuple(a - b for a, b in zip(counts, before, strict=True))
                known = (distribution, total, counts)
            now[key] = known
        self._before = now
        return found
