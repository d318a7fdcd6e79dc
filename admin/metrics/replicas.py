"""Replicas on `/metrics`: how many there are, and what became of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from pool_manager.counters.reasons import REASONS
from pool_manager.counters.supplied import Supplied
from pool_manager.counters.tally import COLD_STARTS, EVICTIONS, KINDS, OUTCOMES, STEPS, WHEN, Counts


class Counters(Protocol):
    """What the pool manager counts."""

    def counts(self) -> Counts:
        """Since the start."""

    def supplied(self) -> list[Supplied]:
        """Pools that have replicas or want some."""

    @property
    def waiting_starts(self) -> int:
        """Starts that stand in line."""


class ReplicaFamilies:
    """As they were at the last look. What can be counted is shown from the start, as 0."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._seen: tuple[Counts, list[Supplied], int] = (Counts(), [], 0)

    def look(self) -> None:
        """Read them; in the loop's thread."""
        counters = self._counters
        self._seen = counters.counts(), counters.supplied(), counters.waiting_starts

    def collect(self) -> Iterable[Metric]:
        """The families."""
        counts, supplied, waiting = self._seen
        yield from _supply(supplied)
        text = "Starts of replicas that stand in line."
        yield GaugeMetricFamily("fngate_waiting_starts", text, waiting)
        yield _pairs(
            "fngate_replica_starts",
            "Starts of replicas: in a new process, of a standby, of a standby ahead of its use, or"
            " for a deploy; and how they ended.",
            ("kind", KINDS),
            ("outcome", OUTCOMES),
            counts.starts,
        )
        yield _pairs(
            "fngate_replica_failures",
            "Replicas that ended unasked, while they started or later, and why.",
            ("when", WHEN),
            ("reason", REASONS),
            counts.failures,
        )
        text = "Replicas that made room for another pool: idle ones, and busy ones after a wait."
        yield _singles("fngate_evictions", text, ("victim", EVICTIONS), counts.evictions)
        text = "Revisions whose requests are joined no more, because a joined run lost rows."
        yield CounterMetricFamily("fngate_batching_refuted", text, counts.refuted.total())
        text = "Cold starts, whether or not somebody waited for them."
        yield _singles("fngate_cold_starts", text, ("outcome", COLD_STARTS), counts.cold_starts)
        text = "Defects of the pool manager in handling an event, doing a command, or counting it."
        yield _singles("fngate_manager_errors", text, ("step", STEPS), counts.defects)


def _supply(supplied: list[Supplied]) -> Iterable[Metric]:
    text = "Replicas that a pool wants; pools that want and have none are left out."
    wanted = GaugeMetricFamily("fngate_pool_wanted_replicas", text, labels=["pool"])
    text = "Replicas that a pool has, by state."
    there = GaugeMetricFamily("fngate_pool_replicas", text, labels=["pool", "state"])
    for pool, count, replicas in supplied:
        wanted.add_metric([pool], count)
        for state, number in replicas.items():
            there.add_metric([pool, state], number)
    return [wanted, there]


Label = tuple[str, tuple[str, ...]]
"""Its name and all its values."""


def _pairs(
    name: str, text: str, first: Label, second: Label, counts: Mapping[tuple[str, str], int]
) -> Metric:
    family = CounterMetricFamily(name, text, labels=[first[0], second[0]])
    for one in first[1]:
        for other in second[1]:
            family.add_metric([one, other], counts.get((one, other), 0))
    return family


def _singles(name: str, text: str, label: Label, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label[0]])
    for value in label[1]:
        family.add_metric([value], counts.get(value, 0))
    return family
