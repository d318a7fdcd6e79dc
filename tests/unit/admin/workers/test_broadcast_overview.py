"""Tests of what all workers hold together."""

from __future__ import annotations

from admin.workers.broadcast import Overview
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
    overview = Overview()
    overview.hear(Demand("a", 1, True, {F: Load(1, 2, 0.5)}), 0.0)
    overview.hear(Demand("b", 1, True, {F: Load(3, 0, 2.0), G: Load(0, 1, 0.0)}), 0.0)
    assert overview.loads() == {F: Load(4, 2, 2.0), G: Load(0, 1, 0.0)}
    overview.forget("b")

    assert overview.loads() == {F: Load(1, 2, 0.5)}


def test_pools_at_rest_have_no_state() -> None:
    """What is cold without a reason, or gone, is left out; a full message names all there is."""
    overview = Overview()
    overview.look(published(True, f="warm", g="failing"))
    assert overview.states() == {F: "warm", G: "failing"}
    overview.look(published(False, f="rest"))
    assert overview.states() == {G: "failing"}
    overview.look(published(False, g="gone", f="waking"))
    assert overview.states() == {F: "waking"}
    overview.look(published(True, g="cold"))

    assert overview.states() == {G: "cold"}


def test_background_work_is_counted_over_living_workers() -> None:
    """As each last said."""
    overview = Overview()
    for worker, count in (("a", 3), ("b", 4), ("a", 5)):
        overview.beat(worker, count)
    assert overview.tasks == 9
    overview.forget("a")

    assert overview.tasks == 4
