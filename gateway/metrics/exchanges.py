"""Metric families of server functions: open exchanges, time to the first byte, bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.metrics.counters import (
    CounterFamily,
    CounterStore,
    Histogram,
    HistogramFamily,
    Labels,
)

OPEN: Final = "fngate_exchanges_open"
SECONDS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
    300.0,
)
"""Bounds of the time to the first byte: those of a request's duration, and the usual limit."""
DIRECTIONS: Final = ("in", "out")


class GaugeFamily(Collector):
    """Numbers that rise and fall, one per combination of label values."""

    def __init__(
        self, name: str, text: str, labelnames: tuple[str, ...], store: CounterStore
    ) -> None:
        self._name_and_text = (name, text)
        self._labelnames = labelnames
        self._store = store
        self._places: dict[tuple[str, ...], int] = {}

    def inc(self, *labelvalues: str) -> None:
        """Add 1."""
        place = self._places.get(labelvalues)
        if place is None:
            place = self._store.allocate(self._name_and_text[0], self._labelnames, labelvalues)
            self._places[labelvalues] = place
        self._store.values[place] += 1.0

    def dec(self, *labelvalues: str) -> None:
        """Subtract 1, unless the number was removed meanwhile."""
        place = self._places.get(labelvalues)
        if place is not None:
            self._store.values[place] -= 1.0

    def remove(self, *labelvalues: str) -> None:
        """Remove the number with these labels from the page."""
        place = self._places.pop(labelvalues, None)
        if place is not None:
            self._store.free(place)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the family (prometheus_client)."""
        family = GaugeMetricFamily(*self._name_and_text, labels=self._labelnames)
        for labelvalues, place in list(self._places.items()):
            family.add_metric(labelvalues, self._store.values[place])
        return [family]


class ExchangeFamilies:
    """The families; `labels` are a function's namespace and name, as `Metrics` bounds them."""

    def __init__(self, labelnames: tuple[str, ...], store: CounterStore) -> None:
        text = "Requests of server functions that are being held, answered or tunnelled."
        self._open = GaugeFamily(OPEN, text, labelnames, store)
        text = "Time from sending a request to a server function to the first byte of its answer."
        self._first_byte = HistogramFamily(
            "fngate_first_byte_seconds", text, labelnames, SECONDS, store
        )
        text = "Bytes of bodies of server functions, by direction (in: requests, out: answers)."
        names = (*labelnames, "direction")
        self._bytes = CounterFamily("fngate_exchange_bytes", text, names, store)
        self.collectors = (self._open, self._first_byte, self._bytes)

    def opened(self, labels: Labels) -> None:
        """Count an exchange that begins."""
        self._open.inc(*labels)

    def ended(self, labels: Labels, sizes: tuple[int, int]) -> None:
        """Count the end of an exchange. `sizes`: bytes of the request's and the answer's body."""
        self._open.dec(*labels)
        for direction, size in zip(DIRECTIONS, sizes, strict=True):
            self._bytes.of(*labels, direction).inc(size)

    def answered(self, labels: Labels, seconds: float, request: Labels | None, at_s: float) -> None:
        """Count the first byte of an answer; `request`: labels of its exemplar."""
        self._first_byte.of(*labels).observe(seconds, request, at_s)

    def first_byte(self, labels: Labels) -> Histogram | None:
        """Return the times to the first byte of a function that has answered."""
        return self._first_byte.known(*labels)

    def remove(self, labels: Labels) -> None:
        """Remove the numbers of a function that was removed."""
        self._open.remove(*labels)
        self._first_byte.remove(*labels)
        for direction in DIRECTIONS:
            self._bytes.remove(*labels, direction)
