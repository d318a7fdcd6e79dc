"""Statistics of revisions: the gateways' numbers and the replicas' runs together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gateway.metrics.revisions import RevisionNumbers
from gateway.oip.statistics import (
    NOTHING,
    BatchStatistics,
    Duration,
    InferStatistics,
    RevisionStatistics,
)
from gateway.ports import ModelStatistics
from pool_manager.manager import Manager
from runtime_image.link.run_counts import RunCount

CLOCK_SET_S: Final = 1.0
"""Min seconds by which the wall clock must move to be taken as set."""


class ServerStatistics(ModelStatistics):
    """Statistics in the process that has the pool manager."""

    def __init__(
        self,
        read: Callable[[], Mapping[str, RevisionNumbers]],
        manager: Manager,
        wall: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        """`read` returns the numbers of all gateway processes by revision. `wall` returns Unix
        seconds, `clock` monotonic ones."""
        self._read = read
        self._manager = manager
        self._wall = wall
        self._clock = clock
        self._epoch_s = wall() - clock()

    async def statistics(self, pools: Sequence[str]) -> list[RevisionStatistics]:
        """Implement `ModelStatistics.statistics`."""
        await self._manager.refresh_runs(pools)
        found, totals = self._read(), self._manager.runs
        epoch_s, nothing = self._epoch(), RevisionNumbers()
        return [
            merged(pool, found.get(pool, nothing), totals.runs(pool), epoch_s) for pool in pools
        ]

    def _epoch(self) -> float:
        """Return the Unix time at 0 of the monotonic clock. It changes only where the wall clock
        was set: two readings of two clocks differ by the pause between them."""
        now_s = self._wall() - self._clock()
        if abs(now_s - self._epoch_s) > CLOCK_SET_S:
            self._epoch_s = now_s
        return self._epoch_s


def merged(
    pool: str, numbers: RevisionNumbers, runs: list[RunCount], epoch_s: float
) -> RevisionStatistics:
    """Return the statistics of a revision. `epoch_s`: Unix seconds at 0 of the monotonic clock."""
    success = round(numbers.success)
    return RevisionStatistics(
        pool,
        round((epoch_s + numbers.last_s) * 1e3) if numbers.last_s else 0,
        round(numbers.rows),
        sum(one.runs for one in runs),
        InferStatistics(
            Duration(success, round(numbers.success_s * 1e9)),
            Duration(round(numbers.fail), round(numbers.fail_s * 1e9)),
            Duration(success, round(numbers.queue_ms * 1e6)),
            Duration(success, round(numbers.input_us * 1e3)),
            Duration(success, round(numbers.infer_us * 1e3)),
            Duration(success, round(numbers.output_us * 1e3)),
            NOTHING,
            NOTHING,
        ),
        tuple(_batch(one) for one in runs if one.rows),
    )


def _batch(runs: RunCount) -> BatchStatistics:
    rows, count, input_ns, infer_ns, output_ns = runs
    return BatchStatistics(
        rows, Duration(count, input_ns), Duration(count, infer_ns), Duration(count, output_ns)
    )
