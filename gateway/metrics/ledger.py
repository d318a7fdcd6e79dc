"""Ledger of accepted requests: each one is held, in flight, or has ended in one way. Pure.

Accepted and ended requests are counted at those events; held and in-flight requests are counted
from the dispatcher's state. Neither side is computed from the other, so a difference reveals a lost
request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from gateway.metrics.counters import CounterStore

ENDINGS: Final = ("completed", "failed", "cancelled", "expired", "aborted")
"""How a request ends: answered by a replica; with an error; its client disconnected; its wait
budget expired; its gateway process died."""
ACCEPTED: Final = "fngate_accepted_total"
ENDED: Final = "fngate_ended_total"
UNKNOWN_POOL: Final = "_unknown"
"""Pool label for requests in flight in a process that does not report pools."""

Count = TypeVar("Count", int, float)


@dataclass(frozen=True, slots=True)
class Balance:
    """The ledger at one moment.

    `held` and `in_flight` are numbers of requests by pool. A request whose client has disconnected
    counts as cancelled, even while a replica still has it.
    """

    accepted: float = 0.0
    ended: Mapping[str, float] = field(default_factory=dict)
    held: Mapping[str, int] = field(default_factory=dict)
    in_flight: Mapping[str, int] = field(default_factory=dict)

    @property
    def missing(self) -> float:
        """Accepted requests that are in no place; negative if some are in two.

        0 unless there is a defect.
        """
        there = sum(self.held.values()) + sum(self.in_flight.values())
        return self.accepted - sum(self.ended.values()) - there

    def aborted(self) -> Balance:
        """Return the balance after the process died: requests that had not ended were aborted."""
        left = self.accepted - sum(self.ended.values())
        return Balance(self.accepted, _sum([self.ended, {"aborted": left}]))

    def unheard(self) -> Balance:
        """Return the balance of a running process whose counters are the only readable data."""
        left = round(self.accepted - sum(self.ended.values()))
        return Balance(self.accepted, self.ended, {}, {UNKNOWN_POOL: left} if left else {})


def total(balances: Iterable[Balance]) -> Balance:
    """Return the sum over all processes."""
    every = list(balances)
    return Balance(
        sum(one.accepted for one in every),
        _sum(one.ended for one in every),
        _sum(one.held for one in every),
        _sum(one.in_flight for one in every),
    )


class Ledger:
    """Counters of one gateway process; the first ones allocated from its `store`."""

    NUMBERS: Final = len(ENDINGS) + 1
    """How many numbers the ledger allocates from the store."""

    def __init__(self, store: CounterStore) -> None:
        self._values = store.values
        # Ended before accepted: a concurrent reader never sees more ended than accepted ones.
        self._ended = {how: store.allocate(ENDED, ("how",), (how,)) for how in ENDINGS}
        self._accepted = store.allocate(ACCEPTED, (), ())

    def accept(self) -> None:
        """Count one accepted request."""
        self._values[self._accepted] += 1.0

    def end(self, how: str) -> None:
        """Count one accepted request that has ended; `how` is one of ENDINGS."""
        self._values[self._ended[how]] += 1.0

    def balance(self, held: Mapping[str, int], in_flight: Mapping[str, int]) -> Balance:
        """Combine the totals with the current held and in-flight requests per pool."""
        ended = {how: self._values[place] for how, place in self._ended.items()}
        return Balance(self._values[self._accepted], ended, held, in_flight)


def _sum(mappings: Iterable[Mapping[str, Count]]) -> dict[str, Count]:
    summed: dict[str, Count] = {}
    for mapping in mappings:
        for key, count in mapping.items():
            summed[key] = summed[key] + count if key in summed else count
    return summed
