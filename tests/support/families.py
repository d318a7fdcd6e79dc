"""All metric families that `/metrics` can show, collected from the code that produces them."""

from __future__ import annotations

from collections import Counter
from functools import cache
from types import SimpleNamespace
from typing import NamedTuple

from prometheus_client.core import Metric

from admin.metrics import (
    BuildFamilies,
    DeviceFamilies,
    GoldenFamilies,
    HeldFamilies,
    HostFamilies,
    ReplicaFamilies,
    RunFamilies,
    ServerFamilies,
)
from gateway.metrics.ledger import Balance
from gateway.metrics.requests import Metrics
from pool_manager.core.health.liveness import Cause
from pool_manager.core.state import Device
from pool_manager.golden import SampleCount
from pool_manager.host import HostView
from pool_manager.metrics import WAKES, Counts, Supplied
from pool_manager.ports import GpuView
from pool_manager.reports import Occupancy
from pool_manager.usage import HeldTotal
from registry.builds import BuildEnd
from registry.store.history import HistoryStatistics
from runtime_image.contract.gpus import Reading, Telemetry
from runtime_image.contract.samples import SampleVerdict

SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "info": ("_info",)}


class Family(NamedTuple):
    """One metric family: its Prometheus name, its kind and its sample names."""

    name: str
    kind: str
    samples: frozenset[str]


class _Counters:
    """Counters of a pool manager."""

    waiting_starts = 0

    def counts(self) -> Counts:
        replaced = Counter({("default/f", str(one)): 0 for one in Cause})
        wakes = Counter({("default/f", str(one)): 0 for one in WAKES})
        return Counts(replaced=replaced, wakes=wakes)

    def supplied(self) -> list[Supplied]:
        return [Supplied("default/f@1", 1, {"ready": 1})]


class _Builds:
    """Builds of which none has ended."""

    is_running = True

    def __init__(self) -> None:
        self.outcomes: Counter[BuildEnd] = Counter()

    def waiting(self) -> int:
        return 1


EMPTY = Balance()


def page(balance: Balance = EMPTY) -> Metrics:
    """Return a page with every source and all counters at zero."""
    metrics = Metrics(lambda: balance, lambda: {"default/f@1": "warm"}, lambda: 1, lambda *_: True)
    reading = Reading("GPU-a", "0", telemetry=Telemetry(power_w=1.0))
    view = GpuView("GPU", "0", "9.0", "580", 2.0, 1.0, 0.0, 0.5, reading, xids={79: 1})
    gpu = Occupancy(Device("GPU-a", "cuda", 2.0), "taken", "", (), 1.0, view)
    metrics.add_source(ReplicaFamilies(_Counters()))
    metrics.add_source(RunFamilies(lambda: {"default/f@1": 1}))
    metrics.add_source(DeviceFamilies(lambda: [gpu], dict))
    held = [HeldTotal("default", "f", "cuda", 1.0, 1.0)]
    metrics.add_source(HeldFamilies(lambda: held))
    checks = [SampleCount("default", "f", SampleVerdict.RIGHT, 1)]
    metrics.add_source(GoldenFamilies(lambda: checks))
    metrics.add_source(BuildFamilies(_Builds()))
    shown = {"rtt_ms": 0.5, "disk_free_mib": 1.0, "cached_mib": 1.0, "transferred_bytes": 1}
    hosts = [HostView("gpu2", **shown)]
    metrics.add_source(HostFamilies(lambda: hosts, lambda: {"gpu2": 1.0}))
    metrics.add_source(
        ServerFamilies(
            "process", lambda: HistoryStatistics(0, 0, 0, 0), SimpleNamespace(running=1, deaths=0)
        )
    )
    return metrics


@cache
def families() -> tuple[Family, ...]:
    """Return every family."""
    metrics = page()
    metrics.snapshot()
    return tuple(_family(one) for one in metrics.collect())


def _family(metric: Metric) -> Family:
    suffixes = SUFFIXES.get(metric.type, ("",))
    shown = metric.name if metric.type == "histogram" else metric.name + suffixes[0]
    return Family(shown, metric.type, frozenset(metric.name + one for one in suffixes))
