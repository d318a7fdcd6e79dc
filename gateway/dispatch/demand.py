"""Which pools the manager is told of between two full reports."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from registry.exchange import Load


class Reports:
    """Remembers what the manager believes. `load` gives a pool's load now, `is_cold` whether it
    has no replica to send to.

    Who waits without a replica is told at once, and with it who has fallen idle since the manager
    was told: an idle replica may make room. All else waits for the report of the next second.

    Nothing here walks over all pools: a request's end costs the same however many pools starve.
    """

    def __init__(self, load: Callable[[str], Load], is_cold: Callable[[str], bool]) -> None:
        self._load = load
        self._is_cold = is_cold
        self._told_busy: set[str] = set()
        self._ended: set[str] = set()
        """Pools told of as busy in which a request has ended since: only these can be idle."""
        # A plain dict's first key takes longer to find with each one removed before it.
        self._starving: OrderedDict[str, None] = OrderedDict()

    def held(self, pool: str) -> None:
        """Somebody waits at a pool that has no replica."""
        self._starving[pool] = None

    def ended(self, pool: str) -> bool:
        """A request of this pool has ended, answered or not. Whether that is to be told at once: it
        was the last one, and somebody waits elsewhere."""
        if pool in self._told_busy:
            self._ended.add(pool)
        return bool(self._starving) and not self._load(pool).busy and self._anybody_starves()

    def _anybody_starves(self) -> bool:
        """Forgets pools at the front that starve no more, each of them once."""
        while self._starving:
            pool = next(iter(self._starving))
            if self._is_cold(pool) and self._load(pool).queued:
                return True
            del self._starving[pool]
        return False

    def edge(self, pools: Iterable[str]) -> dict[str, Load]:
        """What to say now, of these pools and of who has fallen idle."""
        told = {key: self._load(key) for key in self._ended}
        self._ended.clear()
        loads = {key: load for key, load in told.items() if not load.busy}
        loads |= {key: self._load(key) for key in pools}
        self._told_busy -= loads.keys()
        self._told_busy |= {key for key, load in loads.items() if load.busy}
        return loads

    def full(self, loads: dict[str, Load]) -> None:
        """The manager is told all of it."""
        self._told_busy = set(loads)
        self._ended.clear()
