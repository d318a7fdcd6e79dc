"""Load of every pool, summed over all gateway workers."""

from __future__ import annotations

from dataclasses import dataclass, field

from registry.exchange import NOTHING, Demand, Load

SILENCE_S = 3.0
"""Seconds without a report after which a worker's load is dropped."""


@dataclass(slots=True)
class _Worker:
    seen_s: float
    seq: int
    loads: dict[str, Load] = field(default_factory=dict)


@dataclass(slots=True)
class DemandTable:
    """The last report of every worker. `now` is monotonic seconds."""

    _workers: dict[str, _Worker] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether no worker has reported."""
        return not self._workers

    def update(self, demand: Demand, now: float) -> set[str]:
        """Apply a worker's report; return the pools whose load it may have changed."""
        worker = self._workers.setdefault(demand.worker, _Worker(now, -1))
        worker.seen_s = now
        if demand.seq <= worker.seq and not demand.full:
            return set()
        worker.seq = demand.seq
        touched = set(demand.revisions)
        if demand.full:
            touched |= worker.loads.keys()
            worker.loads = {}
        for key, load in demand.revisions.items():
            if load.busy:
                worker.loads[key] = load
            else:
                worker.loads.pop(key, None)
        return touched

    def remove(self, worker: str) -> set[str]:
        """Remove a worker; return the pools that it had load for."""
        gone = self._workers.pop(worker, None)
        return set(gone.loads) if gone else set()

    def silent_workers(self, now: float) -> list[str]:
        """Return the workers without a report for more than SILENCE_S."""
        return [name for name, w in self._workers.items() if now - w.seen_s > SILENCE_S]

    def is_busy(self, key: str) -> bool:
        """Whether any worker has load for a pool."""
        for worker in self._workers.values():  # noqa: SIM110 - half the time of any()
            if key in worker.loads:
                return True
        return False

    def idle(self, keys: set[str]) -> set[str]:
        """Return those of these pools for which no worker has load."""
        return keys.difference(*[worker.loads for worker in self._workers.values()])

    def load(self, key: str) -> Load:
        """Return a pool's load: the sum over all workers; the oldest wait is the maximum."""
        total: Load | None = None
        for worker in self._workers.values():
            load = worker.loads.get(key)
            if load is not None:
                total = load if total is None else _sum(total, load)
        return NOTHING if total is None else total

    def active(self) -> set[str]:
        """Return the pools with any load."""
        return {key for worker in self._workers.values() for key in worker.loads}


def _sum(one: Load, other: Load) -> Load:
    return Load(
        one.queued + other.queued,
        one.in_flight + other.in_flight,
        max(one.oldest_wait_s, other.oldest_wait_s),
    )
