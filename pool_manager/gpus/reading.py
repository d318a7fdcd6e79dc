"""What the driver says of its GPUs at one moment, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
