"""The replicas that may be stopped for another one, indexed by memory bank and cost."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Self

from pool_manager.core.ledger import Ledger


class Candidate(NamedTuple):
    """A replica that may be stopped, at this `cost`. At most `spare` replicas of its pool may be
    stopped at once."""

    pool: str
    cost: float
    spare: int


class Floor(NamedTuple):
    """The cost of the cheapest candidate of a memory bank, and the bank's first device by id."""

    cost: float
    first: str
    bank: str


class CandidateTable:
    """Candidates by id; `floors` are those of their banks in rising order.

    The floors are sorted when they are first needed; after a change, only those of its bank are.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._by_id: dict[str, Candidate] = {}
        self._in: dict[str, dict[str, float]] = {}
        self._floors: list[Floor] = []
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
        self._by_id[id] = candidate
        bank = self._ledger.charge_of(id).bank
        there = self._in.get(bank)
        if there is None:
            self._in[bank] = {id: candidate.cost}
        else:
            there[id] = candidate.cost
        if self._floor_of:
            self._changed[bank] = None

    def discard(self, id: str) -> None:
        """Remove a candidate if it is one."""
        if self._by_id.pop(id, None) is not None:
            bank = self._ledger.charge_of(id).bank
            del self._in[bank][id]
            if self._floor_of:
                self._changed[bank] = None

    def without(self, pools: set[str]) -> CandidateTable:
        """Return a table of the candidates of other pools."""
        kept = {id: one for id, one in self._by_id.items() if one.pool not in pools}
        return CandidateTable.of(self._ledger, kept)

    def floors(self) -> Iterator[Floor]:
        """Yield the floors in rising order; the table must not change meanwhile."""
        if not self._floor_of:
            self._build()
        for bank in self._changed:
            self._update(bank)
        self._changed.clear()
        return iter(self._floors)

    def _build(self) -> None:
        self._floor_of = {bank: floor for bank in self._in if (floor := self._floor(bank))}
        self._floors = sorted(self._floor_of.values())
        self._changed.clear()

    def _update(self, bank: str) -> None:
        old = self._floor_of.pop(bank, None)
        if old is not None:
            del self._floors[bisect_left(self._floors, old)]
        if new := self._floor(bank):
            self._floor_of[bank] = new
            insort(self._floors, new)

    def _floor(self, bank: str) -> Floor | None:
        """Return the floor of a bank; None if it has no candidate, or no device: an adopted replica
        may be on a device that is unknown, and its end makes no room."""
        costs, devices = self._in[bank], self._ledger.devices_of(bank)
        return Floor(min(costs.values()), devices[0], bank) if costs and devices else None
