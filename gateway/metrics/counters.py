"""Counters and distributions that cost next to nothing to count in.

Shown by prometheus_client, counted by ourselves: its own take a lock for every number and look
through all bounds, which for one request is more than dispatching it. Here only the loop's thread
counts, each number belongs to one object that its owner keeps, and other threads only read.

Which request a bucket of a histogram was last of: the way from a number to its trace or log.

The form of `/metrics` that a scraper asks for: OpenMetrics 1.0 or Prometheus text. Pure.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, MutableSequence, Sequence
from heapq import nlargest
from itertools import accumulate, chain
from typing import Final, NamedTuple, Protocol

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar as ShownExemplar
from prometheus_client.utils import floatToGoString

Labels = tuple[str, ...]
"""Label names and values in turns."""

CHARACTERS_MAX: Final = 128
"""Of all names and values of one exemplar together: OpenMetrics 1.0, section "Exemplars"."""
FRESH_S: Final = 1.0
"""How long a bucket keeps its exemplar: a new one for each request would cost as much as counting
it, and Prometheus scrapes less often."""
_TRACEPARENT: Final = re.compile("[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-([0-9a-f]{2})")
"""W3C Trace Context: version, trace id, parent id, flags."""
_SAMPLED: Final = 0x01


class Exemplar(NamedTuple):
    """A request by its `labels`, the value that was observed of it, and when (Unix seconds)."""

    labels: Labels
    value: float
    at_s: float

    def is_fresh(self, at_s: float) -> bool:
        """Whether it is good enough at `at_s`; not so after the clock was set back."""
        return 0.0 <= at_s - self.at_s < FRESH_S


class SampleExemplar(NamedTuple):
    """The exemplar of one sample, which is known by its name and labels."""

    name: str
    labels: Labels
    exemplar: Exemplar


def exemplar_of(request_id: str, traceparent: str) -> Labels | None:
    """What leads to a request: its id and its trace, where that is kept. "" is what it has not, and
    an id that leaves no room for the trace is left out; None where there is nothing to say."""
    labels: Labels = ()
    found = _TRACEPARENT.fullmatch(traceparent) if traceparent else None
    if found is not None and int(found[2], 16) & _SAMPLED:
        labels = ("trace_id", found[1])
    if request_id and sum(map(len, labels)) + len("request_id" + request_id) <= CHARACTERS_MAX:
        labels = ("request_id", request_id, *labels)
    return labels or None


UNITS = ("seconds", "bytes", "ratio")
Row = tuple[str, float] | tuple[str, float, ShownExemplar]
"""A bucket: its bound, values up to it, and the request that it was last of."""


class CounterStore(Protocol):
    """Where numbers are. `values` may only be counted in by the loop's thread."""

    @property
    def values(self) -> MutableSequence[float]:
        """Every number, by its place."""

    def allocate(self, name: str, labelnames: Sequence[str], labelvalues: Sequence[str]) -> int:
        """The place of a number that begins at 0: by its sample's name, label names and values."""

    def free(self, place: int) -> None:
        """Nobody counts at this place any more: another number may have it."""


SPARE: Final = 4096
"""Places that rest before they are given out again: a page that is being made in a thread may
still read what they were. A function called has about 60."""


class LocalStore:
    """Numbers in this process's own memory."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self._free: deque[int] = deque()

    def allocate(self, name: str, labelnames: Sequence[str], labelvalues: Sequence[str]) -> int:  # noqa: ARG002 - Store's
        """As Store says."""
        if len(self._free) > SPARE:
            place = self._free.popleft()
            self.values[place] = 0.0
            return place
        self.values.append(0.0)
        return len(self.values) - 1

    def free(self, place: int) -> None:
        """As Store says."""
        self._free.append(place)


class Counter:
    """One number that grows; at `place` of its store."""

    __slots__ = ("_values", "place")

    def __init__(self, values: MutableSequence[float], place: int) -> None:
        self._values = values
        self.place = place

    def inc(self, amount: float) -> None:
        """Add."""
        self._values[self.place] += amount

    def get(self) -> float:
        """The number now."""
        return self._values[self.place]


class CounterFamily(Collector):
    """Counters of one name, one for each combination of label values."""

    def __init__(
        self, name: str, text: str, labelnames: tuple[str, ...], store: CounterStore
    ) -> None:
        self._about = (name, text)
        self._labelnames = labelnames
        self._store = store
        self._numbers: dict[tuple[str, ...], Counter] = {}

    def of(self, *labelvalues: str) -> Counter:
        """The counter with these labels; to be kept by whoever counts often."""
        number = self._numbers.get(labelvalues)
        if number is None:
            name = f"{self._about[0]}_total"
            place = self._store.allocate(name, self._labelnames, labelvalues)
            number = self._numbers[labelvalues] = Counter(self._store.values, place)
        return number

    def remove(self, *labelvalues: str) -> None:
        """Show it no more; nobody may count in it any more."""
        number = self._numbers.pop(labelvalues, None)
        if number is not None:
            self._store.free(number.place)

    def collect(self) -> Iterable[CounterMetricFamily]:
        """prometheus_client's: the family."""
        unit = unit_of(self._about[0])
        family = CounterMetricFamily(*self._about, labels=self._labelnames, unit=unit)
        for labelvalues, number in list(self._numbers.items()):
            family.add_metric(labelvalues, number.get())
        return [family]


class Histogram:
    """Counts values by the bound that they do not exceed, and sums them up. `exemplars` has one
    at most for each bucket that a named request fell into, by the bucket's number."""

    __slots__ = ("_bounds", "_buckets", "_total", "_values", "exemplars")

    def __init__(
        self,
        bounds: Sequence[float],
        values: MutableSequence[float],
        buckets: list[int],
        total: int,
    ) -> None:
        """`buckets` and `total` are places; there is one bucket more than there are bounds."""
        self._bounds = bounds
        self._values = values
        self._buckets = buckets
        self._total = total
        self.exemplars: dict[int, Exemplar] = {}

    @property
    def places(self) -> tuple[list[int], int]:
        """Of its buckets and of its sum: for whoever counts there without a call."""
        return self._buckets, self._total

    def observe(self, value: float, request: Labels | None = None, at_s: float = 0.0) -> None:
        """Count a value. `request` names whose it is, `at_s` when (Unix seconds)."""
        values = self._values
        values[self._buckets[bisect_left(self._bounds, value)]] += 1.0
        values[self._total] += value
        if request is not None:
            self.mark(value, request, at_s)

    def mark(self, value: float, request: Labels, at_s: float) -> None:
        """A value that was counted is an exemplar, if its bucket needs one."""
        bucket = bisect_left(self._bounds, value)
        kept = self.exemplars.get(bucket)
        if kept is None or not kept.is_fresh(at_s):
            self.exemplars[bucket] = Exemplar(request, value, at_s)

    def buckets(self) -> list[int]:
        """Values in each bucket, the one beyond all bounds last."""
        return [int(self._values[place]) for place in self._buckets]

    def counts(self) -> list[float]:
        """Values up to each bound, all of them last."""
        return list(accumulate(self._values[place] for place in self._buckets))

    @property
    def total(self) -> float:
        """The sum of all values."""
        return self._values[self._total]


class HistogramFamily(Collector):
    """Histograms of one name and the same `bounds`, one for each combination of label values."""

    def __init__(
        self,
        name: str,
        text: str,
        labelnames: tuple[str, ...],
        bounds: Sequence[float],
        store: CounterStore,
    ) -> None:
        self._about = (name, text)
        self._labelnames = labelnames
        self._bounds = [float(bound) for bound in bounds]
        self._shown = [*map(floatToGoString, self._bounds), "+Inf"]
        self._store = store
        self._children: dict[tuple[str, ...], Histogram] = {}

    def of(self, *labelvalues: str) -> Histogram:
        """The histogram with these labels; to be kept by whoever counts often."""
        child = self._children.get(labelvalues)
        if child is None:
            child = self._children[labelvalues] = self._make(labelvalues)
        return child

    def _make(self, labelvalues: tuple[str, ...]) -> Histogram:
        name, names, take = self._about[0], (*self._labelnames, "le"), self._store.allocate
        buckets = [take(f"{name}_bucket", names, (*labelvalues, bound)) for bound in self._shown]
        total = take(f"{name}_sum", self._labelnames, labelvalues)
        return Histogram(self._bounds, self._store.values, buckets, total)

    def remove(self, *labelvalues: str) -> None:
        """Show it no more; nobody may count in it any more."""
        child = self._children.pop(labelvalues, None)
        if child is not None:
            buckets, total = child.places
            for place in (*buckets, total):
                self._store.free(place)

    def kept(self) -> Iterator[BucketExemplar]:
        """Every exemplar there is."""
        for labelvalues, child in list(self._children.items()):
            for bucket, exemplar in list(child.exemplars.items()):
                yield BucketExemplar(exemplar, self, labelvalues, bucket)

    def marked(self, kept: BucketExemplar) -> SampleExemplar:
        """An exemplar of this histogram, by the sample that it belongs to."""
        names, values = (*self._labelnames, "le"), (*kept.labelvalues, self._shown[kept.bucket])
        labels = tuple(text for pair in zip(names, values, strict=True) for text in pair)
        return SampleExemplar(f"{self._about[0]}_bucket", labels, kept.exemplar)

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """prometheus_client's: the family."""
        unit = unit_of(self._about[0])
        family = HistogramMetricFamily(*self._about, labels=self._labelnames, unit=unit)
        for labelvalues, child in list(self._children.items()):
            family.add_metric(labelvalues, self._rows(child), child.total)
        return [family]

    def _rows(self, child: Histogram) -> list[Row]:
        rows: list[Row] = list(zip(self._shown, child.counts(), strict=True))
        for bucket, exemplar in list(child.exemplars.items()):
            rows[bucket] = (*rows[bucket][:2], to_prometheus(exemplar))
        return rows


class BucketExemplar(NamedTuple):
    """An exemplar of one bucket of one child."""

    exemplar: Exemplar
    of: HistogramFamily
    labelvalues: tuple[str, ...]
    bucket: int


def newest_exemplars(histograms: Iterable[HistogramFamily], count: int) -> list[SampleExemplar]:
    """The latest exemplars of all these, so many at most."""
    kept = chain.from_iterable(one.kept() for one in histograms)
    # What they are of is put into words only for the few: this is done in the loop's thread.
    return [one.of.marked(one) for one in nlargest(count, kept, key=_made_s)]


def _made_s(kept: BucketExemplar) -> float:
    return kept.exemplar.at_s


def to_prometheus(exemplar: Exemplar) -> ShownExemplar:
    """As prometheus_client has it."""
    labels = exemplar.labels
    by_name = dict(zip(labels[::2], labels[1::2], strict=True))
    return ShownExemplar(by_name, exemplar.value, exemplar.at_s)


def unit_of(name: str) -> str:
    """The unit that a family's name ends with, "" for none."""
    last = name.rpartition("_")[2]
    return last if last in UNITS else ""


RANGES_MAX: Final = 32
"""Media ranges of one header that are looked at."""
_OPENMETRICS_TYPE: Final = "application/openmetrics-text"
_VERSIONS: Final = ("", "0.0.1", "1.0.0")


class PageFormat(NamedTuple):
    """A form of the page: how it is called, and what writes it."""

    content_type: str
    encode: Callable[[Collector], bytes]


TEXT: Final = PageFormat("text/plain; version=0.0.4; charset=utf-8", generate_latest)
OPENMETRICS: Final = PageFormat(
    "application/openmetrics-text; version=1.0.0; charset=utf-8", openmetrics.generate_latest
)


def negotiate_format(accept: str) -> PageFormat:
    """What the header `Accept` prefers (RFC 9110, section 12.5.1). Text where it has no
    preference, or would have neither: every scraper reads that."""
    best = {True: 0.0, False: 0.0}
    for kind, version, quality in _ranges(accept):
        if kind == _OPENMETRICS_TYPE and version in _VERSIONS:
            best[True] = max(best[True], quality)
        elif kind in ("text/plain", "text/*", "*/*"):
            best[False] = max(best[False], quality)
    return OPENMETRICS if best[True] and best[True] >= best[False] else TEXT


def _ranges(accept: str) -> Iterator[tuple[str, str, float]]:
    """Media type, version and quality of each range; one that cannot be read has quality 0."""
    for text in accept.split(",")[:RANGES_MAX]:
        kind, *rest = (part.strip().lower() for part in text.split(";"))
        given = {}
        for part in rest:
            name, _, value = part.partition("=")
            given[name.strip()] = value.strip().strip('"')
        yield kind, given.get("version", ""), _quality(given.get("q", "1"))


def _quality(text: str) -> float:
    try:
        quality = float(text)
    except ValueError:
        return 0.0
    return quality if 0.0 <= quality <= 1.0 else 0.0
