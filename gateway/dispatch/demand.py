"""Decides which pools' demand is reported to the pool manager, and when.

1. At once, when a call is held at a pool without a replica.
2. At once, when a pool's last request ends while such a call waits: its idle replica may be evicted
   to make room.
3. At once, when a link is lost or traffic has moved.
4. Every second: all pools with load.

Reports 1 to 3 are partial. They contain the pools concerned, and the pools that have become idle
since they were reported as busy. Other changes happen with every request and would not change the
manager's decisions.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from registry.exchange import Load


class DemandReports:
    """Tracks what was reported, and selects the pools of the next report.

    `load` returns the current load of a pool, `is_cold` whether it has no replica that accepts
    calls. A pool that is cold and has queued calls is starving. Only `full` iterates over all
    pools: the cost of a request's end does not depend on the number of starving pools.
    """

    def __init__(self, load: Callable[[str], Load], is_cold: Callable[[str], bool]) -> None:
        self._load = load
        self._is_cold = is_cold
        self._reported_busy: set[str] = set()
        self._ended: set[str] = set()
        """Pools reported as busy in which a request has ended since: only these can be idle."""
        # In a plain dict, finding the first key takes longer with each key removed before it.
        self._starving: OrderedDict[str, None] = OrderedDict()

    def on_held(self, pool: str) -> None:
        """Record that a call waits at a pool without a replica."""
        self._starving[pool] = None

    def on_ended(self, pool: str) -> bool:
        """Record the end of a request, answered or not; return True to report the pool at once.

        1. The pool was reported as busy: the next partial report checks it.
        2. No pool is starving, or this pool still has load: it cannot make room for another pool.
        3. The pool that was held first is still starving: report at once.
        4. It has a replica by now, or its clients have disconnected: drop it and check the next.
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
        """Return a partial report: these pools, and pools that became idle since the last one."""
        ended = {key: self._load(key) for key in self._ended}
        self._ended.clear()
        loads = {key: load for key, load in ended.items() if not load.busy}
        loads |= {key: self._load(key) for key in pools}
        self._reported_busy -= loads.keys()
        self._reported_busy |= {key for key, load in loads.items() if load.busy}
        return loads

    def full(self, loads: dict[str, Load]) -> None:
        """Record a full report: `loads` of all pools that have any."""
        self._reported_busy = set(loads)
        self._ended.clear()
