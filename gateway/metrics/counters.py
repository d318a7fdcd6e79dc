"""Counters and histograms, their exemplars, and the formats of `/metrics`.

prometheus_client renders the page; counting is done here. The library's own counters take a lock
per number and search all bounds, which takes longer than dispatching a request. Here only the event
loop's thread counts, each number has one owner, and other threads only read.

An exemplar is the last request of a histogram's bucket. It leads from a number to a trace or a log
line.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, MutableSequence, Sequence
from heapq import nlargest
from itertools import accumulate, chain
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from prometheus_client import generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar as ShownExemplar
from prometheus_client.utils import floatToGoString

from runtime_image.codecs.accept import media_ranges

Labels = tuple[str, ...]
"""Label names and values, alternating."""

CHARACTERS_MAX: Final = 128
"""Max characters of all names and values of one exemplar (OpenMetrics 1.0, section "Exemplars")."""
FRESH_S: Final = 1.0
"""Seconds for which a bucket keeps its exemplar. A new exemplar for each request would take as long
as counting the request, and Prometheus scrapes less often."""
_TRACEPARENT: Final = re.compile("[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-([0-9a-f]{2})")
"""W3C Trace Context: version, trace id, parent id, flags."""
_SAMPLED: Final = 0x01


class Exemplar(NamedTuple):
    """Labels of a request, its observed value, and when it was observed (Unix seconds)."""

    labels: Labels
    value: float
    at_s: float

    def is_fresh(self, at_s: float) -> bool:
        """Return whether it is less than FRESH_S old at `at_s`; False if the clock was set back."""
        return 0.0 <= at_s - self.at_s < FRESH_S


class SampleExemplar(NamedTuple):
    """Exemplar of one sample, with the sample's name and labels."""

    name: str
    labels: Labels
    exemplar: Exemplar


def exemplar_of(request_id: str, traceparent: str) -> Labels | None:
    """Return labels that lead to a request: its id, and its trace if that is sampled.

    An id that would leave no room for the trace is omitted. None if there is neither.
    """
    labels: Labels = ()
    found = _TRACEPARENT.fullmatch(traceparent) if traceparent else None
    if found is not None and int(found[2], 16) & _SAMPLED:
        labels = ("trace_id", found[1])
    if request_id and sum(map(len, labels)) + len("request_id" + request_id) <= CHARACTERS_MAX:
        labels = ("request_id", request_id, *labels)
    return labels or None


UNITS = ("seconds", "bytes", "ratio")
Row = tuple[str, float] | tuple[str, float, ShownExemplar]
"""One bucket: its bound, the count of values up to it, and its exemplar."""


class CounterStore(Protocol):
    """Storage of numbers. Only the event loop's thread may change `values`."""

    @property
    def values(self) -> MutableSequence[float]:
        """Every number, by its place."""

    def allocate(self, name: str, labelnames: Sequence[str], labelvalues: Sequence[str]) -> int:
        """Return the place of a new number (0.0) for the sample with this name and labels."""

    def free(self, place: int) -> None:
        """Release the number at this place for reuse."""


SPARE: Final = 4096
"""Freed places that are kept before reuse: a page that a thread is rendering may still read them. A
called function has about 60 places."""


class LocalStore:
    """Numbers in this process's own memory."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self._free: deque[int] = deque()

    def allocate(self, name: str, labelnames: Sequence[str], labelvalues: Sequence[str]) -> int:  # noqa: ARG002 - the protocol
        """Implement `CounterStore.allocate`."""
        if len(self._free) > SPARE:
            place = self._free.popleft()
            self.values[place] = 0.0
            return place
        self.values.append(0.0)
        return len(self.values) - 1

    def free(self, place: int) -> None:
        """Implement `CounterStore.free`."""
        self._free.append(place)


class Counter:
    """One number of a family, at `place` of its store."""

    __slots__ = ("_values", "place")

    def __init__(self, values: MutableSequence[float], place: int) -> None:
        self._values = values
        self.place = place

    @property
    def all_places(self) -> Iterable[int]:
        """All places in the store."""
        return (self.place,)

    def inc(self, amount: float) -> None:
        """Add `amount`."""
        self._values[self.place] += amount

    def get(self) -> float:
        """Return the current number."""
        return self._values[self.place]


One = TypeVar("One", bound="Counter | Histogram")


class Family(Collector, ABC, Generic[One]):
    """Numbers with one name, `One` per combination of label values. The first two labels are the
    namespace and the name of a function, if there are any."""

    def __init__(
        self, name: str, text: str, labelnames: tuple[str, ...], store: CounterStore
    ) -> None:
        self._name_and_text = (name, text)
        self._labelnames = labelnames
        self._store = store
        self._children: dict[tuple[str, ...], One] = {}
        self._of_function: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
        """Label values by function."""

    def of(self, *labelvalues: str) -> One:
        """Return the numbers with these labels; frequent callers cache them."""
        child = self._children.get(labelvalues)
        if child is None:
            child = self._children[labelvalues] = self._make(labelvalues)
            self._of_function.setdefault(labelvalues[:2], []).append(labelvalues)
        return child

    def remove(self, *function: str) -> None:
        """Remove the numbers of a function from the page; they must not be used any more."""
        for labelvalues in self._of_function.pop(function, ()):
            for place in self._children.pop(labelvalues).all_places:
                self._store.free(place)

    @abstractmethod
    def _make(self, labelvalues: tuple[str, ...]) -> One:
        """Return new numbers with these labels."""


class CounterFamily(Family[Counter]):
    """Numbers with one name that only grow, one per combination of label values."""

    _suffix = "_total"
    _metric: type[CounterMetricFamily | GaugeMetricFamily] = CounterMetricFamily

    def _make(self, labelvalues: tuple[str, ...]) -> Counter:
        name = self._name_and_text[0] + self._suffix
        place = self._store.allocate(name, self._labelnames, labelvalues)
        return Counter(self._store.values, place)

    def collect(self) -> Iterable[CounterMetricFamily | GaugeMetricFamily]:
        """Return the family (prometheus_client)."""
        unit = unit_of(self._name_and_text[0])
        family = self._metric(*self._name_and_text, labels=self._labelnames, unit=unit)
        for labelvalues, number in list(self._children.items()):
            family.add_metric(labelvalues, number.get())
        return [family]


class GaugeFamily(CounterFamily):
    """Numbers with one name that rise and fall, one per combination of label values."""

    _suffix = ""
    _metric = GaugeMetricFamily


class Histogram:
    """Counts values by bucket and sums them up.

    `exemplars` has at most one exemplar per bucket, by the bucket's number.
    """

    __slots__ = ("_bounds", "_buckets", "_total", "_values", "exemplars")

    def __init__(
        self,
        bounds: Sequence[float],
        values: MutableSequence[float],
        buckets: list[int],
        total: int,
    ) -> None:
        """`buckets` and `total` are places; there is one more bucket than there are bounds."""
        self._bounds = bounds
        self._values = values
        self._buckets = buckets
        self._total = total
        self.exemplars: dict[int, Exemplar] = {}

    @property
    def places(self) -> tuple[list[int], int]:
        """Places of the buckets and of the sum, for counting without a call."""
        return self._buckets, self._total

    @property
    def all_places(self) -> Iterable[int]:
        """All places in the store."""
        return (*self._buckets, self._total)

    def observe(self, value: float, request: Labels | None = None, at_s: float = 0.0) -> None:
        """Count a value observed at `at_s` (Unix seconds); `request`: labels of its exemplar."""
        values = self._values
        values[self._buckets[bisect_left(self._bounds, value)]] += 1.0
        values[self._total] += value
        if request is not None:
            self.mark(value, request, at_s)

    def mark(self, value: float, request: Labels, at_s: float) -> None:
        """Make a counted value the exemplar of its bucket, unless the bucket has a fresh one."""
        bucket = bisect_left(self._bounds, value)
        kept = self.exemplars.get(bucket)
        if kept is None or not kept.is_fresh(at_s):
            self.exemplars[bucket] = Exemplar(request, value, at_s)

    def buckets(self) -> list[int]:
        """Return the count in each bucket; the last bucket is beyond all bounds."""
        return [int(self._values[place]) for place in self._buckets]

    def counts(self) -> list[float]:
        """Return the cumulative counts: values up to each bound, and finally all values."""
        return list(accumulate(self._values[place] for place in self._buckets))

    @property
    def total(self) -> float:
        """Sum of all values."""
        return self._values[self._total]


class HistogramFamily(Family[Histogram]):
    """Histograms with one name and the same `bounds`, one per combination of label values."""

    def __init__(
        self,
        name: str,
        text: str,
        labelnames: tuple[str, ...],
        bounds: Sequence[float],
        store: CounterStore,
    ) -> None:
        super().__init__(name, text, labelnames, store)
        self._bounds = [float(bound) for bound in bounds]
        self._shown = [*map(floatToGoString, self._bounds), "+Inf"]

    def _make(self, labelvalues: tuple[str, ...]) -> Histogram:
        name, names, take = self._name_and_text[0], (*self._labelnames, "le"), self._store.allocate
        buckets = [take(f"{name}_bucket", names, (*labelvalues, bound)) for bound in self._shown]
        total = take(f"{name}_sum", self._labelnames, labelvalues)
        return Histogram(self._bounds, self._store.values, buckets, total)

    def kept(self) -> Iterator[BucketExemplar]:
        """Iterate over every exemplar of every histogram."""
        for labelvalues, child in list(self._children.items()):
            for bucket, exemplar in list(child.exemplars.items()):
                yield BucketExemplar(exemplar, self, labelvalues, bucket)

    def marked(self, kept: BucketExemplar) -> SampleExemplar:
        """Return an exemplar of this family with the name and labels of its sample."""
        names, values = (*self._labelnames, "le"), (*kept.labelvalues, self._shown[kept.bucket])
        labels = tuple(text for pair in zip(names, values, strict=True) for text in pair)
        return SampleExemplar(f"{self._name_and_text[0]}_bucket", labels, kept.exemplar)

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """Return the family (prometheus_client)."""
        unit = unit_of(self._name_and_text[0])
        family = HistogramMetricFamily(*self._name_and_text, labels=self._labelnames, unit=unit)
        for labelvalues, child in list(self._children.items()):
            family.add_metric(labelvalues, self._rows(child), child.total)
        return [family]

    def _rows(self, child: Histogram) -> list[Row]:
        rows: list[Row] = list(zip(self._shown, child.counts(), strict=True))
        for bucket, exemplar in list(child.exemplars.items()):
            rows[bucket] = (*rows[bucket][:2], to_prometheus(exemplar))
        return rows


AnyFamily = TypeVar("AnyFamily", bound=CounterFamily | HistogramFamily)


class Families:
    """Makes the families of one store. `labels` are those of a function's numbers, `made` has all
    families in the order of the page."""

    def __init__(self, store: CounterStore, labels: tuple[str, str]) -> None:
        self.store = store
        self.labels = labels
        self.made: list[CounterFamily | HistogramFamily] = []

    def add(self, family: AnyFamily) -> AnyFamily:
        """Add a family and return it."""
        self.made.append(family)
        return family

    def counter(self, name: str, text: str, *more: str) -> CounterFamily:
        """Return new counters by function, and by `more` labels."""
        return self.add(CounterFamily(name, text, (*self.labels, *more), self.store))

    def histogram(
        self, name: str, text: str, bounds: Sequence[float], *more: str
    ) -> HistogramFamily:
        """Return new histograms by function, and by `more` labels."""
        return self.add(HistogramFamily(name, text, (*self.labels, *more), bounds, self.store))

    def remove(self, *function: str) -> None:
        """Remove the numbers of a function, by namespace and name, from all families."""
        for family in self.made:
            family.remove(*function)


class BucketExemplar(NamedTuple):
    """Exemplar of one bucket of one histogram."""

    exemplar: Exemplar
    of: HistogramFamily
    labelvalues: tuple[str, ...]
    bucket: int


def newest_exemplars(histograms: Iterable[HistogramFamily], count: int) -> list[SampleExemplar]:
    """Return the newest exemplars of all families, at most `count`."""
    kept = chain.from_iterable(one.kept() for one in histograms)
    # Sample names are built only for the returned ones: this runs in the event loop's thread.
    return [one.of.marked(one) for one in nlargest(count, kept, key=lambda one: one.exemplar.at_s)]


def to_prometheus(exemplar: Exemplar) -> ShownExemplar:
    """Convert an exemplar to prometheus_client's type."""
    labels = exemplar.labels
    by_name = dict(zip(labels[::2], labels[1::2], strict=True))
    return ShownExemplar(by_name, exemplar.value, exemplar.at_s)


def unit_of(name: str) -> str:
    """Return the unit at the end of a family's name, "" for none."""
    last = name.rpartition("_")[2]
    return last if last in UNITS else ""


_OPENMETRICS_TYPE: Final = "application/openmetrics-text"
_VERSIONS: Final = ("", "0.0.1", "1.0.0")


class PageFormat(NamedTuple):
    """Format of the page: its content type and its encoder."""

    content_type: str
    encode: Callable[[Collector], bytes]


TEXT: Final = PageFormat("text/plain; version=0.0.4; charset=utf-8", generate_latest)
OPENMETRICS: Final = PageFormat(
    "application/openmetrics-text; version=1.0.0; charset=utf-8", openmetrics.generate_latest
)


def negotiate_format(accept: str) -> PageFormat:
    """Return the format that the header `Accept` prefers (RFC 9110, section 12.5.1).

    The text format, which every scraper reads, if the header has no preference or accepts neither.
    """
    best = {True: 0.0, False: 0.0}
    for one in media_ranges(accept):
        if one.type == _OPENMETRICS_TYPE and one.parameters.get("version", "") in _VERSIONS:
            best[True] = max(best[True], one.quality)
        elif one.type in ("text/plain", "text/*", "*/*"):
            best[False] = max(best[False], one.quality)
    return OPENMETRICS if best[True] and best[True] >= best[False] else TEXT
