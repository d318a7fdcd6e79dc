"""Checks of a machine for replicas on several GPUs; none for fewer than two. All pure except
`find_host`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from admin.cli.doctor.engine_checks import Driver
from admin.text import size
from hosts.checks import Check
from pool_manager.core.gpus.topology import joined
from registry.manifest.container import default_shm_mib
from runtime_image.contract.gpus import Ancestor

CONNECTIONS: Final = {
    Ancestor.INTERNAL: "one board",
    Ancestor.SINGLE: "one PCIe switch",
    Ancestor.MULTIPLE: "PCIe switches",
    Ancestor.HOSTBRIDGE: "one PCIe host bridge",
    Ancestor.NODE: "one NUMA node",
    Ancestor.SYSTEM: "over NUMA nodes",
}
PAIRS_MAX: Final = 6
"""Max pairs of one kind that are listed; more are counted. Eight GPUs have 28 pairs."""
NO_PEER: Final = (
    "see nvidia-smi topo -p2p r; disable the IOMMU and PCIe ACS if both GPUs support it"
)
MAY_STALL: Final = (
    "if a server on several GPUs stands still at its start: --env NCCL_P2P_DISABLE=1, or disable"
    " PCIe ACS in the BIOS"
)
"""Source: NCCL's documentation, Troubleshooting, "GPU-to-GPU communication", "PCI Access Control
Services": with ACS, peer traffic goes by the CPU, or stands still."""
REMOUNT: Final = "sudo mount -o remount,size={mib}m /dev/shm; in containers shm_mib counts"
MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class Host:
    """What programs on several GPUs need of a machine."""

    shm_bytes: int
    """Size of the file system at /dev/shm, 0 without one."""
    has_iommu: bool
    """Whether the kernel has devices behind an IOMMU."""


def find_host(root: Path = Path("/")) -> Host:
    """Look at this machine; `root` has dev and sys."""
    try:
        found = os.statvfs(root / "dev/shm")
        shm_bytes = found.f_blocks * found.f_frsize
    except OSError:
        shm_bytes = 0
    groups = root / "sys/kernel/iommu_groups"
    return Host(shm_bytes, groups.is_dir() and any(groups.iterdir()))


def checks(found: Driver, host: Host) -> list[Check]:
    """Return the checks of a machine with these GPUs."""
    if found.gpus < 2:
        return []
    return [*links(found, host), shared_memory(found, host), network()]


def links(found: Driver, host: Host) -> list[Check]:
    """Check how the GPUs of this machine reach each other's memory; none where the driver tells
    nothing.

    Programs on several GPUs, such as those of NCCL, work without peer access, through host memory.
    """
    if not found.links:
        return []
    name = "gpu links"
    without = [f"{a} and {b}" for a, b, link in found.links if link.has_peer_access is False]
    if without:
        pairs = ", ".join(without)
        why = " (the IOMMU is on)" if host.has_iommu else ""
        text = f"no peer access between GPU {pairs}{why}: programs on both copy through host memory"
        return [Check("warn", name, text, NO_PEER)]
    fast = [(a, b) for a, b, link in found.links if link.has_nvlink]
    others: dict[str, list[str]] = {}
    for first, second, link in found.links:
        if not link.has_nvlink:
            level = "unknown" if link.ancestor is None else CONNECTIONS[link.ancestor]
            others.setdefault(level, []).append(f"{first}-{second}")
    if not others:
        return [Check("ok", name, "all GPUs: NVLink")]
    todo = MAY_STALL if host.has_iommu else ""
    if not fast and len(others) == 1:
        return [Check("ok", name, f"all GPUs: {next(iter(others))}", todo)]
    parts = [f"NVLink: {' and '.join(map('+'.join, nvlinked(fast)))}"] if fast else []
    for level, slow in others.items():
        shown = ", ".join(slow) if len(slow) <= PAIRS_MAX else f"{len(slow)} pairs"
        parts.append(f"{level}: {shown}")
    return [Check("ok", name, "; ".join(parts), todo)]


def nvlinked(pairs: list[tuple[str, str]]) -> list[list[str]]:
    """Return sets of GPUs of which each two are one of the pairs: each GPU is in one set, the first
    that it fits."""
    known = {frozenset(pair) for pair in pairs}
    left = list(dict.fromkeys(gpu for pair in pairs for gpu in pair))
    found = []
    while left:
        found.append(joined(left[0], left, lambda *pair: frozenset(pair) in known))
        left = [gpu for gpu in left if gpu not in found[-1]]
    return [one for one in found if len(one) > 1]


def shared_memory(found: Driver, host: Host) -> Check:
    """Check /dev/shm, through which the processes of one server exchange data. A container has its
    own, of the size `shm_mib`."""
    name, needed = "shared memory", default_shm_mib(found.gpus) * MIB
    text = f"{size(host.shm_bytes)} at /dev/shm for {found.gpus} GPUs"
    if host.shm_bytes >= needed:
        return Check("ok", name, text)
    expected = f"{text}, expected {size(needed)} for a server on all of them"
    return Check("warn", name, expected, REMOUNT.format(mib=needed // MIB))


def network() -> Check:
    """Tell over what the processes of a server on several GPUs meet."""
    found = 'servers on several GPUs with network = "none" meet on lo (NCCL_SOCKET_IFNAME)'
    return Check("ok", "gpu network", found)
