"""Where every accepted request is: it has ended in one way, or it is held or in flight. Pure.

What was accepted and what has ended is counted where it happens; what is held and in flight is
counted out of the dispatcher's state. Neither is worked out from the other, so whether they agree
says whether a request was lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from gateway.metrics.counters import CounterStore

ENDINGS: Final = ("completed", "failed", "cancelled", "expired", "aborted")
"""Ends of a request: answered by a replica; with an error; its client left; its wait budget was
over; its gateway process died."""
ACCEPTED: Final = "fngate_accepted_total"
ENDED: Final = "fngate_ended_total"
UNKNOWN_POOL: Final = "_unknown"
"""The pool of what a process has in flight that does not say where."""

Count = TypeVar("Count", int, float)


@dataclass(frozen=True, slots=True)
class Balance:
    """The ledger at one moment. `held` and `in_flight` are requests by pool; a request whose
    client has left is cancelled, whatever its replica does with it."""

    accepted: float = 0.0
    ended: Mapping[str, float] = field(default_factory=dict)
    held: Mapping[str, int] = field(default_factory=dict)
    in_flight: Mapping[str, int] = field(default_factory=dict)

    @property
    def missing(self) -> float:
        """Accepted requests that are nowhere; negative where some are in two places. 0, always."""
        there = sum(self.held.values()) + sum(self.in_flight.values())
        return self.accepted - sum(self.ended.values()) - there

    def aborted(self) -> Balance:
        """The same once its process is dead: whatever has not ended was broken off."""
        left = self.accepted - sum(self.ended.values())
        return Balance(self.accepted, _sum([self.ended, {"aborted": left}]))

    def unheard(self) -> Balance:
        """The same where only the counters of a living process can be read."""
        left = round(self.accepted - sum(self.ended.values()))
        return Balance(self.accepted, self.ended, {}, {UNKNOWN_POOL: left} if left else {})


def total(balances: Iterable[Balance]) -> Balance:
    """Over all processes."""
    every = list(balances)
    return Balance(
        sum(one.accepted for one in every),
        _sum(one.ended for one in every),
        _sum(one.held for one in every),
        _sum(one.in_flight for one in every),
    )


class Ledger:
    """The counters of one gateway process. To be made before any other of its `store`."""

    NUMBERS: Final = len(ENDINGS) + 1
    """How many numbers of the store it takes."""

    def __init__(self, store: CounterStore) -> None:
        self._values = store.values
        # Whoever reads them in this order while they grow never finds more ended than accepted.
        self._ended = {how: store.allocate(ENDED, ("how",), (how,)) for how in ENDINGS}
        self._accepted = store.allocate(ACCEPTED, (), ())

    def accept(self) -> None:
        """One more request is owed an answer."""
        self._values[self._accepted] += 1.0

    def end(self, how: str) -> None:
        """An accepted request has ended in one of HOWS."""
        self._values[self._ended[how]] += 1.0

    def balance(self, held: Mapping[str, int], in_flight: Mapping[str, int]) -> Balance:
        """With what there is at this moment, by pool."""
        ended = {how: self._values[place] for how, place in self._ended.items()}
        return Balance(self._values[self._accepted], ended, held, in_flight)


def _sum(mappings: Iterable[Mapping[str, Count]]) -> dict[str, Count]:
    summed: dict[str, Count] = {}
    for mapping in mappings:
        for key, count in mapping.items():
            summed[key] = summed[key] + count if key in summed else count
    return summed
