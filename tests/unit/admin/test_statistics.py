"""Statistics of the gateways' numbers and the replicas' runs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, cast

from admin.statistics import ServerStatistics, merged
from gateway.metrics.revisions import RevisionNumbers
from gateway.oip.statistics import (
    NOTHING,
    BatchStatistics,
    Duration,
    InferStatistics,
    RevisionStatistics,
)
from pool_manager.runs import RunTotals
from runtime_image.link.run_counts import RunCount

POOL = "default/f@1"
NUMBERS = RevisionNumbers(3, 12, 1.5, 2.25, 10.0, 600.0, 80.0, 50.0, 2, 0.125)


def test_every_number_has_its_unit() -> None:
    """Nanoseconds and Unix milliseconds as whole numbers; times count once per success."""
    runs = [RunCount(0, 5, 1, 2, 3), RunCount(4, 2, 10, 20, 30), RunCount(8, 1, 4, 5, 6)]
    assert merged(POOL, NUMBERS, runs, 1000.0) == RevisionStatistics(
        POOL,
        last_inference=1_050_000,
        inference_count=12,
        execution_count=8,
        inference_stats=InferStatistics(
            success=Duration(3, 1_500_000_000),
            fail=Duration(2, 125_000_000),
            queue=Duration(3, 2_250_000),
            compute_input=Duration(3, 10_000),
            compute_infer=Duration(3, 600_000),
            compute_output=Duration(3, 80_000),
            cache_hit=NOTHING,
            cache_miss=NOTHING,
        ),
        batch_stats=(
            BatchStatistics(4, Duration(2, 10), Duration(2, 20), Duration(2, 30)),
            BatchStatistics(8, Duration(1, 4), Duration(1, 5), Duration(1, 6)),
        ),
    )


class Manager:
    """A manager whose replicas report their runs when they are asked."""

    def __init__(self) -> None:
        self.runs = RunTotals()
        self.runs.define(POOL)
        self.asked: list[Collection[str]] = []

    async def refresh_runs(self, pools: Collection[str]) -> None:
        """Report one more run."""
        self.asked.append(pools)
        self.runs.add(POOL, [RunCount(1, 1, 1, 1, 1)])


def statistics(manager: Manager, wall: Callable[[], float]) -> ServerStatistics:
    """Return statistics of POOL, whose monotonic clock stands still."""
    return ServerStatistics(lambda: {POOL: NUMBERS}, cast("Any", manager), wall, lambda: 10.0)


async def test_the_last_inference_stays_while_nothing_runs() -> None:
    """A pause between reading two clocks moves no number; a wall clock that was set does."""
    walls = iter([1010.0, 1010.4, 5010.0])
    found = ServerStatistics(
        lambda: {POOL: NUMBERS}, cast("Any", Manager()), lambda: next(walls), lambda: 10.0
    )
    shown = [(await found.statistics([POOL]))[0].last_inference for _ in range(2)]
    assert shown == [1_050_000, 5_050_000]


async def test_replicas_are_asked_before_anything_is_read() -> None:
    """A run that ended before the question is in the answer; revisions keep their order."""
    manager = Manager()
    found = ServerStatistics(
        lambda: {POOL: NUMBERS}, cast("Any", manager), lambda: 1010.0, lambda: 10.0
    )
    other, mine = await found.statistics(["default/other@1", POOL])
    assert manager.asked == [["default/other@1", POOL]]
    assert other == RevisionStatistics("default/other@1")
    assert (mine.execution_count, mine.last_inference) == (1, 1_050_000)
