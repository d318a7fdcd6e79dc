"""Metric families of `/metrics` besides the gateways': server, devices, replicas.

Each `show_...` function makes the families of what was read for it; `Source` reads in the event
loop's thread, and shows in another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Final, Generic, NamedTuple, TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from gateway.metrics.ledger import ENDINGS, Balance
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
DEVICE: Final = ("device", "kind", "host")
"""Labels of a device."""
REACHED: Final = ("up", "draining")
"""States of a host that the server is connected to."""
T = TypeVar("T")
Kind = type[CounterMetricFamily | GaugeMetricFamily]
Rows = Iterable[tuple[Sequence[str], float | None]]
"""Values of the labels, and the sample's value; without a sample if that is unknown."""
COUNTER: Final = CounterMetricFamily
GAUGE: Final = GaugeMetricFamily


class Source(Generic[T]):
    """Families of what `read` returned at the last `snapshot`, made by `show`."""

    def __init__(self, read: Callable[[], T], show: Callable[[T], Iterable[Metric]]) -> None:
        self._read, self._show = read, show
        self._seen = read()

    def snapshot(self) -> None:
        """Read the values; must run on the event loop's thread."""
        self._seen = self._read()

    def collect(self) -> Iterable[Metric]:
        """Return the families, in any thread (prometheus_client)."""
        return self._show(self._seen)


def _family(
    kind: Kind, name: str, text: str, labels: Sequence[str], rows: Rows, unit: str = ""
) -> Metric:
    family = kind(name, text, labels=labels, unit=unit)
    for values, value in rows:
        if value is not None:
            family.add_metric(values, value)
    return family


class GatewaysSeen(NamedTuple):
    """What all gateways have and do."""

    balance: Balance
    states: Mapping[str, str]
    """States of the pools that are not at rest."""
    tasks: int
    """Tasks of the server's event loop, and of the gateways'."""


def show_gateways(seen: GatewaysSeen) -> Iterable[Metric]:
    """Yield the families of the ledger, of pools' states, and of tasks."""
    balance = seen.balance
    text = "Accepted requests; each is counted once in fngate_ended_total when it ends."
    yield COUNTER("fngate_accepted", text, balance.accepted)
    text = "Accepted requests that have ended, by outcome."
    ended = (([how], balance.ended.get(how, 0.0)) for how in ENDINGS)
    yield _family(COUNTER, "fngate_ended", text, ["how"], ended)
    text = "Accepted requests that have not ended."
    places = {"held": balance.held, "in_flight": balance.in_flight}
    unended = (([where], sum(counts.values())) for where, counts in places.items())
    yield _family(GAUGE, "fngate_open_requests", text, ["where"], unended)
    text = "Requests that wait for a replica."
    yield _by_pool(GAUGE, "fngate_held", text, balance.held)
    text = "Requests at replicas."
    yield _by_pool(GAUGE, "fngate_in_flight", text, balance.in_flight)
    text = "1 for the current state of a pool; cold pools without calls are omitted."
    current = ((one, 1) for one in seen.states.items())
    yield _family(GAUGE, "fngate_pool_state", text, ["pool", "state"], current)
    yield GAUGE("fngate_tasks", "Tasks of the server's event loop.", seen.tasks)


class ServerSeen(NamedTuple):
    """What the server does besides."""

    written: HistoryStatistics
    """Statistics of the history's writer."""
    running: int
    """Running gateways."""
    deaths: int
    """Unexpected exits of gateways since the start."""


def server_families(driver: str) -> Callable[[ServerSeen], Iterable[Metric]]:
    """Return what shows the server's families; memory and CPU time of the process are those of the
    moment of showing."""
    about = {"version": version("fngate"), "driver": driver}
    process = ProcessCollector(registry=CollectorRegistry())

    def show(seen: ServerSeen) -> Iterable[Metric]:
        written, running, deaths = seen
        yield InfoMetricFamily("fngate_build", "Version and driver of this server.", about)
        yield GAUGE("fngate_gateway_processes", "Processes that accept calls.", running)
        text = "Gateway processes that exited unexpectedly; each is replaced."
        yield COUNTER("fngate_gateway_process_deaths", text, deaths)
        text = "Records of the history that are buffered and not yet written."
        yield GAUGE("fngate_history_waiting_records", text, written.buffered)
        text = (
            "Records of the history that were dropped: the buffer was full, or storing them failed."
        )
        yield COUNTER("fngate_history_dropped_records", text, written.dropped)
        text = "Failed writes of the history or of a part of it."
        yield COUNTER("fngate_history_failed_flushes", text, written.failed_flushes)
        yield from process.collect()

    return show


class DevicesSeen(NamedTuple):
    """Every device, and the memory that stopped replicas released on each since the start."""

    devices: list[Occupancy]
    reclaimed_mib: Mapping[str, float]


def show_devices(seen: DevicesSeen) -> Iterable[Metric]:
    """Yield the families of devices. Values that a device's driver does not report have no
    sample."""
    devices = seen.devices
    text = "1 for the current state of a device: free, taken, quarantined or cordoned."
    states = (((*_labels(one), one.state), 1) for one in devices)
    yield _family(GAUGE, "fngate_device_state", text, [*DEVICE, "state"], states)
    text = "Memory of a device. CPU slots share theirs: each shows the whole."
    yield _memory("", text, devices, _size_mib)
    text = "Used memory of a GPU as its driver reports it, by any process."
    yield _memory("_used", text, devices, lambda one: one.gpu.used_mib if one.gpu else None)
    text = "Memory of a device that is charged to its replicas."
    yield _memory("_charged", text, devices, lambda one: one.charged_mib)
    text = "Memory that stopped replicas did not release: the device is quarantined."
    yield _memory("_leaked", text, devices, lambda one: one.leaked_mib)
    text = "Memory of a device that parked replicas keep: a part of what is charged."
    yield _memory("_residue", text, devices, lambda one: one.residue_mib)
    text = "Memory that stopped replicas released: the amount that they were measured to use."
    released = seen.reclaimed_mib
    yield _memory(
        "_reclaimed", text, devices, lambda one: released.get(one.device.id, 0.0), COUNTER
    )
    text = "Share of the driver's last sample period (at most 1 s) in which a GPU was busy."
    name = "fngate_device_utilization_ratio"
    busy = ((_labels(one), one.gpu.utilization) for one in devices if one.gpu)
    yield _family(GAUGE, name, text, DEVICE, busy, "ratio")
    text = "Power that a GPU draws, as its driver reports it; slices show that of their GPU."
    drawn = ((_labels(one), _watts(one)) for one in devices)
    yield _family(GAUGE, "fngate_device_power_watts", text, DEVICE, drawn, "watts")
    text = "XID errors that the driver reported for a GPU since the server's start, by number."
    errors = (
        ((*_labels(one), str(xid)), count)
        for one in devices
        for xid, count in (one.gpu.xids if one.gpu else {}).items()
    )
    yield _family(COUNTER, "fngate_device_xid_errors", text, [*DEVICE, "xid"], errors)


def _labels(one: Occupancy) -> list[str]:
    return [one.device.id, one.device.kind, one.device.host]


def _memory(
    what: str,
    text: str,
    devices: Iterable[Occupancy],
    mib_of: Callable[[Occupancy], float | None],
    kind: Kind = GAUGE,
) -> Metric:
    rows = ((_labels(one), _scaled(mib_of(one), MIB)) for one in devices)
    return _family(kind, f"fngate_device_memory{what}_bytes", text, DEVICE, rows, "bytes")


def _size_mib(one: Occupancy) -> float | None:
    if one.gpu is not None and one.gpu.total_mib is not None:
        return one.gpu.total_mib
    return one.device.memory_mib or None


def _watts(one: Occupancy) -> float | None:
    telemetry = one.gpu.reading.telemetry if one.gpu and one.gpu.reading else None
    return None if telemetry is None else telemetry.power_w


def _scaled(value: float | None, by: float) -> float | None:
    return None if value is None else value * by


def show_held(totals: list[HeldTotal]) -> Iterable[Metric]:
    """Yield the families of the devices' time and energy by function; values are at most ten
    seconds old."""
    labels = ("function", "kind", "namespace")
    text = (
        "Time that a function's replicas held devices; holders of the same device split it, and"
        " a replica on several GPUs holds each of them. _idle is what no function held."
    )
    owned = [((one.function, one.kind, one.namespace), one) for one in totals]
    seconds = ((values, one.held_s) for values, one in owned)
    yield _family(COUNTER, "fngate_function_device_seconds", text, labels, seconds, "seconds")
    text = "Energy of devices in that time, as their counters show it."
    joules = ((values, one.joules or None) for values, one in owned)
    yield _family(COUNTER, "fngate_function_energy_joules", text, labels, joules, "joules")


class HostsSeen(NamedTuple):
    """All hosts, and the memory of each that is charged to replicas which sleep or have slept."""

    hosts: list[HostView]
    parked_mib: Mapping[str, float]


def show_hosts(seen: HostsSeen) -> Iterable[Metric]:
    """Yield the families of hosts. Unknown values have no sample, as those of connections of a host
    without one."""

    def of(value: Callable[[HostView], float | None]) -> Rows:
        return (([one.name], value(one)) for one in seen.hosts)

    def gauge(name: str, text: str, rows: Rows) -> Metric:
        return _family(GAUGE, f"fngate_host_{name}", text, ["host"], rows)

    text = "1 while a host is reached, also while it drains; else 0."
    yield gauge("up", text, of(lambda one: float(one.state in REACHED)))
    text = "Round trip of the control connection to a host."
    yield gauge("rtt_seconds", text, of(lambda one: _scaled(one.rtt_ms, 1e-3)))
    text = "Size of the cache of model files on a host."
    yield gauge("files_bytes", text, of(lambda one: _scaled(one.cached_mib, MIB)))
    text = "Free space of the file system of a host's cache."
    free = of(lambda one: _scaled(one.disk_free_mib, MIB))
    yield gauge("disk_free_bytes", text, free)
    text = (
        "Memory of a host that is charged to replicas that sleep or have slept; a host whose"
        " memory is not accounted has no sample."
    )
    parked = of(lambda one: _scaled(seen.parked_mib.get(one.name), MIB))
    yield gauge("parked_bytes", text, parked)
    text = "Bytes of model files and images that were sent to a host."
    sent = of(lambda one: one.transferred_bytes)
    yield _family(COUNTER, "fngate_host_transferred_bytes", text, ["host"], sent, "bytes")


def show_refusals(seen: Mapping[str, int]) -> Iterable[Metric]:
    """Yield the refusals of the door for replicas by reason; a server without one has none."""
    text = "Connections to the door for replicas that were refused, by reason."
    rows = (([reason], float(count)) for reason, count in seen.items())
    yield _family(COUNTER, "fngate_link_refusals", text, ["reason"], rows)


class BuildsSeen(NamedTuple):
    """Background builds."""

    outcomes: Mapping[BuildEnd, int]
    """Builds that ended since the start."""
    running: int
    waiting: int
    """Functions whose model waits to be compiled."""


def show_builds(seen: BuildsSeen) -> Iterable[Metric]:
    """Yield the families of builds."""
    text = "Builds of compiled models that ended, by outcome."
    yield _each("fngate_builds", text, "outcome", BUILD_ENDS, seen.outcomes)
    yield GAUGE("fngate_running_builds", "Builds that a replica works on.", seen.running)
    text = "Functions whose model waits to be compiled."
    yield GAUGE("fngate_waiting_builds", text, seen.waiting)


class ReplicasSeen(NamedTuple):
    """Counts since the start, pools that have replicas or want some, and waiting starts."""

    counts: Counts
    supplied: list[Supplied]
    waiting_starts: int


def show_replicas(seen: ReplicasSeen) -> Iterable[Metric]:
    """Yield the families of replicas. Counters are shown as 0 from the start."""
    counts, supplied, waiting = seen
    text = "Replicas that a pool wants; pools that want none and have none are left out."
    wanted = {pool: count for pool, count, _ in supplied}
    yield _by_pool(GAUGE, "fngate_pool_wanted_replicas", text, wanted)
    text = "Replicas that a pool has, by state; one on several GPUs counts once."
    there = (
        ((pool, state), number)
        for pool, _, replicas in supplied
        for state, number in replicas.items()
    )
    yield _family(GAUGE, "fngate_pool_replicas", text, ["pool", "state"], there)
    yield GAUGE("fngate_waiting_starts", "Starts of replicas that wait in the queue.", waiting)
    text = (
        "Starts of replicas by kind (in a new process, of a standby, of a standby ahead of its"
        " use, or for a deploy) and by outcome."
    )
    starts = ((key, counts.starts.get(key, 0)) for key in _pairs(KINDS, OUTCOMES))
    yield _family(COUNTER, "fngate_replica_starts", text, ["kind", "outcome"], starts)
    text = "Replicas that ended unexpectedly, by reason, while they started or later."
    failures = ((key, counts.failures.get(key, 0)) for key in _pairs(WHEN, REASONS))
    yield _family(COUNTER, "fngate_replica_failures", text, ["when", "reason"], failures)
    text = "Servers that were ready, did not answer any more and were replaced, by reason."
    yield _by_function("fngate_replicas_replaced", text, "reason", counts.replaced)
    text = (
        "Wakes of parked replicas by outcome: right, wrong (awake, its golden sample showed"
        " damage) or failed."
    )
    yield _by_function("fngate_wakes", text, "outcome", counts.wakes)
    text = "Replicas that were evicted for another pool: idle ones, and busy ones after a wait."
    yield _each("fngate_evictions", text, "victim", EVICTIONS, counts.evictions)
    text = "Revisions whose requests are no longer batched, because a joined run lost rows."
    yield COUNTER("fngate_batching_refuted", text, counts.refuted.total())
    text = "Cold starts, whether or not a call waited for them."
    yield _each("fngate_cold_starts", text, "outcome", COLD_STARTS, counts.cold_starts)
    text = "Internal errors of the pool manager in handling, executing or counting an event."
    yield _each("fngate_manager_errors", text, "step", STEPS, counts.defects)


def show_golden(checks: list[SampleCount]) -> Iterable[Metric]:
    """Yield the family of golden samples; functions that were never checked are left out."""
    text = (
        "Checks of servers by their golden samples, by what they showed; a wrong answer counts"
        " once it is confirmed."
    )
    labels = ["function", "namespace", "verdict"]
    rows = (((one.function, one.namespace, one.verdict), one.checks) for one in checks)
    yield _family(COUNTER, "fngate_golden_samples", text, labels, rows)


def show_runs(runs: Mapping[str, int]) -> Iterable[Metric]:
    """Yield the family of runs by pool; pools that ran nothing are left out."""
    text = "Successful runs of models, as replicas reported them with their last PONG."
    yield _by_pool(COUNTER, "fngate_runs", text, runs)


def _by_pool(kind: Kind, name: str, text: str, counts: Mapping[str, int]) -> Metric:
    return _family(kind, name, text, ["pool"], (([pool], n) for pool, n in counts.items()))


def _pairs(first: Sequence[str], second: Sequence[str]) -> Iterable[tuple[str, str]]:
    return ((one, other) for one in first for other in second)


def _by_function(name: str, text: str, label: str, counts: Mapping[tuple[str, str], int]) -> Metric:
    """Return a family of counts by function, as "NAMESPACE/NAME", and a value of `label`."""
    split = ((function.rpartition("/"), value, n) for (function, value), n in counts.items())
    rows = (((place[0], place[2], value), n) for place, value, n in split)
    return _family(COUNTER, name, text, ("namespace", "function", label), rows)


K = TypeVar("K", bound=str)


def _each(name: str, text: str, label: str, values: Sequence[K], counts: Mapping[K, int]) -> Metric:
    """Return a family with a sample for each value of its label."""
    return _family(COUNTER, name, text, [label], (([one], counts.get(one, 0)) for one in values))
