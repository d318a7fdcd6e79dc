"""Tests of what all workers hold together."""

from __future__ import annotations

from admin.workers.broadcast import ClusterState
from gateway.dispatch.pool import UNKNOWN
from registry.exchange import Demand, Endpoints, Load, PoolEndpoints, encode

F, G = "default/f@1", "default/g@1"


def published(full: bool, **states: str) -> bytes:
    """The manager's message about pools f and g."""
    keys = {"f": F, "g": G}
    pools = {
        keys[name]: UNKNOWN if state == "rest" else PoolEndpoints([], state, "because")
        for name, state in states.items()
    }
    return encode(Endpoints(1, full, pools))


def test_loads_are_summed_over_workers() -> None:
    """The oldest wait is the maximum; a worker that is gone holds nothing."""
    cluster = ClusterState()
    cluster.on_demand(Demand("a", 1, True, {F: Load(1, 2, 0.5)}), 0.0)
    cluster.on_demand(Demand("b", 1, True, {F: Load(3, 0, 2.0), G: Load(0, 1, 0.0)}), 0.0)
    assert cluster.loads() == {F: Load(4, 2, 2.0), G: Load(0, 1, 0.0)}
    cluster.remove_worker("b")

    assert cluster.loads() == {F: Load(1, 2, 0.5)}


def test_pools_at_rest_have_no_state() -> None:
    """What is cold without a reason, or gone, is left out; a full message names all there is."""
    cluster = ClusterState()
    cluster.on_endpoints(published(True, f="warm", g="failing"))
    assert cluster.states() == {F: "warm", G: "failing"}
    cluster.on_endpoints(published(False, f="rest"))
    assert cluster.states() == {G: "failing"}
    cluster.on_endpoints(published(False, g="gone", f="waking"))
    assert cluster.states() == {F: "waking"}
    cluster.on_endpoints(published(True, g="cold"))

    assert cluster.states() == {G: "cold"}


def test_background_work_is_counted_over_living_workers() -> None:
    """As each last said."""
    cluster = ClusterState()
    for worker, count in (("a", 3), ("b", 4), ("a", 5)):
        cluster.on_beat(worker, count, [])
    assert cluster.tasks == 9
    cluster.remove_worker("a")

    assert cluster.tasks == 4
