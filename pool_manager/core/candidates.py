"""The replicas that may be stopped for another one, indexed by memory bank and cost."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from math import inf
from typing import NamedTuple, Self

from pool_manager.core.ledger import Ledger


class Candidate(NamedTuple):
    """A replica that may be stopped, at this `cost`. At most `spare` replicas of its pool may be
    stopped at once."""

    pool: str
    cost: float
    spare: int


Floor = tuple[float, str, str]
"""The cost of the cheapest candidate of a memory bank, the bank's first device by id, the bank. A
plain tuple, as each event that evicts needs one for each bank."""


class CandidateTable:
    """Candidates by id; `floors` are those of their banks in rising order.

    The floors are sorted when they are first needed; after a change, only that of its bank moves.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._by_id: dict[str, Candidate] = {}
        self._lowest: dict[str, float] = {}
        self._floors: list[Floor] | None = None
        self._floor_of: dict[str, Floor] = {}
        self._changed: dict[str, None] = {}

    @classmethod
    def of(cls, ledger: Ledger, candidates: Mapping[str, Candidate]) -> Self:
        """Return a table of these candidates."""
        table = cls(ledger)
        for id, candidate in candidates.items():
            table.put(id, candidate)
        return table

    def __contains__(self, id: str) -> bool:
        return id in self._by_id

    def __getitem__(self, id: str) -> Candidate:
        return self._by_id[id]

    def put(self, id: str, candidate: Candidate) -> None:
        """Add a candidate, whose replica is charged, or replace it."""
        charge = self._ledger.charge_of(id)
        for bank in charge.all_banks if charge.host_bank else charge.banks:
            if self._floors is not None or id in self._by_id:
                self._changed[bank] = None
            elif candidate.cost < self._lowest.get(bank, inf):
                self._lowest[bank] = candidate.cost
        self._by_id[id] = candidate

    def discard(self, id: str) -> None:
        """Remove a candidate if it is one."""
        if self._by_id.pop(id, None) is not None:
            self._changed.update(dict.fromkeys(self._ledger.charge_of(id).all_banks))

    def without(self, pools: set[str]) -> CandidateTable:
        """Return a table of the candidates of other pools."""
        kept = {id: one for id, one in self._by_id.items() if one.pool not in pools}
        return CandidateTable.of(self._ledger, kept)

    def floors(self) -> Iterator[Floor]:
        """Yield the floors in rising order; the table must not change meanwhile."""
        if self._floors is None:
            # An adopted replica may be on a device that is unknown: its end makes no room.
            self._floors = sorted(
                (cost, devices[0], bank)
                for bank, cost in self._lowest.items()
                if (devices := self._ledger.devices_of(bank))
            )
            self._floor_of = {floor[2]: floor for floor in self._floors}
        for bank in self._changed:
            self._update(bank, self._floors)
        self._changed.clear()
        return iter(self._floors)

    def _update(self, bank: str, floors: list[Floor]) -> None:
        old = self._floor_of.pop(bank, None)
        if old is not None:
            del floors[bisect_left(floors, old)]
        there = (self._by_id.get(id) for id in self._ledger.in_bank(bank))
        costs = [one.cost for one in there if one is not None]
        devices = self._ledger.devices_of(bank)
        if costs and devices:
            new = self._floor_of[bank] = min(costs), devices[0], bank
            insort(floors, new)
