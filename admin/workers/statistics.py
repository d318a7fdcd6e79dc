"""Numbers by revision of all gateways, including those that have ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from admin.workers.shared_counters import CounterReader
from gateway.metrics.revisions import NAMES, RevisionNumbers
from registry.catalog import Change
from registry.model.revisions import pool_key

RECORDS_MAX: Final = 2**14
"""Records of one worker: ten for each of 1000 revisions, and as many as rest before their reuse."""
_PLACES: Final = {name: place for place, name in enumerate(NAMES)}
Numbers = dict[str, RevisionNumbers]


def numbers_of(counters: CounterReader) -> Numbers:
    """Return the numbers in a worker's file, by revision."""
    found: dict[str, list[float]] = {}
    for sample, value in counters.read().items():
        place = _PLACES.get(sample.name)
        if place is not None:
            found.setdefault(sample.labels[-1], [0.0] * len(NAMES))[place] = value
    return {pool: RevisionNumbers(*values) for pool, values in found.items()}


class RevisionPage:
    """Numbers of all workers, with those of workers that have ended.

    `is_deployed(namespace, ref)` returns whether that revision exists.
    """

    def __init__(self, is_deployed: Callable[[str, str], bool]) -> None:
        self._is_deployed = is_deployed
        self._counters: dict[str, CounterReader] = {}
        self._ended: Numbers = {}

    def add_worker(self, worker: str, counters: CounterReader) -> None:
        """Read a worker's numbers from now on."""
        self._counters[worker] = counters

    def remove_worker(self, worker: str) -> None:
        """Keep the numbers of a worker that has ended, except those of removed revisions."""
        for pool, numbers in numbers_of(self._counters.pop(worker)).items():
            namespace, _, ref = pool.partition("/")
            if self._is_deployed(namespace, ref):
                self._ended[pool] = numbers.plus(self._ended.get(pool, RevisionNumbers()))

    def on_change(self, change: Change) -> None:
        """Drop the numbers of removed revisions."""
        stay = {pool_key(change.namespace, change.name, number) for number in change.revisions}
        prefix = pool_key(change.namespace, change.name, 0)[:-1]
        for pool in [one for one in self._ended if one.startswith(prefix) and one not in stay]:
            del self._ended[pool]

    def read(self) -> Numbers:
        """Return the sums over all workers, by revision."""
        total = dict(self._ended)
        for counters in self._counters.values():
            for pool, numbers in numbers_of(counters).items():
                total[pool] = numbers.plus(total.get(pool, RevisionNumbers()))
        return total
