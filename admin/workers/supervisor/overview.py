"""What all gateway processes together hold, and how pools look to them."""

from __future__ import annotations

from gateway.dispatch.pool import UNKNOWN
from gateway.observing.failures import Failure, RecentFailures
from pool_manager.core.demand import DemandBook
from registry.exchange import Demand, Load, decode_endpoints


class Overview:
    """Heard from the two messages that pass through the supervisor. `now` is monotonic seconds.

    Counts are as old as a worker's last word: a second at most, less where somebody waits at a
    pool without a replica.
    """

    def __init__(self) -> None:
        self._demand = DemandBook()
        self._states: dict[str, str] = {}
        self._tasks: dict[str, int] = {}
        self.failures = RecentFailures()

    def hear(self, demand: Demand, now: float) -> None:
        """A worker said what it holds."""
        self._demand.hear(demand, now)

    def beat(self, worker: str, tasks: int) -> None:
        """A worker said how much goes on in its background."""
        self._tasks[worker] = tasks

    def failed(self, failures: list[Failure]) -> None:
        """A worker said what went wrong."""
        self.failures.add(failures)

    def forget(self, worker: str) -> None:
        """A worker is gone."""
        self._demand.forget(worker)
        self._tasks.pop(worker, None)

    @property
    def tasks(self) -> int:
        """What goes on in the background of all workers."""
        return sum(self._tasks.values())

    def look(self, endpoints: bytes) -> None:
        """The manager said how pools are."""
        message = decode_endpoints(endpoints)
        if message.full:
            self._states.clear()
        for key, shown in message.pools.items():
            if shown == UNKNOWN or shown.state == "gone":
                self._states.pop(key, None)
            else:
                self._states[key] = shown.state

    def loads(self) -> dict[str, Load]:
        """What is held and in flight, for every pool with any."""
        return {key: self._demand.load(key) for key in self._demand.active()}

    def states(self) -> dict[str, str]:
        """The state of every pool that is not at rest."""
        return dict(self._states)
