"""What is counted for one function."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gateway.metrics.counting import Distribution, Number
from gateway.metrics.exemplars import Labels

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
LABELS = ("namespace", "function")
SENDS = (1, 2, 3, 4, 6, 12)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
ROWS_KNOWN: Final = ROWS[-1] + 1
BUCKET_OF_ROWS: Final = tuple(bisect_left(ROWS, rows) for rows in range(ROWS_KNOWN))
"""The bucket of each count of rows up to the last bound: half the time of a search."""


class Served(NamedTuple):
    """Places in the store of all that an answer of a replica is counted in: lists have that of each
    bucket."""

    ok: int
    durations: list[int]
    duration_sum: int
    queues: list[int]
    queue_sum: int
    rows: list[int]
    rows_sum: int
    sent_once: int
    sends_sum: int


@dataclass(slots=True)
class Series:
    """One function's children. Binding them costs more than using them: each is bound once.
    `served` is None until a replica has answered: before, the page shows no such counter."""

    labels: tuple[str, str]
    duration: Distribution
    queue: Distribution
    sends: Distribution
    rows: Distribution
    outcomes: dict[tuple[str, str], Number] = field(default_factory=dict)
    served: Served | None = None

    def bind_served(self, ok: Number) -> Served:
        """Where answers of replicas are counted from now on; `ok` is their counter."""
        rows, rows_sum = self.rows.places
        sends, sends_sum = self.sends.places
        once = sends[bisect_left(SENDS, 1)]
        self.served = Served(
            ok.place, *self.duration.places, *self.queue.places, rows, rows_sum, once, sends_sum
        )
        return self.served

    def mark(self, seconds: float, queue_s: float, request: Labels, at_s: float) -> None:
        """What was counted last is of this request; `at_s` in Unix seconds."""
        self.duration.mark(seconds, request, at_s)
        self.queue.mark(queue_s, request, at_s)
