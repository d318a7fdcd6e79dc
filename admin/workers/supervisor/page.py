"""`/metrics` over all gateway processes, those that died included."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import generate_latest
from prometheus_client.core import Metric

from admin.workers.cells import Sample, Table, summed
from gateway.observing.metrics import OTHERS, Metrics
from registry.catalog import Change


class Gathered:
    """The page of a server with workers. `own` has the families, and counts what the supervisor
    itself knows; `is_deployed` says whether a function of that namespace and name exists."""

    def __init__(self, own: Metrics, is_deployed: Callable[[str, str], bool]) -> None:
        self._own = own
        self._is_deployed = is_deployed
        self._tables: dict[str, Table] = {}
        self._ended: dict[Sample, float] = {}
        self._seen: tuple[list[Table], dict[Sample, float]] = ([], {})

    def join(self, worker: str, table: Table) -> None:
        """A worker counts there from now on."""
        self._tables[worker] = table

    def leave(self, worker: str) -> None:
        """A worker has ended: what it counted stays, but not of functions that are gone."""
        table = self._tables.pop(worker)
        kept = {
            sample: value
            for sample, value in table.read().items()
            if sample.owner[1] == OTHERS or self._is_deployed(*sample.owner)
        }
        self._ended = summed([self._ended, kept])

    def changed(self, change: Change) -> None:
        """The catalog's: what was counted for a removed function goes with it."""
        if change.kind == "remove":
            gone = (change.namespace, change.name)
            self._ended = {s: value for s, value in self._ended.items() if s.owner != gone}

    def look(self) -> None:
        """Note what is to be read: in the loop's thread, so that nobody is counted twice."""
        self._own.look()
        self._seen = list(self._tables.values()), self._ended

    def render(self) -> bytes:
        """The page; takes milliseconds, so it is to be called in a thread."""
        return generate_latest(self)

    def collect(self) -> Iterable[Metric]:
        """prometheus_client's: every family with the samples of all."""
        tables, ended = self._seen
        total = summed([ended, *(table.read() for table in tables)])
        by_family: dict[str, dict[Sample, float]] = {}
        for sample, value in total.items():
            by_family.setdefault(family_of(sample.name), {})[sample] = value
        for family in self._own.collect():
            _add(family, by_family.get(family.name, {}))
            yield family


def family_of(name: str) -> str:
    """The family that a counter's or a histogram's sample belongs to."""
    stem, _, kind = name.rpartition("_")
    return stem if kind in ("total", "bucket", "sum", "count") else name


def _add(family: Metric, numbers: dict[Sample, float]) -> None:
    """Add to the samples that the supervisor itself has counted, of which there are few."""
    buckets: dict[tuple[str, ...], list[tuple[float, Sample, float]]] = {}
    for sample, value in numbers.items():
        if sample.name.endswith("_bucket"):
            # The bound comes last, and is no label of the histogram itself.
            bound = float(sample.labels[-1])
            buckets.setdefault(sample.labels[:-2], []).append((bound, sample, value))
        else:
            family.add_sample(sample.name, sample.by_label, value)
    for labels, row in buckets.items():
        so_far = 0.0
        for _, sample, value in sorted(row):
            so_far += value
            family.add_sample(sample.name, sample.by_label, so_far)
        count = Sample(f"{family.name}_count", labels)
        family.add_sample(count.name, count.by_label, so_far)
