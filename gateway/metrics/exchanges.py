"""Metric families of server functions: open exchanges, time to the first byte, bytes."""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import Final

from gateway.metrics.counters import Families, GaugeFamily, Histogram, Labels

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

    __slots__ = ("_bytes_in", "_bytes_out", "_open", "_values", "first_byte", "is_removed")

    def __init__(
        self,
        values: MutableSequence[float],
        places: tuple[int, int, int],
        first_byte: Histogram,
    ) -> None:
        """`places`: of the open exchanges, and of the bytes of requests and answers."""
        self._values = values
        self._open, self._bytes_in, self._bytes_out = places
        self.first_byte = first_byte
        self.is_removed = False

    def opened(self) -> None:
        """Count an exchange that begins."""
        if not self.is_removed:
            self._values[self._open] += 1.0

    def answered(self, seconds: float, request: Labels | None, at_s: float) -> None:
        """Count the first byte of an answer; `request`: labels of its exemplar."""
        if not self.is_removed:
            self.first_byte.observe(seconds, request, at_s)

    def ended(self, sizes: tuple[int, int]) -> None:
        """Count the end of an exchange. `sizes`: bytes of the request's and the answer's body."""
        if not self.is_removed:
            values = self._values
            values[self._open] -= 1.0
            values[self._bytes_in] += sizes[0]
            values[self._bytes_out] += sizes[1]


class ExchangeFamilies:
    """The families of exchanges."""

    def __init__(self, families: Families) -> None:
        text = "Requests of server functions that are being held, answered or tunnelled."
        self._open = families.add(GaugeFamily(OPEN, text, families.labels, families.store))
        self._first_byte = families.histogram(
            "fngate_first_byte_seconds",
            "Time from sending a request to a server function to the first byte of its answer.",
            SECONDS,
        )
        self._bytes = families.counter(
            "fngate_exchange_bytes",
            "Bytes of bodies of server functions, by direction (in: requests, out: answers).",
            "direction",
        )
        self._values = families.store.values

    def bind(self, labels: Labels) -> ExchangeNumbers:
        """Return the numbers of a function."""
        sizes = [self._bytes.of(*labels, direction).place for direction in DIRECTIONS]
        places = (self._open.of(*labels).place, sizes[0], sizes[1])
        return ExchangeNumbers(self._values, places, self._first_byte.of(*labels))
