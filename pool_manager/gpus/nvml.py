"""The NVIDIA driver's management library (NVML) through pynvml, and its answers as plain data.

Every call blocks.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pynvml

MIB: Final = 2**20
EVENTS_MAX: Final = 64
"""Reports taken at once; what is left waits for the next time."""
EVENT_WAIT_MS: Final = 1
LOST: Final = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_GPU_NOT_FOUND)
ABSENT: Final = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
ALL_INSTANCES: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that uses a GPU. `memory_mib` is None where the driver does not tell."""

    pid: int
    memory_mib: float | None


@dataclass(frozen=True, slots=True)
class Reading:
    """A GPU, or a MIG slice, now; MiB. None is what this driver does not tell of this GPU.

    `index` is the driver's number, "1:0" for the first slice of GPU 1. A slice has its GPU's UUID
    as `parent` and the number of its GPU instance. `used_mib` is without `reserved_mib` where
    that is known, and with it where it is not. `utilization` is the share of the driver's last
    sample period in which anything ran, 0 to 1; it tells none of slices.
    """

    uuid: str
    index: str
    name: str | None = None
    total_mib: float | None = None
    used_mib: float | None = None
    reserved_mib: float | None = None
    capability: tuple[int, int] | None = None
    processes: tuple[GpuProcess, ...] | None = None
    parent: str = ""
    instance: int | None = None
    utilization: float | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All GPUs at one moment. A GPU in MIG mode is there by its slices only.

    `lost` says of UUIDs that the driver still lists why it cannot use them, `unreadable` the same
    of numbers that it has no UUID for any more.
    """

    driver: str | None
    gpus: tuple[Reading, ...]
    lost: Mapping[str, str] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()

    def find(self, uuid: str) -> Reading | None:
        """The reading of one device, None where it does not answer."""
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)


@dataclass(frozen=True, slots=True)
class XidEvent:
    """The driver reported error `xid` of the GPU `uuid`, on one GPU instance or on all (None)."""

    uuid: str
    xid: int
    instance: int | None = None


class NoDriver(Exception):
    """NVML cannot be used, with the reason. `is_absent`: there is no NVIDIA driver at all."""

    def __init__(self, error: pynvml.NVMLError) -> None:
        super().__init__(f"the NVIDIA driver cannot be used: {error}")
        self.is_absent = error.value in ABSENT


class _Lost(Exception):
    """The GPU that was asked cannot be used any more."""


class Nvml:
    """One session with the driver. To be used by one thread at a time."""

    def __init__(self) -> None:
        self._is_open = False
        self._driver: str | None = None
        self._handles: dict[str, tuple[Any, Reading]] = {}
        self._events: Any = None
        self._names: dict[int | None, str] = {}

    def open(self) -> None:
        """Begin a session. Raises NoDriver."""
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise NoDriver(error) from error
        self._is_open = True
        self._driver = _ask(pynvml.nvmlSystemGetDriverVersion)

    def close(self) -> None:
        """End the session; harmless when there is none."""
        if not self._is_open:
            return
        self._is_open = False
        self._handles.clear()
        if self._events is not None:
            _ask(pynvml.nvmlEventSetFree, self._events)
            self._events = None
        _ask(pynvml.nvmlShutdown)

    def renew(self) -> None:
        """Begin a new session: an old one does not see later GPUs. Raises NoDriver."""
        self.close()
        self.open()

    def read(self) -> Snapshot:
        """All GPUs. A GPU that fails is lost by itself. Raises NoDriver."""
        lost: dict[str, str] = {}
        unreadable: list[str] = []
        self._handles.clear()
        try:
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            raise NoDriver(error) from error
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
        return Snapshot(self._driver, gpus, lost, tuple(unreadable))

    def read_one(self, uuid: str) -> Reading | None:
        """A GPU or slice as it is now, None where it cannot be used. Raises NoDriver."""
        if uuid not in self._handles:
            return self.read().find(uuid)
        handle, known = self._handles[uuid]
        try:
            return _reading(handle, known)
        except _Lost:
            return None

    def xids(self) -> list[XidEvent]:
        """Errors that the driver reported since the last time, oldest first; none where it cannot
        report any."""
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
    """A value of the driver, None where it has none: each call fails by itself."""
    try:
        return function(*arguments)
    except pynvml.NVMLError:
        return None


def _metric(function: Callable[..., Any], *arguments: Any) -> Any:
    """As `_ask`, but raises _Lost where the GPU itself is lost."""
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        if error.value in LOST:
            raise _Lost(str(error)) from error
        return None


def _gpu(handle: Any, uuid: str, index: int) -> Iterator[tuple[Any, Reading]]:
    """The GPU, or its slices where it is in MIG mode."""
    mode = _metric(pynvml.nvmlDeviceGetMigMode, handle)
    capability = _metric(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    if mode is None or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        name = _metric(pynvml.nvmlDeviceGetName, handle)
        known = Reading(uuid, str(index), name, capability=capability)
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
            )
            yield part, _reading(part, known)


def _reading(handle: Any, known: Reading) -> Reading:
    """What changes of a device, added to what is `known` of it."""
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
    )


def _utilization(handle: Any) -> float | None:
    rates = _metric(pynvml.nvmlDeviceGetUtilizationRates, handle)
    return None if rates is None else rates.gpu / 100


def _processes(handle: Any) -> tuple[GpuProcess, ...] | None:
    listed = _metric(pynvml.nvmlDeviceGetComputeRunningProcesses_v3, handle)
    if listed is None:
        return None
    return tuple(
        GpuProcess(one.pid, None if one.usedGpuMemory is None else one.usedGpuMemory / MIB)
        for one in listed
    )


def _address(handle: Any) -> int | None:
    """The address that a handle points to, which identifies its GPU."""
    return ctypes.cast(handle, ctypes.c_void_p).value
