"""All metric families that `/metrics` can show, collected from the code that produces them."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import cache
from typing import NamedTuple

from prometheus_client.core import Metric

from admin.metrics import (
    BuildsSeen,
    DevicesSeen,
    HostsSeen,
    ReplicasSeen,
    ServerSeen,
    Source,
    server_families,
    show_builds,
    show_devices,
    show_golden,
    show_held,
    show_hosts,
    show_refusals,
    show_replicas,
    show_runs,
)
from admin.workers.messages import LedgerNow, ReadLedger
from admin.workers.metrics import MergedMetrics
from admin.workers.shared_counters import OwnCounters
from gateway.metrics.ledger import Balance
from gateway.metrics.requests import Metrics
from hosts.tls.limits import Refusal
from pool_manager.core.health.liveness import Cause
from pool_manager.core.state import Device
from pool_manager.golden import SampleCount
from pool_manager.host import HostView
from pool_manager.metrics import WAKES, Counts, Supplied
from pool_manager.ports import GpuView
from pool_manager.reports import Occupancy
from pool_manager.usage import HeldTotal
from registry.store.history import HistoryStatistics
from runtime_image.contract.gpus import Reading, Telemetry
from runtime_image.contract.samples import SampleVerdict

SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "info": ("_info",)}


class Family(NamedTuple):
    """One metric family: its Prometheus name, its kind and its sample names."""

    name: str
    kind: str
    samples: frozenset[str]


EMPTY = Balance()


def page(balance: Balance = EMPTY) -> tuple[MergedMetrics, Metrics]:
    """Return a page with every source and all counters at zero, and the metrics of its gateway."""

    async def answers(_question: ReadLedger) -> dict[str, LedgerNow]:
        return {"7": LedgerNow(balance, [])}

    is_deployed = lambda *_: True  # noqa: E731
    shown = MergedMetrics(answers, lambda: {"default/f@1": "warm"}, lambda: 1, is_deployed, float)
    asyncio.run(shown.refresh())
    counters = OwnCounters()
    shown.add("7", counters)
    reading = Reading("GPU-a", "0", telemetry=Telemetry(power_w=1.0))
    view = GpuView("GPU", "0", "9.0", "580", 2.0, 1.0, 0.0, 0.5, reading, xids={79: 1})
    gpu = Occupancy(Device("GPU-a", "cuda", 2.0), "taken", "", (), 1.0, view)
    replaced = Counter({("default/f", str(one)): 0 for one in Cause})
    wakes = Counter({("default/f", str(one)): 0 for one in WAKES})
    counts = Counts(replaced=replaced, wakes=wakes)
    replicas = ReplicasSeen(counts, [Supplied("default/f@1", 1, {"ready": 1})], 1)
    held = [HeldTotal("default", "f", "cuda", 1.0, 1.0)]
    checks = [SampleCount("default", "f", SampleVerdict.RIGHT, 1)]
    known = {"rtt_ms": 0.5, "disk_free_mib": 1.0, "cached_mib": 1.0, "transferred_bytes": 1}
    hosts = HostsSeen([HostView("gpu2", **known)], {"gpu2": 1.0})
    server = ServerSeen(HistoryStatistics(0, 0, 0, 0), running=1, deaths=0)
    for source in (
        Source(lambda: replicas, show_replicas),
        Source(lambda: {"default/f@1": 1}, show_runs),
        Source(lambda: DevicesSeen([gpu], {}), show_devices),
        Source(lambda: held, show_held),
        Source(lambda: checks, show_golden),
        Source(lambda: BuildsSeen({}, running=1, waiting=1), show_builds),
        Source(lambda: hosts, show_hosts),
        Source(lambda: dict.fromkeys(Refusal, 0), show_refusals),
        Source(lambda: server, server_families("process")),
    ):
        shown.add_source(source)
    return shown, Metrics(is_deployed, counters)


@cache
def families() -> tuple[Family, ...]:
    """Return every family."""
    shown, _ = page()
    shown.snapshot()
    return tuple(_family(one) for one in shown.collect())


def _family(metric: Metric) -> Family:
    suffixes = SUFFIXES.get(metric.type, ("",))
    shown = metric.name if metric.type == "histogram" else metric.name + suffixes[0]
    return Family(shown, metric.type, frozenset(metric.name + one for one in suffixes))
