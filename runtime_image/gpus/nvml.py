"""Wrapper of pynvml, the bindings of NVIDIA's management library (NVML), with plain data results.

Every call blocks.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final

import pynvml

from runtime_image.contract.gpus import (
    Ancestor,
    GpuProcess,
    Link,
    NoDriver,
    Reading,
    Snapshot,
    Telemetry,
    XidEvent,
)

MIB: Final = 2**20
EVENTS_MAX: Final = 64
"""Max error reports read at once; the rest is read the next time."""
EVENT_WAIT_MS: Final = 1
LOST: Final = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_GPU_NOT_FOUND)
ABSENT: Final = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
ALL_INSTANCES: Final = 0xFFFFFFFF
CORRECTED: Final = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED
UNCORRECTED: Final = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
PEER_READ: Final = 0
"""NVML_P2P_CAPS_INDEX_READ, which pynvml defines as a tuple by a comma too many."""
ANCESTORS: Final = {level.value: level for level in Ancestor}
COUNT_MAX: Final = 2**53
"""A driver may mark a value as missing by the largest number; real counters stay below this."""


class _Lost(Exception):
    """The queried GPU can no longer be used."""


def _no_driver(error: pynvml.NVMLError) -> NoDriver:
    reason = f"the NVIDIA driver cannot be used: {error}"
    return NoDriver(reason, is_absent=error.value in ABSENT)


class Nvml:
    """One NVML session. Not thread-safe: only one thread may use it at a time."""

    def __init__(self) -> None:
        self._is_open = False
        self._driver: str | None = None
        self._handles: dict[str, tuple[Any, Reading]] = {}
        self._events: Any = None
        self._names: dict[int | None, str] = {}
        self._linked: tuple[str, ...] = ()
        """UUIDs of the whole GPUs that `_links` connect."""
        self._links: tuple[Link, ...] = ()

    def open(self) -> None:
        """Start a session. Raises NoDriver."""
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise _no_driver(error) from error
        self._is_open = True
        self._driver = _ask(pynvml.nvmlSystemGetDriverVersion)

    def close(self) -> None:
        """End the session, if there is one."""
        if not self._is_open:
            return
        self._is_open = False
        self._handles.clear()
        if self._events is not None:
            _ask(pynvml.nvmlEventSetFree, self._events)
            self._events = None
        _ask(pynvml.nvmlShutdown)

    def renew(self) -> None:
        """Start a new session: an old one does not see later GPUs. Raises NoDriver."""
        self.close()
        self.open()

    def read(self) -> Snapshot:
        """Read all GPUs. A GPU whose reading fails is listed in `lost` and does not affect the
        others. Raises NoDriver."""
        lost: dict[str, str] = {}
        unreadable: list[str] = []
        self._handles.clear()
        try:
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            raise _no_driver(error) from error
        for index in range(count):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                uuid = pynvml.nvmlDeviceGetUUID(handle)
            except pynvml.NVMLError as error:
                unreadable.append(f"GPU {index}: {error}")
                continue
            try:
                self._handles |= {one.uuid: (at, one) for at, one in _gpu(handle, uuid, index)}
            except _Lost as error:
                lost[uuid] = str(error)
        gpus = tuple(reading for _, reading in self._handles.values())
        return Snapshot(self._driver, gpus, lost, tuple(unreadable), self._known_links(gpus))

    def read_one(self, uuid: str) -> Reading | None:
        """Read one GPU or slice; None if it cannot be used. Its telemetry is that of the last
        `read`. Raises NoDriver."""
        if uuid not in self._handles:
            return self.read().find(uuid)
        handle, known = self._handles[uuid]
        try:
            return _reading(handle, known)
        except _Lost:
            return None

    def links(self) -> tuple[Link, ...]:
        """Return how each two of the whole GPUs of the last `read` are connected, in the order of
        their PCI addresses. Slices are left out: they have no access to others' memory.

        A connection never changes while a machine runs.
        """
        whole = [(at, one) for at, one in self._handles.values() if not one.parent]
        whole.sort(key=lambda pair: (pair[1].pci_bus or "", pair[1].index))
        return tuple(_link(*first, *second) for first, second in itertools.combinations(whole, 2))

    def _known_links(self, gpus: tuple[Reading, ...]) -> tuple[Link, ...]:
        """Return the connections of which anything is known. They are read anew only if the whole
        GPUs are others: eight have 28 connections, with three calls each."""
        there = tuple(one.uuid for one in gpus if not one.parent)
        if there != self._linked:
            found = (one for one in self.links() if one != Link(one.first, one.second))
            self._linked, self._links = there, tuple(found)
        return self._links

    def xids(self) -> list[XidEvent]:
        """Return the errors reported since the last call, oldest first; empty if the driver does
        not support events."""
        if self._events is None:
            self._register()
        if self._events is None:
            return []
        found = []
        for _ in range(EVENTS_MAX):
            data = _ask(pynvml.nvmlEventSetWait_v2, self._events, EVENT_WAIT_MS)
            if data is None:
                break
            found += self._xid(data)
        return found

    def _register(self) -> None:
        self._events = _ask(pynvml.nvmlEventSetCreate)
        if self._events is None:
            return
        for index in range(_ask(pynvml.nvmlDeviceGetCount) or 0):
            handle = _ask(pynvml.nvmlDeviceGetHandleByIndex, index)
            if handle is not None and (uuid := _ask(pynvml.nvmlDeviceGetUUID, handle)):
                self._names[_address(handle)] = uuid
                kind = pynvml.nvmlEventTypeXidCriticalError
                _ask(pynvml.nvmlDeviceRegisterEvents, handle, kind, self._events)

    def _xid(self, data: Any) -> list[XidEvent]:
        if data.eventType != pynvml.nvmlEventTypeXidCriticalError:
            return []
        uuid = self._names.get(_address(data.device), "an unknown GPU")
        instance = None if data.gpuInstanceId == ALL_INSTANCES else data.gpuInstanceId
        return [XidEvent(uuid, data.eventData, instance)]


def _ask(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a driver call, None if the call fails."""
    try:
        return function(*arguments)
    except pynvml.NVMLError:
        return None


def _metric(function: Callable[..., Any], *arguments: Any) -> Any:
    """As `_ask`, but raise _Lost if the GPU itself is lost."""
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        if error.value in LOST:
            raise _Lost(str(error)) from error
        return None


def _gpu(handle: Any, uuid: str, index: int) -> Iterator[tuple[Any, Reading]]:
    """Yield the GPU, or its slices if it is in MIG mode."""
    mode = _metric(pynvml.nvmlDeviceGetMigMode, handle)
    capability = _metric(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    telemetry = _telemetry(handle)
    place = _metric(pynvml.nvmlDeviceGetPciInfo, handle)
    pci_bus = None if place is None else str(place.busId)
    if mode is None or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        name = _metric(pynvml.nvmlDeviceGetName, handle)
        known = Reading(
            *(uuid, str(index), name),
            capability=capability,
            telemetry=telemetry,
            pci_bus=pci_bus,
        )
        yield handle, _reading(handle, known)
        return
    for number in range(_metric(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        part = _metric(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
        own = _metric(pynvml.nvmlDeviceGetUUID, part) if part is not None else None
        if own is not None:
            known = Reading(
                own,
                f"{index}:{number}",
                _metric(pynvml.nvmlDeviceGetName, part),
                capability=capability,
                parent=uuid,
                instance=_metric(pynvml.nvmlDeviceGetGpuInstanceId, part),
                telemetry=telemetry,
                pci_bus=pci_bus,
            )
            yield part, _reading(part, known)


def _reading(handle: Any, known: Reading) -> Reading:
    """Read memory, processes and utilization of a device, and add them to what is `known`."""
    memory = _metric(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    if memory is None:
        memory = _metric(pynvml.nvmlDeviceGetMemoryInfo, handle)
    reserved = getattr(memory, "reserved", None)
    return Reading(
        known.uuid,
        known.index,
        known.name,
        total_mib=None if memory is None else memory.total / MIB,
        used_mib=None if memory is None else memory.used / MIB,
        reserved_mib=None if reserved is None else reserved / MIB,
        capability=known.capability,
        processes=_processes(handle),
        parent=known.parent,
        instance=known.instance,
        utilization=None if known.parent else _utilization(handle),
        telemetry=known.telemetry,
        pci_bus=known.pci_bus,
    )


def _link(handle: Any, gpu: Reading, other: Any, second: Reading) -> Link:
    level = _ask(pynvml.nvmlDeviceGetTopologyCommonAncestor, handle, other)
    nvlink = _ask(pynvml.nvmlDeviceGetP2PStatus, handle, other, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
    peer = _ask(pynvml.nvmlDeviceGetP2PStatus, handle, other, PEER_READ)
    return Link(
        gpu.uuid,
        second.uuid,
        ANCESTORS.get(level),
        None if nvlink is None else nvlink == pynvml.NVML_P2P_STATUS_OK,
        None if peer is None else peer == pynvml.NVML_P2P_STATUS_OK,
    )


def _utilization(handle: Any) -> float | None:
    rates = _metric(pynvml.nvmlDeviceGetUtilizationRates, handle)
    return None if rates is None else rates.gpu / 100


def _telemetry(handle: Any) -> Telemetry:
    """Read the sensors and counters of a whole GPU, each by a call of its own.

    The throughput of PCIe is left out: the driver measures it for 20 ms in each call.
    """
    rates = _metric(pynvml.nvmlDeviceGetUtilizationRates, handle)
    milliwatts = _metric(pynvml.nvmlDeviceGetPowerUsage, handle)
    return Telemetry(
        memory_utilization=None if rates is None else rates.memory / 100,
        temperature_c=_metric(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        memory_temperature_c=_field(handle, pynvml.NVML_FI_DEV_MEMORY_TEMP),
        power_w=None if milliwatts is None else milliwatts / 1000,
        energy_mj=_count(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle),
        sm_clock_mhz=_metric(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
        memory_clock_mhz=_metric(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_MEM),
        ecc_corrected=_errors(handle, CORRECTED, pynvml.NVML_VOLATILE_ECC),
        ecc_uncorrected=_errors(handle, UNCORRECTED, pynvml.NVML_VOLATILE_ECC),
        ecc_corrected_ever=_errors(handle, CORRECTED, pynvml.NVML_AGGREGATE_ECC),
        ecc_uncorrected_ever=_errors(handle, UNCORRECTED, pynvml.NVML_AGGREGATE_ECC),
        pcie_replays=_count(pynvml.nvmlDeviceGetPcieReplayCounter, handle),
    )


def _errors(handle: Any, kind: int, counter: int) -> int | None:
    return _count(pynvml.nvmlDeviceGetTotalEccErrors, handle, kind, counter)


def _count(function: Callable[..., Any], *arguments: Any) -> int | None:
    count = _metric(function, *arguments)
    return count if count is None or count < COUNT_MAX else None


def _field(handle: Any, field: int) -> int | None:
    """Return a field that is an unsigned integer."""
    values = _metric(pynvml.nvmlDeviceGetFieldValues, handle, [field])
    if values is None or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return int(values[0].value.uiVal)


def _processes(handle: Any) -> tuple[GpuProcess, ...] | None:
    listed = _metric(pynvml.nvmlDeviceGetComputeRunningProcesses_v3, handle)
    if listed is None:
        return None
    return tuple(
        GpuProcess(one.pid, None if one.usedGpuMemory is None else one.usedGpuMemory / MIB)
        for one in listed
    )


def _address(handle: Any) -> int | None:
    """Return the address that a handle points to, which identifies its GPU."""
    return ctypes.cast(handle, ctypes.c_void_p).value
