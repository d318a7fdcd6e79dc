"""`/metrics` of all gateways together, including those that have ended.

`LabelLimit` bounds the number of functions on the page, `ColdStarts` counts what gateways report.
`MergedMetrics` renders the page, with each gateway's ledger, taken in one turn of its loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import chain
from math import inf
from threading import Lock
from typing import Any, Final

from prometheus_client.core import Metric

from admin.metrics import GatewaysSeen, Source, show_gateways
from admin.workers.messages import LedgerNow, ReadLedger, Woken
from admin.workers.shared_counters import Counters, GatewayCounters, Sample, summed
from gateway.metrics.counters import (
    TEXT,
    Exemplar,
    Families,
    LocalStore,
    PageFormat,
    to_prometheus,
)
from gateway.metrics.exchanges import OPEN
from gateway.metrics.ledger import ACCEPTED, ENDED, Balance, Ledger, total
from gateway.metrics.requests import FUNCTIONS_MAX, HELD, LABELS, OTHERS, SECONDS, Metrics
from registry.catalog import Change
from runtime_image.contract.control import WAKE_PHASES

Owner = tuple[str, str]
"""Namespace and name of a function."""
Numbers = dict[Sample, float]

ENDED_WITH_IT: Final = (OPEN, HELD)
"""Gauges of a process that has ended: nothing is open or held any more."""

REPLICAS_MAX: Final = 1000
"""Max replicas whose cold starts are remembered as counted: the newest."""

_Seen = tuple[list[Counters], dict[Sample, float], dict[Sample, Exemplar]]


class LabelLimit:
    """Limit of the functions with series of their own; all others are summed up as `OTHERS`.

    Each gateway process has such a limit, but all processes together, with their predecessors, may
    have called many more functions than fit on one page. A function with series of its own keeps
    them until it is removed. Counts that a removed function added to `OTHERS` stay there, as
    Prometheus treats a falling counter as a reset. Thread-safe.
    """

    def __init__(
        self, is_deployed: Callable[[str, str], bool], functions_max: int = FUNCTIONS_MAX
    ) -> None:
        self._is_deployed = is_deployed
        self._functions_max = functions_max
        self._lock = Lock()
        self._alone: set[Owner] = set()
        self._folded: dict[Owner, Numbers] = {}
        self._left: Numbers = {}

    def apply(self, numbers: Mapping[Sample, float]) -> Numbers:
        """Return `numbers` with own series for at most `functions_max` functions.

        The lock is held for the decisions alone: the event loop waits for it.
        """
        by_owner: dict[Owner, Numbers] = {}
        for sample, value in numbers.items():
            by_owner.setdefault(sample.owner, {})[sample] = value
        with self._lock:
            found, self._folded = dict(self._left), {}
            alone: list[Numbers] = []
            for owner, own in by_owner.items():
                if owner[1] in ("", OTHERS) or self._is_shown_alone(owner):
                    alone.append(own)
                elif self._is_deployed(*owner):
                    self._folded[owner] = own
            folded = list(self._folded.values())
        for sample, value in chain.from_iterable(own.items() for own in alone):
            found[sample] = found.get(sample, 0.0) + value
        for own in folded:
            _add_folded(found, own)
        return found

    def forget(self, owner: Owner) -> None:
        """Free the place of a removed function."""
        with self._lock:
            self._alone.discard(owner)
            _add_folded(self._left, self._folded.pop(owner, {}))

    def is_shown_alone(self, owner: Owner) -> bool:
        """Return whether a function has series of its own; it has them from now on."""
        with self._lock:
            return self._is_shown_alone(owner)

    def _is_shown_alone(self, owner: Owner) -> bool:
        if not self._is_deployed(*owner):
            return False  # the worker has not applied the removal yet
        if owner not in self._alone and len(self._alone) < self._functions_max:
            self._alone.add(owner)
        return owner in self._alone


def _add_folded(numbers: Numbers, folded: Mapping[Sample, float]) -> None:
    for sample, value in folded.items():
        other = _of_others(sample)
        numbers[other] = numbers.get(other, 0.0) + value


def _of_others(sample: Sample) -> Sample:
    labels = [text for pair in {**sample.by_label, "function": OTHERS}.items() for text in pair]
    return Sample(sample.name, tuple(labels))


Ask = Callable[[ReadLedger], Awaitable[Mapping[str, LedgerNow]]]
"""Asks all gateways, and returns the answers of those that give one in time, by name."""


def counted(counters: Counters) -> Balance:
    """Return the accepted and ended requests of a process, from the first of its counters."""
    found = counters.read(Ledger.NUMBERS)
    ended = {s.by_label["how"]: value for s, value in found.items() if s.name == ENDED}
    return Balance(found.get(Sample(ACCEPTED, ()), 0.0), ended)


def _newest(answers: Iterable[LedgerNow]) -> dict[Sample, Exemplar]:
    """Return the latest exemplar of each sample."""
    found: dict[Sample, Exemplar] = {}
    for one in (marked for answer in answers for marked in answer.exemplars):
        sample = Sample(one.name, one.labels)
        if sample not in found or found[sample].at_s < one.exemplar.at_s:
            found[sample] = one.exemplar
    return found


class ColdStarts:
    """Cold starts that requests waited for. That of a replica counts once, whichever gateways'
    requests waited for it."""

    def __init__(self, limit: LabelLimit, wall: Callable[[], float]) -> None:
        """`limit` is that of the page; `wall` returns Unix seconds."""
        self._limit, self._wall = limit, wall
        self._phases = Families(LocalStore(), LABELS).histogram(
            "fngate_cold_start_seconds",
            "Phases of cold starts that requests waited for.",
            SECONDS,
            "phase",
        )
        self._counted: dict[str, None] = {}
        """The replicas that were counted last."""

    def count(self, one: Woken) -> None:
        """Count a cold start, unless it was counted before. The wake of a parked replica is no cold
        start: the manager counts it."""
        is_wake = not one.phases.keys().isdisjoint(WAKE_PHASES)
        if is_wake or one.replica in self._counted:
            return
        self._counted[one.replica] = None
        if len(self._counted) > REPLICAS_MAX:
            del self._counted[next(iter(self._counted))]
        owner = one.namespace, one.function
        labels = owner if self._limit.is_shown_alone(owner) else (one.namespace, OTHERS)
        at_s = self._wall() if one.request is not None else 0.0
        for phase, ms in one.phases.items():
            self._phases.of(*labels, phase).observe(ms / 1e3, one.request, at_s)

    def remove(self, owner: Owner) -> None:
        """Remove the series of a function."""
        self._phases.remove(*owner)

    def collect(self) -> Iterable[Metric]:
        """Return the family (prometheus_client)."""
        return self._phases.collect()


class MergedMetrics:
    """Metrics page of a server: its gateways' counters, what is counted once for all of them, and
    the families of other sources.

    The ledger is that of the last `refresh`. For a gateway that has ended, all accepted but
    unanswered requests count as aborted. For one that does not answer in time, accepted but
    unfinished requests count as in flight, by its counters.
    """

    def __init__(
        self,
        ask: Ask,
        states: Callable[[], dict[str, str]],
        tasks: Callable[[], int],
        is_deployed: Callable[[str, str], bool],
        wall: Callable[[], float],
    ) -> None:
        """`states` returns the states of pools that are not at rest, `tasks` the number of tasks,
        `is_deployed` whether a function of that namespace and name exists, `wall` Unix seconds."""
        self._ask = ask
        self._is_deployed = is_deployed
        self._limit = LabelLimit(is_deployed)
        self._counters = GatewayCounters(self._stays)
        self._ended_ledger = Balance()
        self._ledgers: Mapping[str, LedgerNow] = {}
        self._seen: _Seen = ([], {}, {})
        self._cold_starts = ColdStarts(self._limit, wall)
        gateways = Source(lambda: GatewaysSeen(self.balance(), states(), tasks()), show_gateways)
        self._sources: list[Source[Any]] = [gateways]
        # Families without samples: names, kinds and texts, in the order of the page.
        self._families = Metrics(is_deployed)

    def add_source(self, source: Source[Any]) -> None:
        """Add the families of `source` to the page."""
        self._sources.append(source)

    def add(self, gateway: str, counters: Counters) -> None:
        """Read a gateway's `counters` from now on."""
        self._counters.add(gateway, counters)

    def remove(self, gateway: str) -> None:
        """Keep the counts of a gateway that has ended, except those of removed functions."""
        ended = counted(self._counters.readers[gateway]).aborted()
        self._ended_ledger = total([self._ended_ledger, ended])
        self._counters.remove(gateway)

    def _stays(self, sample: Sample) -> bool:
        if sample.name in ENDED_WITH_IT:
            return False
        return sample.owner[1] in ("", OTHERS) or self._is_deployed(*sample.owner)

    def balance(self) -> Balance:
        """Return the ledger of all gateways, including ended ones."""
        return total([self._ended_ledger, *map(self._balance_of, self._counters.readers)])

    def _balance_of(self, gateway: str) -> Balance:
        said = self._ledgers.get(gateway)
        if said is None:
            return counted(self._counters.readers[gateway]).unheard()
        return said.balance

    def count_cold_starts(self, woken: Iterable[Woken]) -> None:
        """Count replicas' cold starts that requests of a gateway waited for; each counts once."""
        for one in woken:
            self._cold_starts.count(one)

    def on_change(self, change: Change) -> None:
        """Drop the counts of a function that was removed from the catalog."""
        if change.kind == "remove":
            gone = (change.namespace, change.name)
            self._counters.forget(lambda one: one.owner == gone)
            self._limit.forget(gone)
            self._cold_starts.remove(gone)

    async def page(self, form: PageFormat) -> bytes:
        """Return the page; takes at most a second more than making it."""
        await self.refresh()
        self.snapshot()
        return await asyncio.to_thread(self.render, form)

    async def refresh(self) -> None:
        """Ask every gateway for its ledger; takes at most `ReadLedger.answer_s`."""
        self._ledgers = await self._ask(ReadLedger())

    def snapshot(self) -> None:
        """Store what `render` will read; call it in the loop's thread, so that nothing is counted
        twice."""
        for source in self._sources:
            source.snapshot()
        exemplars = _newest(self._ledgers.values())
        readers, ended = list(self._counters.readers.values()), self._counters.ended
        self._seen = readers, ended, exemplars

    def render(self, form: PageFormat = TEXT) -> bytes:
        """Return the page. Takes milliseconds: call it in a thread."""
        return form.encode(self)

    def collect(self) -> Iterable[Metric]:
        """Yield every family with the samples of all processes (prometheus_client's protocol)."""
        counters, ended, exemplars = self._seen
        total = self._limit.apply(summed([ended, *(one.read() for one in counters)]))
        by_family: dict[str, dict[Sample, float]] = {}
        for sample, value in total.items():
            if sample.name in (ACCEPTED, ENDED):
                continue  # shown by the ledger families instead
            by_family.setdefault(family_of(sample.name), {})[sample] = value
        others = (one.collect() for one in self._sources)
        for family in chain(self._families.collect(), self._cold_starts.collect(), *others):
            _add(family, by_family.get(family.name, {}), exemplars)
            yield family


def family_of(name: str) -> str:
    """Return the family of a counter's or a histogram's sample."""
    stem, _, kind = name.rpartition("_")
    return stem if kind in ("total", "bucket", "sum", "count") else name


def _add(family: Metric, numbers: dict[Sample, float], exemplars: dict[Sample, Exemplar]) -> None:
    """Add the gateways' samples to a family."""
    if family.type == "histogram":
        _add_histograms(family, numbers, exemplars)
        return
    if numbers:
        family.samples = []  # a number without labels, which starts at 0
    for sample, value in numbers.items():
        family.add_sample(sample.name, sample.by_label, value)


def _add_histograms(
    family: Metric, numbers: dict[Sample, float], exemplars: dict[Sample, Exemplar]
) -> None:
    """Add one histogram after the other: OpenMetrics requires its samples together, with rising
    buckets. A histogram is left out while a worker has not created all its numbers."""
    buckets: dict[tuple[str, ...], list[tuple[float, Sample, float]]] = {}
    for sample, value in numbers.items():
        if sample.name.endswith("_bucket"):
            # The bound comes last, and is not a label of the histogram itself.
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
            exemplar = to_prometheus(found) if found is not None else None
            family.add_sample(sample.name, sample.by_label, so_far, exemplar=exemplar)
        count = Sample(f"{family.name}_count", labels)
        family.add_sample(count.name, count.by_label, so_far)
        family.add_sample(total.name, total.by_label, numbers[total])
