"""Hosts for display."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

DISK_LOW_MIB: Final = 256
"""Free disk space of a host below which files and images may not fit any more."""
CLOCK_OFF_S: Final = 5.0
"""Difference of clocks from which the times in a host's logs mislead. Nothing else depends on it.
"""


@dataclass(frozen=True, slots=True)
class HostView:
    """One host as the manager sees it; the local machine is one, with `address` "".

    `state` is one of `core.hosts.HostState` (see `state_of`), since `since_s` (Unix seconds);
    `reason` says why the host is not up, or which problem it has although it is up. `driver` and
    `engine_version` are "" if unknown. `agent` says why there are no reports of GPUs and disks, ""
    while there are. `gpus` and `cpu_slots` are the numbers of devices, `memory_mib` is the memory
    that replicas on its CPU slots share, 0 if it is not accounted. `cached_mib` is the size of the
    `cached_files` model files, `images` are the ids of the images that this server has put
    there. `clock_offset_s` is the host's wall clock minus this machine's. `transfer` describes the
    transfers in progress, "" for none; `transferred_bytes` counts the bytes of files and images
    sent since the start of this server. None: unknown.
    """

    name: str
    address: str = ""
    state: str = "joining"
    reason: str = ""
    since_s: float = 0.0
    labels: dict[str, str] = field(default_factory=dict)
    driver: str = ""
    engine_version: str = ""
    rtt_ms: float | None = None
    epoch: int = 0
    agent: str = ""
    cpu_slots: int = 0
    gpus: int = 0
    memory_mib: int = 0
    replicas: int = 0
    disk_free_mib: float | None = None
    cached_files: int = 0
    cached_mib: float = 0.0
    images: tuple[str, ...] = ()
    clock_offset_s: float | None = None
    transfer: str = ""
    transferred_bytes: int = 0


def state_of(state: str, transfer: str) -> str:
    """Return the state to show. A host to which an image is sent is joining, although the transfer
    may take longer than `host_lost_s`, which ends all waits for its replicas."""
    return "joining" if state == "gone" and transfer else state


def engine_complaint(reason: str) -> str:
    """Return the problem of a host whose engine is away for a reason; "" for none."""
    return f"its container engine does not answer: {reason}" if reason else ""


def complaint(disk_free_mib: float | None, clock_offset_s: float | None) -> str:
    """Return the problem of a host that is up, as its agent reports it; "" for none."""
    found = []
    if disk_free_mib is not None and disk_free_mib < DISK_LOW_MIB:
        found.append(f"its disk is full: {disk_free_mib:.0f} MiB are free")
    if clock_offset_s is not None and abs(clock_offset_s) >= CLOCK_OFF_S:
        side = "ahead of" if clock_offset_s > 0 else "behind"
        found.append(f"its clock is {abs(clock_offset_s):.0f} s {side} this machine's")
    return "; ".join(found)
