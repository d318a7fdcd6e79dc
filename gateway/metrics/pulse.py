"""What was answered since the last look, by function."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from gateway.metrics.counting import Distribution

Durations = Callable[[], Iterable[tuple[tuple[str, str], Distribution]]]


class Answered(NamedTuple):
    """Requests of one function, by the bucket of gateway.metrics.series.SECONDS that their
    duration falls into; one bucket more than there are bounds."""

    namespace: str
    name: str
    counts: tuple[int, ...]


class Pulse:
    """Costs a glance per function that was ever called, and nothing per request. `durations` gives
    the histograms that are counted in, by namespace and name."""

    def __init__(self, durations: Durations) -> None:
        self._durations = durations
        self._before: dict[tuple[str, str], tuple[Distribution, float, list[int]]] = {}

    def take(self) -> list[Answered]:
        """What came since this was asked last; of functions with nothing, nothing."""
        found, now = [], {}
        for key, distribution in self._durations():
            known = self._before.get(key)
            if known is None or known[0] is not distribution:
                known = (distribution, 0.0, [])
            total = distribution.total
            if total != known[1]:
                counts = distribution.buckets()
                before = known[2] or [0] * len(counts)
                since = tuple(a - b for a, b in zip(counts, before, strict=True))
                found.append(Answered(*key, since))
                known = (distribution, total, counts)
            now[key] = known
        self._before = now
        return found
