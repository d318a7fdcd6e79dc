"""Tests of all that the manager counts."""

from __future__ import annotations

from pool_manager.core.cluster import Cluster
from pool_manager.core.commands import Launch
from pool_manager.core.events import Loaded, Tick
from pool_manager.core.state import Device
from pool_manager.metrics import Counters


def test_counts_supply_and_waiting_starts_are_together() -> None:
    """Counts, supply and waiting starts are read at the time of the query."""
    line = ["r1"]
    counters = Counters(Cluster([Device("cpu0", "cpu")]), line)
    before = counters.counts()
    launch, loaded = Launch("r1", "a@1", ("cpu0",), "serve", {}), Loaded("r1", 1, True, 10.0, {})
    for about in (Tick(), launch, loaded):
        counters.note(about)
    counters.failed("metering")

    assert before.starts == {}
    assert counters.counts().starts == {("process", "ready"): 1}
    assert counters.counts().defects == {"metering": 1}
    assert counters.waiting_starts == 1
    assert counters.supplied() == []
