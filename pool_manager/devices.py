"""The devices of this host."""

from __future__ import annotations

from pathlib import Path

from pool_manager.core.state import Device

CPU_BANK = "cpu"
MEMINFO = Path("/proc/meminfo")
CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""Where the limit of this process's control group stands: version 2, version 1."""


def cpu_slots(count: int, memory_mib: float = 0.0) -> list[Device]:
    """`count` equal shares of the CPU; all draw on the host's `memory_mib`, 0 if not accounted."""
    return [Device(f"cpu:{index}", "cpu", memory_mib, CPU_BANK) for index in range(count)]


def host_memory_mib(meminfo: Path = MEMINFO, limits: tuple[Path, ...] = CGROUP_LIMITS) -> float:
    """MiB that this host, or the control group it runs in, has; 0 where it cannot be read.

    Sources: proc_meminfo(5), the kernel's cgroup-v2 and cgroup-v1 memory documents.
    """
    sizes = [_limit_bytes(path) for path in limits]
    try:
        first = meminfo.read_text().split("\n", 1)[0]
        sizes.append(int(first.removeprefix("MemTotal:").removesuffix("kB")) * 1024)
    except (OSError, ValueError):
        return 0.0
    return min(size for size in sizes if size) / 2**20


def _limit_bytes(path: Path) -> int:
    """A control group's limit, 0 for none."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0
