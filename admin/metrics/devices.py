"""Devices on `/metrics`: their memory, what is counted on it, and how busy GPUs are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from pool_manager.telling.occupancy import Occupancy

MIB: Final = 2**20
LABELS: Final = ("device", "kind")


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

    def look(self) -> None:
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
