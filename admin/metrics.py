"""Metric families of `/metrics` beside the gateway's: the server, its devices, its replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from pool_manager.metrics import (
    COLD_STARTS,
    EVICTIONS,
    KINDS,
    OUTCOMES,
    REASONS,
    STEPS,
    WHEN,
    Counts,
    Supplied,
)
from pool_manager.reports import Occupancy
from registry.store.history import HistoryStatistics

MIB: Final = 2**20
LABELS: Final = ("device", "kind")
Label = tuple[str, tuple[str, ...]]
"""Its name and all its values."""


class Gateways(Protocol):
    """The processes that calls come to."""

    @property
    def running(self) -> int:
        """How many accept calls."""

    @property
    def deaths(self) -> int:
        """How many have ended unasked since the start."""


class OneGateway:
    """The server's own process is the only one: it runs as long as anybody can ask."""

    running = 1
    deaths = 0


class ServerFamilies:
    """As it was at the last look. `statistics` says how the history is written."""

    def __init__(
        self,
        driver: str,
        statistics: Callable[[], HistoryStatistics],
        gateways: Gateways,
    ) -> None:
        self._about = {"version": version("fngate"), "driver": driver}
        self._statistics = statistics
        self._gateways = gateways
        self._process = ProcessCollector(registry=CollectorRegistry())
        self._seen = (HistoryStatistics(0, 0, 0, 0), 0, 0)

    def snapshot(self) -> None:
        """Read it; in the loop's thread."""
        self._seen = self._statistics(), self._gateways.running, self._gateways.deaths

    def collect(self) -> Iterable[Metric]:
        """The families; memory and time of the process are those of this moment."""
        written, running, deaths = self._seen
        yield InfoMetricFamily("fngate_build", "Which server this is.", self._about)
        text = "Processes that accept calls."
        yield GaugeMetricFamily("fngate_gateway_processes", text, running)
        text = "Gateway processes that ended unasked; each is replaced."
        yield CounterMetricFamily("fngate_gateway_process_deaths", text, deaths)
        text = "Records of the history that wait to be written."
        yield GaugeMetricFamily("fngate_history_waiting_records", text, written.buffered)
        text = (
            "Records of the history that were dropped: too many waited, or they cannot be stored."
        )
        yield CounterMetricFamily("fngate_history_dropped_records", text, written.dropped)
        text = "Times that the history, or a part of it, could not be written."
        yield CounterMetricFamily("fngate_history_failed_flushes", text, written.failed_flushes)
        yield from self._process.collect()


class DeviceFamilies:
    """As they were at the last look. `occupancies` gives every device, `reclaimed_mib` what
    replicas have given back of each since the start."""

    def __init__(
        self,
        occupancies: Callable[[], list[Occupancy]],
        reclaimed_mib: Callable[[], Mapping[str, float]],
    ) -> None:
        self._occupancies = occupancies
        self._reclaimed_mib = reclaimed_mib
        self._seen: tuple[list[Occupancy], Mapping[str, float]] = ([], {})

    def snapshot(self) -> None:
        """Read them; in the loop's thread."""
        self._seen = self._occupancies(), self._reclaimed_mib()

    def collect(self) -> Iterable[Metric]:
        """The families. What a driver does not tell of a device has no sample."""
        devices, reclaimed_mib = self._seen
        yield _state(devices)
        text = "Memory of a device. Slots of the CPU share theirs: each has the whole."
        yield _bytes("", text, devices, _size_mib)
        text = "Memory of a GPU that is in use, by whomever, as its driver sees it."
        yield _bytes("_used", text, devices, lambda one: one.gpu.used_mib if one.gpu else None)
        text = "Memory of a device that its replicas are counted with."
        yield _bytes("_charged", text, devices, lambda one: one.charged_mib)
        text = "Memory that replicas which are gone have not given back: the device is quarantined."
        yield _bytes("_leaked", text, devices, lambda one: one.leaked_mib)
        yield _reclaimed(devices, reclaimed_mib)
        yield _utilization(devices)


def _size_mib(one: Occupancy) -> float | None:
    if one.gpu is not None and one.gpu.total_mib is not None:
        return one.gpu.total_mib
    return one.device.memory_mib or None


def _state(devices: Iterable[Occupancy]) -> Metric:
    text = "1 for the state that a device is in: free, taken, quarantined or cordoned."
    family = GaugeMetricFamily("fngate_device_state", text, labels=[*LABELS, "state"])
    for one in devices:
        family.add_metric([one.device.id, one.device.kind, one.state], 1)
    return family


def _bytes(
    what: str,
    text: str,
    devices: Iterable[Occupancy],
    mib_of: Callable[[Occupancy], float | None],
) -> Metric:
    name = f"fngate_device_memory{what}_bytes"
    family = GaugeMetricFamily(name, text, labels=LABELS, unit="bytes")
    for one in devices:
        mib = mib_of(one)
        if mib is not None:
            family.add_metric([one.device.id, one.device.kind], mib * MIB)
    return family


def _reclaimed(devices: Iterable[Occupancy], reclaimed_mib: Mapping[str, float]) -> Metric:
    text = "Memory that replicas have given back, as they were measured to take it."
    name = "fngate_device_memory_reclaimed_bytes"
    family = CounterMetricFamily(name, text, labels=LABELS, unit="bytes")
    for one in devices:
        mib = reclaimed_mib.get(one.device.id, 0.0)
        family.add_metric([one.device.id, one.device.kind], mib * MIB)
    return family


def _utilization(devices: Iterable[Occupancy]) -> Metric:
    text = "Share of the last second or less in which anything ran on a GPU, as its driver sees it."
    name = "fngate_device_utilization_ratio"
    family = GaugeMetricFamily(name, text, labels=LABELS, unit="ratio")
    for one in devices:
        if one.gpu is not None and one.gpu.utilization is not None:
            family.add_metric([one.device.id, one.device.kind], one.gpu.utilization)
    return family


class Counters(Protocol):
    """What the pool manager counts."""

    def counts(self) -> Counts:
        """Since the start."""

    def supplied(self) -> list[Supplied]:
        """Pools that have replicas or want some."""

    @property
    def waiting_starts(self) -> int:
        """Starts that stand in line."""


class ReplicaFamilies:
    """As they were at the last look. What can be counted is shown from the start, as 0."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._seen: tuple[Counts, list[Supplied], int] = (Counts(), [], 0)

    def snapshot(self) -> None:
        """Read them; in the loop's thread."""
        counters = self._counters
        self._seen = counters.counts(), counters.supplied(), counters.waiting_starts

    def collect(self) -> Iterable[Metric]:
        """The families."""
        counts, supplied, waiting = self._seen
        yield from _supply(supplied)
        text = "Starts of replicas that stand in line."
        yield GaugeMetricFamily("fngate_waiting_starts", text, waiting)
        yield _pairs(
            "fngate_replica_starts",
            "Starts of replicas: in a new process, of a standby, of a standby ahead of its use, or"
            " for a deploy; and how they ended.",
            ("kind", KINDS),
            ("outcome", OUTCOMES),
            counts.starts,
        )
        yield _pairs(
            "fngate_replica_failures",
            "Replicas that ended unasked, while they started or later, and why.",
            ("when", WHEN),
            ("reason", REASONS),
            counts.failures,
        )
        text = "Replicas that made room for another pool: idle ones, and busy ones after a wait."
        yield _singles("fngate_evictions", text, ("victim", EVICTIONS), counts.evictions)
        text = "Revisions whose requests are joined no more, because a joined run lost rows."
        yield CounterMetricFamily("fngate_batching_refuted", text, counts.refuted.total())
        text = "Cold starts, whether or not somebody waited for them."
        yield _singles("fngate_cold_starts", text, ("outcome", COLD_STARTS), counts.cold_starts)
        text = "Defects of the pool manager in handling an event, doing a command, or counting it."
        yield _singles("fngate_manager_errors", text, ("step", STEPS), counts.defects)


def _supply(supplied: list[Supplied]) -> Iterable[Metric]:
    text = "Replicas that a pool wants; pools that want and have none are left out."
    wanted = GaugeMetricFamily("fngate_pool_wanted_replicas", text, labels=["pool"])
    text = "Replicas that a pool has, by state."
    there = GaugeMetricFamily("fngate_pool_replicas", text, labels=["pool", "state"])
    for pool, count, replicas in supplied:
        wanted.add_metric([pool], count)
        for state, number in replicas.items():
            there.add_metric([pool, state], number)
    return [wanted, there]


def _pairs(
    name: str, text: str, first: Label, second: Label, counts: Mapping[tuple[str, str], int]
) -> Metric:
    family = CounterMetricFamily(name, text, labels=[first[0], second[0]])
    for one in first[1]:
        for other in second[1]:
            family.add_metric([one, other], counts.get((one, other), 0))
    return family


def _singles(name: str, text: str, label: Label, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label[0]])
    for value in label[1]:
        family.add_metric([value], counts.get(value, 0))
    return family
