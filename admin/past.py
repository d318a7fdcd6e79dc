"""Feeds the history and remembers what requests need of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from admin.estimates.cold_starts import ColdStarts, Prior
from gateway.dispatch.pool import SAMPLES_ENOUGH
from registry.catalog import Catalog
from registry.exchange import Expected
from registry.model import Arrivals, ColdStart, StateInterval, Use, pool_key
from registry.store.history import History

MINUTE_S = 60
EXPECTED_MAX = 10_000
"""Estimates kept; others are worked out when they are asked for."""


class Past:
    """The manager's Recorder and the gateway's Past over one History. `wall` gives Unix seconds,
    `prior` what is known of a pool that has no past.

    Nothing here waits: records go to the history's buffer, estimates are kept in memory.
    """

    def __init__(
        self, history: History, wall: Callable[[], float], prior: Callable[[str], Prior]
    ) -> None:
        self._history = history
        self._wall = wall
        self._prior = prior
        self._cold_starts = ColdStarts()
        self._expected: dict[str, Expected] = {}
        self._minute_s = 0
        self._arrivals: dict[tuple[str, str], int] = {}
        self.on_cold_start: Callable[[str], None] = lambda _pool: None
        """Told of each pool whose estimate has changed."""
        self.on_record: Callable[[ColdStart], None] = lambda _record: None
        """Told of each cold start."""

    async def load(self) -> None:
        """Remember what happened before this start."""
        for record in await self._history.last_cold_starts():
            self._cold_starts.add(record)

    def cold_start(self, record: ColdStart) -> None:
        """Keep a cold start's receipt."""
        self._history.record(record)
        self._cold_starts.add(record)
        key = pool_key(record.namespace, record.name, record.number)
        self._expected.pop(key, None)
        self.on_cold_start(key)
        self.on_record(record)

    def state_interval(self, record: StateInterval) -> None:
        """Keep how long a pool was in a state."""
        self._history.record(record)

    def use(self, record: Use) -> None:
        """Keep what replicas had of a device."""
        self._history.record(record)

    def expected(self, pool: str) -> Expected:
        """What the next cold start of a revision takes."""
        known = self._expected.get(pool)
        if known is None:
            known = self._cold_starts.expected(pool, self._prior(pool))
            if known.samples and len(self._expected) < EXPECTED_MAX:
                self._expected[pool] = known
        return known

    def ready_in_ms(
        self, pool: str, state: str, since_s: float, *, by_standby: bool
    ) -> float | None:
        """How long a call that came now would wait for a replica, 0 only where there is one.

        None where it cannot be told: of a pool that fails, and of one with fewer than
        SAMPLES_ENOUGH cold starts of its own, whose trial alone says too little.
        `state` is the pool's since `since_s` (Unix seconds), `by_standby` how it is woken.
        """
        if state == "warm":
            return 0.0
        if state == "failing" or self.expected(pool).samples < SAMPLES_ENOUGH:
            return None
        whole_ms = self._cold_starts.median_ms(pool, self._prior(pool), by_standby=by_standby)
        gone_ms = (self._wall() - since_s) * 1e3 if state == "waking" else 0.0
        return max(1.0, whole_ms - max(0.0, gone_ms))

    def table(self, pool: str) -> list[dict[str, Any]]:
        """Medians and 90th percentiles of a revision's cold starts, per phase."""
        return self._cold_starts.table(pool)

    def arrived(self, namespace: str, name: str) -> None:
        """One more request came."""
        if not 0 <= self._wall() - self._minute_s < MINUTE_S:
            self._begin_minute()
        self._arrivals[namespace, name] = self._arrivals.get((namespace, name), 0) + 1

    def arrivals(self, namespace: str, name: str, count: int) -> None:
        """So many requests came within about a second."""
        if not 0 <= self._wall() - self._minute_s < MINUTE_S:
            self._begin_minute()
        self._arrivals[namespace, name] = self._arrivals.get((namespace, name), 0) + count

    def _begin_minute(self) -> None:
        self.flush()
        self._minute_s = int(self._wall()) // MINUTE_S * MINUTE_S

    def flush(self) -> None:
        """Keep what was counted since the last time; parts of one minute add up."""
        arrivals, self._arrivals = self._arrivals, {}
        for (namespace, name), count in arrivals.items():
            self._history.record(Arrivals(namespace, name, self._minute_s, count))


def prior_of(catalog: Catalog, pool: str) -> Prior:
    """What a deploy found out about a revision; nothing of one that is gone."""
    namespace, _, ref = pool.partition("/")
    deployed = catalog.find(ref, namespace)
    if deployed is None:
        return Prior()
    if deployed.profile is not None:
        return Prior(deployed.profile.device_kind, deployed.profile.load_ms)
    kind = deployed.revision.device.kind
    return Prior("cpu" if kind == "any" else kind)
