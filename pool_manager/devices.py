"""CPU slots of hosts, and the memory of this one."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pool_manager.core.hosts import HostMemory
from pool_manager.core.state import Device
from registry.model.hosts import LOCAL_HOST, id_on
from runtime_image.proc import parse_sizes, read_text

CPU_BANK = "cpu"
OTHERS_MIB: Final = 512.0
"""Least memory that is left to others than replicas on CPU slots."""
MEMINFO = Path("/proc/meminfo")
CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""Files with the memory limit of this process's control group: cgroup v2, cgroup v1."""


def cpu_slots(count: int, memory_mib: float = 0.0, host: str = LOCAL_HOST) -> list[Device]:
    """Return `count` CPU slots of a host, which share `memory_mib` of its memory; 0 if not
    accounted."""
    bank, names = id_on(host, CPU_BANK), (id_on(host, f"cpu:{index}") for index in range(count))
    return [Device(name, "cpu", memory_mib, bank, host=host) for name in names]


def bank_mib(memory_mib: float) -> float:
    """Return the MiB of a machine's memory that replicas on CPU slots may take together: an eighth
    and at least OTHERS_MIB are left to the system, the server, replicas on GPUs and the page cache,
    as idle replicas are kept until it is full. 0 if the memory is not known."""
    return max(0.0, memory_mib - max(OTHERS_MIB, memory_mib / 8))


def kind_of(device: str) -> str:
    """Return the kind of a device that is no longer there, by its id on any host."""
    return "cpu" if device.rpartition("/")[2].startswith("cpu:") else "cuda"


def host_memory_mib(meminfo: Path = MEMINFO, limits: tuple[Path, ...] = CGROUP_LIMITS) -> float:
    """Return the memory in MiB of this host or of its control group, 0 if it cannot be read.

    Sources: proc_meminfo(5), the kernel's cgroup-v2 and cgroup-v1 memory documents.
    """
    sizes = [_limit_bytes(path) for path in limits]
    total_kib = parse_sizes(read_text(meminfo)).get("MemTotal", 0)
    if not total_kib:
        return 0.0
    sizes.append(total_kib * 1024)
    return min(size for size in sizes if size) / 2**20


def read_host_memory(meminfo: Path = MEMINFO) -> HostMemory | None:
    """Return the memory of this host now, None if it cannot be read. Source: proc_meminfo(5)."""
    kib = parse_sizes(read_text(meminfo))
    if "MemTotal" not in kib or "MemAvailable" not in kib:
        return None
    return HostMemory(kib["MemTotal"] / 1024, kib["MemAvailable"] / 1024)


def _limit_bytes(path: Path) -> int:
    """Return a control group's memory limit in bytes, 0 for none."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0
