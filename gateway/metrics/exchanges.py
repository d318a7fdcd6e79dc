"""Metric families of server functions: open exchanges, time to the first byte, bytes."""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import Final

from gateway.metrics.counters import (
    CounterFamily,
    CounterStore,
    GaugeFamily,
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


class ExchangeNumbers:
    """The numbers of one function, looked up once. `is_removed`: they count nothing any more.

    An exchange may end after its function was removed; the places may have another owner then.
    """

    __slots__ = ("_bytes_in", "_bytes_out", "_first_byte", "_open", "_values", "is_removed")

    def __init__(
        self,
        values: MutableSequence[float],
        places: tuple[int, int, int],
        first_byte: Histogram,
    ) -> None:
        """`places`: of the open exchanges, and of the bytes of requests and answers."""
        self._values = values
        self._open, self._bytes_in, self._bytes_out = places
        self._first_byte = first_byte
        self.is_removed = False

    def opened(self) -> None:
        """Count an exchange that begins."""
        if not self.is_removed:
            self._values[self._open] += 1.0

    def answered(self, seconds: float, request: Labels | None, at_s: float) -> None:
        """Count the first byte of an answer; `request`: labels of its exemplar."""
        if not self.is_removed:
            self._first_byte.observe(seconds, request, at_s)

    def ended(self, sizes: tuple[int, int]) -> None:
        """Count the end of an exchange. `sizes`: bytes of the request's and the answer's body."""
        if not self.is_removed:
            values = self._values
            values[self._open] -= 1.0
            values[self._bytes_in] += sizes[0]
            values[self._bytes_out] += sizes[1]


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
        self._values = store.values
        self._numbers: dict[Labels, ExchangeNumbers] = {}
        self.collectors = (self._open, self._first_byte, self._bytes)

    def of(self, labels: Labels) -> ExchangeNumbers:
        """Return the numbers of a function."""
        numbers = self._numbers.get(labels)
        if numbers is None:
            counters = [self._bytes.of(*labels, direction) for direction in DIRECTIONS]
            first_byte = self._first_byte.of(*labels)
            places = (self._open.of(*labels).place, counters[0].place, counters[1].place)
            numbers = self._numbers[labels] = ExchangeNumbers(self._values, places, first_byte)
        return numbers

    def first_byte(self, labels: Labels) -> Histogram | None:
        """Return the times to the first byte of a function that has answered."""
        return self._first_byte.known(*labels)

    def remove(self, labels: Labels) -> None:
        """Remove the numbers of a function that was removed."""
        numbers = self._numbers.pop(labels, None)
        if numbers is not None:
            numbers.is_removed = True
        for family in self.collectors:
            family.remove(*labels)
