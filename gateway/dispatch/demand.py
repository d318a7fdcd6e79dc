"""Which pools' demand is reported to the manager, and when.

1. At once, when a call is held at a pool without a replica.
2. At once, when a pool's last request ends while such a call waits: an idle replica may make room.
3. At once, when a link is lost, or when traffic has moved.
4. Every second: all pools with load.

Reports 1 to 3 are partial: they name the pools they are about, and those that have fallen idle
since they were reported as busy. All else changes with every request, and the manager would decide
nothing differently if it knew.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from registry.exchange import Load


class DemandReports:
    """Remembers what was reported. `load` gives the load of a pool now, `is_cold` whether it has no
    replica that takes calls.

    A pool that is cold and has queued calls starves. No method but `full` walks over all pools: the
    end of a request costs the same however many starve.
    """

    def __init__(self, load: Callable[[str], Load], is_cold: Callable[[str], bool]) -> None:
        self._load = load
        self._is_cold = is_cold
        self._reported_busy: set[str] = set()
        self._ended: set[str] = set()
        """Pools reported as busy in which a request has ended since: only these can be idle."""
        # A plain dict's first key takes longer to find with each one removed before it.
        self._starving: OrderedDict[str, None] = OrderedDict()

    def on_held(self, pool: str) -> None:
        """A call waits at a pool without a replica."""
        self._starving[pool] = None

    def on_ended(self, pool: str) -> bool:
        """Note the end of a request, answered or not; True if the pool must be reported at once.

        1. The pool was reported as busy: the next partial report checks it.
        2. No pool starves, or this one still has load: it cannot make room for another pool.
        3. The first pool that was held still starves: report at once.
        4. It has a replica by now, or its callers left: forget it, try the next.
        """
        if pool in self._reported_busy:  # 1
            self._ended.add(pool)
        if not self._starving or self._load(pool).busy:  # 2
            return False
        while self._starving:
            first = next(iter(self._starving))
            if self._is_cold(first) and self._load(first).queued:  # 3
                return True
            del self._starving[first]  # 4
        return False

    def partial(self, pools: Iterable[str]) -> dict[str, Load]:
        """A partial report: these pools, and those that have fallen idle since they were busy."""
        ended = {key: self._load(key) for key in self._ended}
        self._ended.clear()
        loads = {key: load for key, load in ended.items() if not load.busy}
        loads |= {key: self._load(key) for key in pools}
        self._reported_busy -= loads.keys()
        self._reported_busy |= {key for key, load in loads.items() if load.busy}
        return loads

    def full(self, loads: dict[str, Load]) -> None:
        """Note a full report: `loads` of all pools that have any."""
        self._reported_busy = set(loads)
        self._ended.clear()
