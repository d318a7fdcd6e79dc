"""Successful runs of every revision by batch size, from what its replicas report with PONG.

Replicas report totals since their load. Their control links turn these into the runs since the last
PONG, which are added to the revision's numbers at once: a replica that dies takes only the runs
since its last PONG with it, and one that is adopted is counted from its adoption on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Final

from pool_manager.core.state import Replica, State
from pool_manager.replicas.control import Control
from runtime_image.contract.link import RUN_SIZES_MAX
from runtime_image.link.run_counts import RunCount

FRESH_S: Final = 0.25
"""Max seconds to wait for reports that were asked for; a run in a replica's loop may hold it up."""
TOTAL_MAX: Final = 2**63 - 1
"""Max value of a number over all replicas, so that it fits any protocol's integers."""
SHOWN_MAX: Final = 1000
"""Max revisions with a number of their own in `/metrics`: those that ran first."""
_SERVING: Final = frozenset({State.READY, State.DRAINING})


class RunTotals:
    """Runs by revision and batch size. Numbers only grow until the revision is removed.

    A revision has at most RUN_SIZES_MAX sizes of its own; the runs of all others are under 0 rows.
    """

    def __init__(self) -> None:
        self._pools: dict[str, dict[int, RunCount]] = {}
        self._shown: dict[str, int] = {}

    def define(self, pool: str) -> None:
        """Count the runs of a revision from now on."""
        self._pools.setdefault(pool, {})

    def forget(self, pool: str) -> None:
        """Drop the numbers of a removed revision; late reports are ignored."""
        self._pools.pop(pool, None)
        self._shown.pop(pool, None)

    def add(self, pool: str, more: Iterable[RunCount]) -> None:
        """Add runs that a replica has reported."""
        sizes = self._pools.get(pool)
        if sizes is None:
            return
        for one in more:
            is_known = one.rows in sizes or len(sizes) < RUN_SIZES_MAX
            rows = one.rows if is_known else 0
            before = sizes.get(rows, (rows, 0, 0, 0, 0))
            sums = (min(a + b, TOTAL_MAX) for a, b in zip(before[1:], one[1:], strict=True))
            sizes[rows] = RunCount(rows, *sums)
            if pool in self._shown or len(self._shown) < SHOWN_MAX:
                self._shown[pool] = min(self._shown.get(pool, 0) + one.runs, TOTAL_MAX)

    def runs(self, pool: str) -> list[RunCount]:
        """Return a revision's runs by rising rows."""
        return sorted(self._pools.get(pool, {}).values())

    def shown(self) -> dict[str, int]:
        """Return the runs of at most SHOWN_MAX revisions that ran."""
        return dict(self._shown)


class RunReports:
    """Totals of runs, and requests for new reports. Event loop thread only."""

    def __init__(
        self, replicas: Callable[[], list[Replica]], control: Callable[[str], Control | None]
    ) -> None:
        """`replicas` returns every replica, `control(id)` the control link of one."""
        self.totals = RunTotals()
        self._replicas = replicas
        self._control = control
        self._came = asyncio.Event()

    def on_pong(self, pool: str, more: Iterable[RunCount]) -> None:
        """Add the runs that a replica of `pool` reported."""
        self.totals.add(pool, more)
        self._came.set()

    async def refresh(self, pools: Collection[str]) -> None:
        """Ask the replicas of these revisions for their runs up to now; takes at most FRESH_S.

        A replica that does not answer in time is counted by its last report.
        """
        wanted = frozenset(pools)
        asked: list[tuple[Control, int]] = []
        for replica in self._replicas():
            if replica.pool in wanted and replica.state in _SERVING:
                control = self._control(replica.id)
                if control is not None and control.is_greeted:
                    asked.append((control, control.ask()))
        try:
            async with asyncio.timeout(FRESH_S):
                while not all(control.has_answered(number) for control, number in asked):
                    self._came.clear()
                    await self._came.wait()
        except TimeoutError:
            pass
