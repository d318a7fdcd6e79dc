"""GPUs as NVIDIA's management library (NVML) reports them. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that uses a GPU. `memory_mib` is None if the driver does not report it."""

    pid: int
    memory_mib: float | None


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Sensors and counters of a whole GPU. None: the driver does not report the value.

    `memory_utilization` is the share of the driver's last sample period in which memory was read or
    written, 0 to 1. `energy_mj` counts from the load of the driver. Errors of memory (ECC) were
    corrected or not: since the load of the driver, or `_ever`. `pcie_replays` counts packets that
    were sent again over PCIe.
    """

    memory_utilization: float | None = None
    temperature_c: float | None = None
    memory_temperature_c: float | None = None
    power_w: float | None = None
    energy_mj: int | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    ecc_corrected_ever: int | None = None
    ecc_uncorrected_ever: int | None = None
    pcie_replays: int | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of a GPU or MIG slice; sizes in MiB. None: the driver does not report the value.

    `index` is the driver's number, "1:0" for the first slice of GPU 1. A slice has its GPU's UUID
    as `parent`, and the number of its GPU instance. `used_mib` excludes `reserved_mib` if that is
    known, and includes it otherwise. `utilization` is the share of the driver's last sample period
    in which anything ran, 0 to 1; the driver reports none for slices. `telemetry` and
    `pci_bus`, such as "00000000:18:00.0", are those of the whole GPU, also for a slice.
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
    telemetry: Telemetry | None = None
    pci_bus: str | None = None


class Ancestor(IntEnum):
    """Nearest part of a machine that two GPUs have in common, from near to far. Source: NVML,
    nvmlGpuTopologyLevel_t; `nvidia-smi topo -m` prints PIX, PXB, PHB, NODE, SYS for the last
    five."""

    INTERNAL = 0
    """One board."""
    SINGLE = 10
    """One PCIe switch."""
    MULTIPLE = 20
    """Several PCIe switches, without a host bridge."""
    HOSTBRIDGE = 30
    """One PCIe host bridge."""
    NODE = 40
    """One NUMA node, through several host bridges."""
    SYSTEM = 50
    """Several NUMA nodes, through the links of the CPUs."""


@dataclass(frozen=True, slots=True)
class Link:
    """How two whole GPUs are connected. None: the driver does not report the value."""

    first: str
    """UUID of the GPU with the lower PCI address."""
    second: str
    """UUID of the other GPU."""
    ancestor: Ancestor | None = None
    """Nearest part of the machine that both have in common."""
    has_nvlink: bool | None = None
    """Whether they reach each other by NVLink."""
    has_peer_access: bool | None = None
    """Whether one reads the memory of the other without a copy in host memory."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All GPUs at one moment. A GPU in MIG mode is represented only by its slices.

    `lost` has the driver's error for each GPU that is still listed but cannot be used, by UUID;
    `unreadable` has the errors of GPUs that no longer report a UUID.
    """

    driver: str | None
    gpus: tuple[Reading, ...]
    lost: Mapping[str, str] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()
    links: tuple[Link, ...] = ()
    """How each two of the whole GPUs are connected, as far as the driver says anything of them."""

    def find(self, uuid: str) -> Reading | None:
        """Return the reading of a device, None if there is none."""
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)


@dataclass(frozen=True, slots=True)
class XidEvent:
    """The driver reported error `xid` for the GPU `uuid`, for one GPU instance or all (None)."""

    uuid: str
    xid: int
    instance: int | None = None


class NoDriver(Exception):
    """NVML cannot be used, for the given reason. `is_absent`: no NVIDIA driver is installed or
    loaded."""

    def __init__(self, reason: str, *, is_absent: bool = False) -> None:
        super().__init__(reason)
        self.is_absent = is_absent
