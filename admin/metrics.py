"""Metric families of `/metrics` besides the gateway's: server, devices, replicas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Final, Protocol, TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from pool_manager.golden import SampleCount
from pool_manager.host import HostView
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
from pool_manager.usage import HeldTotal
from registry.builds import BUILD_ENDS, BuildEnd
from registry.store.history import HistoryStatistics

MIB: Final = 2**20
LABELS: Final = ("device", "kind", "host")
REACHED: Final = ("up", "draining")
"""States of a host that the server is connected to."""
K = TypeVar("K", bound=str)
Label = tuple[str, tuple[str, ...]]
"""Name of a label, and all its values."""


class Builds(Protocol):
    """Background builds; `outcomes` counts since the start."""

    outcomes: Counter[BuildEnd]

    @property
    def is_running(self) -> bool:
        """Whether a replica compiles a model."""

    def waiting(self) -> int:
        """Return the number of functions whose model waits to be compiled."""


class Gateways(Protocol):
    """Processes that accept calls."""

    @property
    def running(self) -> int:
        """Number of running gateway processes."""

    @property
    def deaths(self) -> int:
        """Number of unexpected exits since the start."""


class ServerFamilies:
    """Families of the server, as of the last `snapshot`. `statistics` are those of the history's
    writer."""

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
        """Read the values; must run on the event loop's thread."""
        self._seen = self._statistics(), self._gateways.running, self._gateways.deaths

    def collect(self) -> Iterable[Metric]:
        """Yield the families; memory and CPU time of the process are current values."""
        written, running, deaths = self._seen
        yield InfoMetricFamily("fngate_build", "Version and driver of this server.", self._about)
        text = "Processes that accept calls."
        yield GaugeMetricFamily("fngate_gateway_processes", text, running)
        text = "Gateway processes that exited unexpectedly; each is replaced."
        yield CounterMetricFamily("fngate_gateway_process_deaths", text, deaths)
        text = "Records of the history that are buffered and not yet written."
        yield GaugeMetricFamily("fngate_history_waiting_records", text, written.buffered)
        text = (
            "Records of the history that were dropped: the buffer was full, or storing them failed."
        )
        yield CounterMetricFamily("fngate_history_dropped_records", text, written.dropped)
        text = "Failed writes of the history or of a part of it."
        yield CounterMetricFamily("fngate_history_failed_flushes", text, written.failed_flushes)
        yield from self._process.collect()


class DeviceFamilies:
    """Families of devices, as of the last `snapshot`. `occupancies` returns every device,
    `reclaimed_mib` the memory that stopped replicas released on each since the start."""

    def __init__(
        self,
        occupancies: Callable[[], list[Occupancy]],
        reclaimed_mib: Callable[[], Mapping[str, float]],
    ) -> None:
        self._occupancies = occupancies
        self._reclaimed_mib = reclaimed_mib
        self._seen: tuple[list[Occupancy], Mapping[str, float]] = ([], {})

    def snapshot(self) -> None:
        """Read the values; must run on the event loop's thread."""
        self._seen = self._occupancies(), self._reclaimed_mib()

    def collect(self) -> Iterable[Metric]:
        """Yield the families. Values that a device's driver does not report have no sample."""
        devices, reclaimed_mib = self._seen
        yield _state(devices)
        text = "Memory of a device. CPU slots share theirs: each shows the whole."
        yield _bytes("", text, devices, _size_mib)
        text = "Used memory of a GPU as its driver reports it, by any process."
        yield _bytes("_used", text, devices, lambda one: one.gpu.used_mib if one.gpu else None)
        text = "Memory of a device that is charged to its replicas."
        yield _bytes("_charged", text, devices, lambda one: one.charged_mib)
        text = "Memory that stopped replicas did not release: the device is quarantined."
        yield _bytes("_leaked", text, devices, lambda one: one.leaked_mib)
        text = "Memory of a device that parked replicas keep: a part of what is charged."
        yield _bytes("_residue", text, devices, lambda one: one.residue_mib)
        yield _reclaimed(devices, reclaimed_mib)
        yield _utilization(devices)
        yield _power(devices)
        yield _xids(devices)


class HeldFamilies:
    """Families of the devices' time and energy by function, as of the last `snapshot`. `totals`
    returns them."""

    def __init__(self, totals: Callable[[], list[HeldTotal]]) -> None:
        self._totals = totals
        self._seen: list[HeldTotal] = []

    def snapshot(self) -> None:
        """Read the values; must run on the event loop's thread."""
        self._seen = self._totals()

    def collect(self) -> Iterable[Metric]:
        """Yield the families; values are at most ten seconds old."""
        labels = ("function", "kind", "namespace")
        text = (
            "Time that a function's replicas held devices; holders of the same device split it, and"
            " a replica on several GPUs holds each of them. _idle is what no function held."
        )
        seconds = CounterMetricFamily(
            "fngate_function_device_seconds", text, labels=labels, unit="seconds"
        )
        text = "Energy of devices in that time, as their counters show it."
        joules = CounterMetricFamily(
            "fngate_function_energy_joules", text, labels=labels, unit="joules"
        )
        for one in self._seen:
            values = [one.function, one.kind, one.namespace]
            seconds.add_metric(values, one.held_s)
            if one.joules:
                joules.add_metric(values, one.joules)
        yield from (seconds, joules)


class HostFamilies:
    """Families of hosts, as of the last `snapshot`. `hosts` returns them all, `parked_mib` the
    memory of each that is charged to replicas which sleep or have slept."""

    def __init__(
        self, hosts: Callable[[], list[HostView]], parked_mib: Callable[[], Mapping[str, float]]
    ) -> None:
        self._hosts, self._parked_mib = hosts, parked_mib
        self._seen: list[HostView] = []
        self._parked: Mapping[str, float] = {}

    def snapshot(self) -> None:
        """Read the values; must run on the event loop's thread."""
        self._seen, self._parked = self._hosts(), self._parked_mib()

    def collect(self) -> Iterable[Metric]:
        """Yield the families. Unknown values have no sample, as those of connections of a host
        without one."""
        hosts = self._seen
        text = "1 while a host is reached, also while it drains; else 0."
        yield _of_hosts("fngate_host_up", text, hosts, lambda one: float(one.state in REACHED))
        text = "Round trip of the control connection to a host."
        yield _of_hosts(
            "fngate_host_rtt_seconds", text, hosts, lambda one: _scaled(one.rtt_ms, 1e-3)
        )
        text = "Size of the cache of model files on a host."
        yield _of_hosts(
            "fngate_host_files_bytes", text, hosts, lambda one: _scaled(one.cached_mib, MIB)
        )
        text = "Free space of the file system of a host's cache."
        yield _of_hosts(
            "fngate_host_disk_free_bytes", text, hosts, lambda one: _scaled(one.disk_free_mib, MIB)
        )
        text = (
            "Memory of a host that is charged to replicas that sleep or have slept; a host whose"
            " memory is not accounted has no sample."
        )
        yield _of_hosts(
            "fngate_host_parked_bytes", text, hosts, lambda one: _scaled(self._mib(one), MIB)
        )
        text = "Bytes of model files and images that were sent to a host."
        family = CounterMetricFamily(
            "fngate_host_transferred_bytes", text, labels=["host"], unit="bytes"
        )
        for one in hosts:
            if one.transferred_bytes is not None:
                family.add_metric([one.name], one.transferred_bytes)
        yield family

    def _mib(self, host: HostView) -> float | None:
        return self._parked.get(host.name)


class BuildFamilies:
    """Families of builds, as of the last `snapshot`."""

    def __init__(self, builds: Builds) -> None:
        self._builds = builds
        self._seen: tuple[Mapping[str, int], int, int] = ({}, 0, 0)

    def snapshot(self) -> None:
        """Read the values; must run on the event loop's thread."""
        builds = self._builds
        outcomes: dict[str, int] = {end: builds.outcomes[end] for end in BUILD_ENDS}
        self._seen = outcomes, int(builds.is_running), builds.waiting()

    def collect(self) -> Iterable[Metric]:
        """Yield the families."""
        outcomes, running, waiting = self._seen
        text = "Builds of compiled models that ended, by outcome."
        yield _singles("fngate_builds", text, ("outcome", BUILD_ENDS), outcomes)
        text = "Builds that a replica works on."
        yield GaugeMetricFamily("fngate_running_builds", text, running)
        text = "Functions whose model waits to be compiled."
        yield GaugeMetricFamily("fngate_waiting_builds", text, waiting)


def _of_hosts(
    name: str, text: str, hosts: Iterable[HostView], of: Callable[[HostView], float | None]
) -> Metric:
    family = GaugeMetricFamily(name, text, labels=["host"])
    for one in hosts:
        value = of(one)
        if value is not None:
            family.add_metric([one.name], value)
    return family


def _scaled(value: float | None, by: float) -> float | None:
    return None if value is None else value * by


def _size_mib(one: Occupancy) -> float | None:
    if one.gpu is not None and one.gpu.total_mib is not None:
        return one.gpu.total_mib
    return one.device.memory_mib or None


def _labels(one: Occupancy) -> list[str]:
    return [one.device.id, one.device.kind, one.device.host]


def _state(devices: Iterable[Occupancy]) -> Metric:
    text = "1 for the current state of a device: free, taken, quarantined or cordoned."
    family = GaugeMetricFamily("fngate_device_state", text, labels=[*LABELS, "state"])
    for one in devices:
        family.add_metric([*_labels(one), one.state], 1)
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
            family.add_metric(_labels(one), mib * MIB)
    return family


def _reclaimed(devices: Iterable[Occupancy], reclaimed_mib: Mapping[str, float]) -> Metric:
    text = "Memory that stopped replicas released: the amount that they were measured to use."
    name = "fngate_device_memory_reclaimed_bytes"
    family = CounterMetricFamily(name, text, labels=LABELS, unit="bytes")
    for one in devices:
        mib = reclaimed_mib.get(one.device.id, 0.0)
        family.add_metric(_labels(one), mib * MIB)
    return family


def _utilization(devices: Iterable[Occupancy]) -> Metric:
    text = "Share of the driver's last sample period (at most 1 s) in which a GPU was busy."
    name = "fngate_device_utilization_ratio"
    family = GaugeMetricFamily(name, text, labels=LABELS, unit="ratio")
    for one in devices:
        if one.gpu is not None and one.gpu.utilization is not None:
            family.add_metric(_labels(one), one.gpu.utilization)
    return family


def _power(devices: Iterable[Occupancy]) -> Metric:
    text = "Power that a GPU draws, as its driver reports it; slices show that of their GPU."
    family = GaugeMetricFamily("fngate_device_power_watts", text, labels=LABELS, unit="watts")
    for one in devices:
        telemetry = one.gpu.reading.telemetry if one.gpu and one.gpu.reading else None
        if telemetry is not None and telemetry.power_w is not None:
            family.add_metric(_labels(one), telemetry.power_w)
    return family


def _xids(devices: Iterable[Occupancy]) -> Metric:
    text = "XID errors that the driver reported for a GPU since the server's start, by number."
    family = CounterMetricFamily("fngate_device_xid_errors", text, labels=[*LABELS, "xid"])
    for one in devices:
        for xid, count in (one.gpu.xids if one.gpu else {}).items():
            family.add_metric([*_labels(one), str(xid)], count)
    return family


class Counters(Protocol):
    """Counters of the pool manager."""

    def counts(self) -> Counts:
        """Return the counts since the start."""

    def supplied(self) -> list[Supplied]:
        """Return the pools that have replicas or want some."""

    @property
    def waiting_starts(self) -> int:
        """Number of starts that wait in the queue."""


class ReplicaFamilies:
    """Families of replicas, as of the last `snapshot`. Counters are exposed as 0 from the start."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._seen: tuple[Counts, list[Supplied], int] = (Counts(), [], 0)

    def snapshot(self) -> None:
        """Read the values; must run on the event loop's thread."""
        counters = self._counters
        self._seen = counters.counts(), counters.supplied(), counters.waiting_starts

    def collect(self) -> Iterable[Metric]:
        """Yield the families."""
        counts, supplied, waiting = self._seen
        yield from _supply(supplied)
        text = "Starts of replicas that wait in the queue."
        yield GaugeMetricFamily("fngate_waiting_starts", text, waiting)
        yield _pairs(
            "fngate_replica_starts",
            "Starts of replicas by kind (in a new process, of a standby, of a standby ahead of its"
            " use, or for a deploy) and by outcome.",
            ("kind", KINDS),
            ("outcome", OUTCOMES),
            counts.starts,
        )
        yield _pairs(
            "fngate_replica_failures",
            "Replicas that ended unexpectedly, by reason, while they started or later.",
            ("when", WHEN),
            ("reason", REASONS),
            counts.failures,
        )
        yield _by_function(
            "fngate_replicas_replaced",
            "Servers that were ready, did not answer any more and were replaced, by reason.",
            "reason",
            counts.replaced,
        )
        yield _by_function(
            "fngate_wakes",
            "Wakes of parked replicas by outcome: right, wrong (awake, its golden sample showed"
            " damage) or failed.",
            "outcome",
            counts.wakes,
        )
        text = "Replicas that were evicted for another pool: idle ones, and busy ones after a wait."
        yield _singles("fngate_evictions", text, ("victim", EVICTIONS), counts.evictions)
        text = "Revisions whose requests are no longer batched, because a joined run lost rows."
        yield CounterMetricFamily("fngate_batching_refuted", text, counts.refuted.total())
        text = "Cold starts, whether or not a call waited for them."
        yield _singles("fngate_cold_starts", text, ("outcome", COLD_STARTS), counts.cold_starts)
        text = "Internal errors of the pool manager in handling, executing or counting an event."
        yield _singles("fngate_manager_errors", text, ("step", STEPS), counts.defects)


class GoldenFamilies:
    """Family of golden samples, as of the last `snapshot`. `counts` returns their checks."""

    def __init__(self, counts: Callable[[], list[SampleCount]]) -> None:
        self._counts = counts
        self._seen: list[SampleCount] = []

    def snapshot(self) -> None:
        """Read the values; must run on the event loop's thread."""
        self._seen = self._counts()

    def collect(self) -> Iterable[Metric]:
        """Yield the family; functions that were never checked are left out."""
        text = (
            "Checks of servers by their golden samples, by what they showed; a wrong answer counts"
            " once it is confirmed."
        )
        labels = ["function", "namespace", "verdict"]
        family = CounterMetricFamily("fngate_golden_samples", text, labels=labels)
        for one in self._seen:
            family.add_metric([one.function, one.namespace, one.verdict], one.checks)
        yield family


class RunFamilies:
    """Family of runs, as of the last `snapshot`. `runs` returns them by pool."""

    def __init__(self, runs: Callable[[], Mapping[str, int]]) -> None:
        self._runs = runs
        self._seen: Mapping[str, int] = {}

    def snapshot(self) -> None:
        """Read the values; must run on the event loop's thread."""
        self._seen = self._runs()

    def collect(self) -> Iterable[Metric]:
        """Yield the family; pools that ran nothing are left out."""
        text = "Successful runs of models, as replicas reported them with their last PONG."
        family = CounterMetricFamily("fngate_runs", text, labels=["pool"])
        for pool, runs in self._seen.items():
            family.add_metric([pool], runs)
        yield family


def _supply(supplied: list[Supplied]) -> Iterable[Metric]:
    text = "Replicas that a pool wants; pools that want none and have none are left out."
    wanted = GaugeMetricFamily("fngate_pool_wanted_replicas", text, labels=["pool"])
    text = "Replicas that a pool has, by state; one on several GPUs counts once."
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


def _by_function(name: str, text: str, label: str, counts: Mapping[tuple[str, str], int]) -> Metric:
    """Return a family of counts by function, as "NAMESPACE/NAME", and a value of `label`."""
    family = CounterMetricFamily(name, text, labels=("namespace", "function", label))
    for (function, value), count in counts.items():
        namespace, _, function_name = function.rpartition("/")
        family.add_metric([namespace, function_name, value], count)
    return family


def _singles(
    name: str, text: str, label: tuple[str, Sequence[K]], counts: Mapping[K, int]
) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label[0]])
    for value in label[1]:
        family.add_metric([value], counts.get(value, 0))
    return family
