"""Tests of how pools are supplied."""

from __future__ import annotations

from pool_manager.core import events
from pool_manager.core.state import PoolSpec
from pool_manager.metrics import Supplied, supplied
from tests.support.play import Play

A, B = PoolSpec("default/a@1"), PoolSpec("default/b@1")


def test_pools_at_rest_are_left_out() -> None:
    """Pools at rest are left out; a pool that waits for room is included."""
    play = Play(A, B, devices=1)
    assert supplied(play.machine.cluster) == []
    play.warm(a="r1")
    play.run(a=1, b=0)
    play.hear({"default/a@1": play.machine.cluster.demand.load("default/a@1")})
    play.demand(a=1, b=1)

    assert supplied(play.machine.cluster) == [
        Supplied("default/a@1", 1, {"ready": 1}),
        Supplied("default/b@1", 1, {}),
    ]


def test_standbys_are_a_pool_and_trials_are_none() -> None:
    """Standbys are listed with their wanted number, trials are not."""
    play = Play(devices=1, standbys=1)
    play.demand()
    play.tick(2.0)
    play.tick(2.0)
    assert supplied(play.machine.cluster) == [Supplied("standby/cpu", 1, {"starting": 1})]
    play.on(events.PoolDefined(PoolSpec("trial", role="trial")))

    assert [one.pool for one in supplied(play.machine.cluster)] == ["standby/cpu"]
