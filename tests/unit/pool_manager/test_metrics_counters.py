"""Tests of all that the manager counts."""

from __future__ import annotations

from pool_manager.core.cluster import Cluster
from pool_manager.core.commands import Launch, RecordReplacement, RecordWake
from pool_manager.core.events import Loaded, Tick
from pool_manager.core.health.liveness import Cause
from pool_manager.core.pool import Pool
from pool_manager.core.state import Device, ParkSpec, PoolSpec
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


def test_replacements_count_from_zero() -> None:
    """Of each function whose servers may be replaced, by every cause, once for all its revisions: a
    series that began with 1 would have no increase."""
    cluster = Cluster([Device("cpu0", "cpu")])
    for key, more in (
        ("default/web@1", {"is_server": True}),
        ("default/web@2", {"is_server": True}),
        ("default/off@1", {"is_server": True, "hang": "off"}),
        ("default/model@1", {}),
        ("default/new@trial-1", {"is_server": True, "role": "trial"}),
    ):
        cluster.pools[key] = Pool(PoolSpec(key, **more))
    counters = Counters(cluster, [])
    assert counters.counts().replaced == {("default/web", one): 0 for one in Cause}

    counters.note(RecordReplacement("default/web@1", "r1", Cause.REFUSED, "it does not listen"))

    assert counters.counts().replaced["default/web", Cause.REFUSED] == 1
    assert counters.counts().replaced.total() == 1


def test_wakes_count_from_zero() -> None:
    """Of each function whose servers may be parked, by every outcome; those of a function that was
    removed are forgotten."""
    cluster, park = Cluster([Device("g0", "cuda")]), ParkSpec(1.0, 0.5, 100.0, 10.0)
    for key, more in (
        ("default/llm@1", {"park": park}),
        ("default/llm@2", {"park": park}),
        ("default/web@1", {"is_server": True}),
        ("default/new@trial-1", {"park": park, "role": "trial"}),
    ):
        cluster.pools[key] = Pool(PoolSpec(key, **more))
    counters = Counters(cluster, [])
    none = {("default/llm", one): 0 for one in ("right", "wrong", "failed")}
    assert counters.counts().wakes == none

    counters.note(RecordWake("default/llm@2", "r1", "wrong", 2.0, "gibberish"))
    counters.note(RecordWake("default/gone@1", "r2", "right", 2.0))

    assert counters.counts().wakes == none | {("default/llm", "wrong"): 1}
