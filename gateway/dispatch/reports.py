"""Which pools the manager is told of between two full reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from registry.exchange import Load


class Reports:
    """Remembers what the manager believes. `load` gives a pool's load now, `is_cold` whether it
    has no replica to send to.

    Who waits without a replica is told at once, and with it who has fallen idle since the manager
    was told: an idle replica may make room. All else waits for the report of the next second.
    """

    def __init__(self, load: Callable[[str], Load], is_cold: Callable[[str], bool]) -> None:
        self._load = load
        self._is_cold = is_cold
        self._told_busy: set[str] = set()
        self._starving: set[str] = set()

    def held(self, pool: str) -> None:
        """Somebody waits at a pool that has no replica."""
        self._starving.add(pool)

    def is_news(self, pool: str) -> bool:
        """Whether an answer of this pool is to be told of at once: it was the last one, and
        somebody waits elsewhere."""
        if not self._starving:
            return False
        self._starving = {key for key in self._starving if self._is_cold(key) and self._held(key)}
        return bool(self._starving) and not self._load(pool).busy

    def edge(self, pools: Iterable[str]) -> dict[str, Load]:
        """What to say now, of these pools and of who has fallen idle."""
        told = {key: self._load(key) for key in self._told_busy}
        loads = {key: load for key, load in told.items() if not load.busy}
        loads |= {key: self._load(key) for key in pools}
        self._told_busy -= loads.keys()
        self._told_busy |= {key for key, load in loads.items() if load.busy}
        return loads

    def full(self, loads: dict[str, Load]) -> None:
        """The manager is told all of it."""
        self._told_busy = set(loads)

    def _held(self, pool: str) -> bool:
        return self._load(pool).queued > 0
