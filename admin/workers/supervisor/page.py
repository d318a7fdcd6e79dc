"""`/metrics` over all gateway processes, those that died included."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf

from prometheus_client.core import Metric
from prometheus_client.samples import Sample as ShownSample

from admin.workers.cells import Sample, Table, summed
from admin.workers.messages import Reckoned
from admin.workers.supervisor.folding import Folding
from admin.workers.supervisor.reckonings import Reckonings
from gateway.metrics.counting import shown
from gateway.metrics.exemplars import Exemplar
from gateway.metrics.exposition import TEXT, Form
from gateway.metrics.families import OTHERS, Metrics
from gateway.metrics.ledger import ACCEPTED, ENDED
from registry.catalog import Change

_Seen = tuple[list[Table], dict[Sample, float], dict[Sample, Exemplar]]


class Gathered:
    """The page of a server with workers. `own` has the families, and counts what the supervisor
    itself knows; `reckonings` has the ledger, which `own` shows; `is_deployed` says whether a
    function of that namespace and name exists."""

    def __init__(
        self,
        own: Metrics,
        reckonings: Reckonings,
        is_deployed: Callable[[str, str], bool],
    ) -> None:
        self._own = own
        self._reckonings = reckonings
        self._is_deployed = is_deployed
        self._folding = Folding(is_deployed)
        self._tables: dict[str, Table] = {}
        self._ended: dict[Sample, float] = {}
        self._seen: _Seen = ([], {}, {})

    def join(self, worker: str, table: Table, send: Callable[[bytes], None]) -> None:
        """A worker counts there from now on, and is asked by `send`."""
        self._tables[worker] = table
        self._reckonings.join(worker, send, table)

    def reckoned(self, worker: str, message: Reckoned) -> None:
        """A worker has said where its requests are."""
        self._reckonings.answered(worker, message)

    def leave(self, worker: str) -> None:
        """A worker has ended: what it counted stays, but not of functions that are gone."""
        self._reckonings.leave(worker)
        table = self._tables.pop(worker)
        kept = {
            sample: value
            for sample, value in table.read().items()
            if sample.owner[1] in ("", OTHERS) or self._is_deployed(*sample.owner)
        }
        self._ended = summed([self._ended, kept])

    def changed(self, change: Change) -> None:
        """The catalog's: what was counted for a removed function goes with it."""
        if change.kind == "remove":
            gone = (change.namespace, change.name)
            self._ended = {s: value for s, value in self._ended.items() if s.owner != gone}
            self._folding.forget(gone)

    async def ask(self) -> None:
        """Have every worker say where its requests are; a second at most."""
        await self._reckonings.ask()

    def look(self) -> None:
        """Note what is to be read: in the loop's thread, so that nobody is counted twice."""
        self._own.look()
        self._seen = list(self._tables.values()), self._ended, self._reckonings.exemplars

    def render(self, form: Form = TEXT) -> bytes:
        """The page; takes milliseconds, so it is to be called in a thread."""
        return form.encode(self)

    def collect(self) -> Iterable[Metric]:
        """prometheus_client's: every family with the samples of all."""
        tables, ended, exemplars = self._seen
        total = self._folding.fold(summed([ended, *(table.read() for table in tables)]))
        by_family: dict[str, dict[Sample, float]] = {}
        for sample, value in total.items():
            if sample.name in (ACCEPTED, ENDED):
                continue  # shown as the workers answered, with all else of the ledger
            by_family.setdefault(family_of(sample.name), {})[sample] = value
        for family in self._own.collect():
            _add(family, by_family.get(family.name, {}), exemplars)
            yield family


def family_of(name: str) -> str:
    """The family that a counter's or a histogram's sample belongs to."""
    stem, _, kind = name.rpartition("_")
    return stem if kind in ("total", "bucket", "sum", "count") else name


def _add(family: Metric, numbers: dict[Sample, float], exemplars: dict[Sample, Exemplar]) -> None:
    """Add to the samples that the supervisor itself has counted, of which there are few. Of these a
    counter may be the workers', too, and is shown once; no histogram is."""
    if family.type == "histogram":
        _add_histograms(family, numbers, exemplars)
        return
    own = {_sample(one): one.value for one in family.samples} if numbers else {}
    if own.keys() & numbers.keys():
        family.samples = [one for one in family.samples if _sample(one) not in numbers]
    for sample, value in numbers.items():
        family.add_sample(sample.name, sample.by_label, value + own.get(sample, 0.0))


def _add_histograms(
    family: Metric, numbers: dict[Sample, float], exemplars: dict[Sample, Exemplar]
) -> None:
    """One after the other: OpenMetrics wants all of one histogram together, its buckets rising. One
    of which a worker has not made all numbers yet is left out."""
    buckets: dict[tuple[str, ...], list[tuple[float, Sample, float]]] = {}
    for sample, value in numbers.items():
        if sample.name.endswith("_bucket"):
            # The bound comes last, and is no label of the histogram itself.
            bound = float(sample.labels[-1])
            buckets.setdefault(sample.labels[:-2], []).append((bound, sample, value))
    for labels, row in buckets.items():
        row.sort()
        total = Sample(f"{family.name}_sum", labels)
        if total not in numbers or row[-1][0] != inf:
            continue
        so_far = 0.0
        for _, sample, value in row:
            so_far += value
            found = exemplars.get(sample)
            exemplar = shown(found) if found is not None else None
            family.add_sample(sample.name, sample.by_label, so_far, exemplar=exemplar)
        count = Sample(f"{family.name}_count", labels)
        family.add_sample(count.name, count.by_label, so_far)
        family.add_sample(total.name, total.by_label, numbers[total])


def _sample(shown: ShownSample) -> Sample:
    """What prometheus_client's sample is of."""
    return Sample(shown.name, tuple(text for pair in shown.labels.items() for text in pair))
