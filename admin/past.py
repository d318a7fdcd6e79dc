"""Feeds the history and remembers what requests need of it."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from registry.model import Arrivals, ColdStart, StateInterval, pool_key
from registry.store.history import History

SAMPLES = 20
POOLS_MAX = 10_000
"""Revisions remembered; a removed one is not told of, so the oldest make room."""
MINUTE_S = 60


class Past:
    """The manager's Recorder and the gateway's Past over one History. `wall` gives Unix seconds.

    Nothing here waits: records go to the history's buffer, medians are kept in memory.
    """

    def __init__(self, history: History, wall: Callable[[], float]) -> None:
        self._history = history
        self._wall = wall
        self._cold_starts: dict[str, list[float]] = {}
        self._medians: dict[str, float] = {}
        self._minute_s = 0
        self._arrivals: dict[tuple[str, str], int] = {}

    async def load(self) -> None:
        """Remember what happened before this start."""
        for key, all_ms in (await self._history.last_cold_starts_ms()).items():
            for ms in all_ms:
                self._remember(key, ms / 1e3)

    def cold_start(self, record: ColdStart) -> None:
        """Keep a cold start's receipt."""
        self._history.record(record)
        if record.outcome == "ready":
            key = pool_key(record.namespace, record.name, record.number)
            self._remember(key, record.total_ms / 1e3)

    def state_interval(self, record: StateInterval) -> None:
        """Keep how long a pool was in a state."""
        self._history.record(record)

    def cold_start_s(self, pool: str) -> float:
        """Median seconds of a revision's last cold starts, 0 where there was none."""
        return self._medians.get(pool, 0.0)

    def arrived(self, namespace: str, name: str) -> None:
        """One more request came; a minute's count is kept when the next minute begins."""
        minute_s = int(self._wall()) // MINUTE_S * MINUTE_S
        if minute_s != self._minute_s:
            self.flush()
            self._minute_s = minute_s
        self._arrivals[namespace, name] = self._arrivals.get((namespace, name), 0) + 1

    def flush(self) -> None:
        """Keep the counts of the minute that has passed, or is broken off by a shutdown."""
        arrivals, self._arrivals = self._arrivals, {}
        for (namespace, name), count in arrivals.items():
            self._history.record(Arrivals(namespace, name, self._minute_s, count))

    def _remember(self, key: str, seconds: float) -> None:
        if key not in self._cold_starts and len(self._cold_starts) >= POOLS_MAX:
            oldest = next(iter(self._cold_starts))
            del self._cold_starts[oldest], self._medians[oldest]
        samples = self._cold_starts[key] = [*self._cold_starts.get(key, ()), seconds][-SAMPLES:]
        self._medians[key] = median(samples)
