"""Numbers by revision of all gateways, including those that have ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from admin.workers.shared_counters import GatewayCounters, Sample
from gateway.metrics.revisions import NAMES, RevisionNumbers
from registry.catalog import Change
from registry.model.revisions import pool_key

RECORDS_MAX: Final = 2**14
"""Records of one gateway: ten for each of 1000 revisions, and those that rest before reuse."""
_PLACES: Final = {name: place for place, name in enumerate(NAMES)}


class RevisionPage(GatewayCounters):
    """Numbers by revision; those of removed ones are dropped. `is_deployed(namespace, ref)` returns
    whether that revision exists."""

    def __init__(self, is_deployed: Callable[[str, str], bool]) -> None:
        super().__init__(lambda one: is_deployed(*pool_of(one).split("/", 1)))

    def on_change(self, change: Change) -> None:
        """Drop the numbers of removed revisions."""
        stay = {pool_key(change.namespace, change.name, number) for number in change.revisions}
        prefix = pool_key(change.namespace, change.name, 0)[:-1]
        self.forget(lambda one: pool_of(one).startswith(prefix) and pool_of(one) not in stay)

    def numbers(self) -> dict[str, RevisionNumbers]:
        """Return the sums over all gateways, by revision."""
        found: dict[str, list[float]] = {}
        for sample, value in self.read().items():
            place = _PLACES.get(sample.name)
            if place is not None:
                found.setdefault(pool_of(sample), [0.0] * len(NAMES))[place] = value
        return {pool: RevisionNumbers(*values) for pool, values in found.items()}


def pool_of(sample: Sample) -> str:
    """Return the key of the revision that a number belongs to."""
    return sample.labels[-1]
