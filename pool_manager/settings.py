"""Settings of the pool manager."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from pool_manager.mounts import MountRules


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Settings of the pool manager; made by `Settings.pool()`, passed on by `admin/compose.py`."""

    run_dir: Path
    """Folder for the replicas' sockets. It must be short: a socket path has at most 107 bytes."""
    model_dir: Path
    """Folder for the replicas' model files, on the store's file system (hard links)."""
    log_dir: Path
    """Folder for the replicas' output."""
    cpu_slots: int = 2
    """CPU slots: replicas that run or start on the CPU at the same time."""
    threads_per_slot: int = 1
    """Engine threads per CPU slot: its share of the cores."""
    memory_mib: int = 0
    """Memory cap in MiB of a replica whose function configures none; 0 for no cap."""
    gpus: str = "all"
    """GPUs for replicas: all, none, or a comma-separated list of numbers and UUIDs."""
    caps_all: bool = False
    """Whether a replica without a configured memory cap gets one from its trial's measurement."""
    host_memory_mib: float = 0.0
    """Memory in MiB for all replicas on the CPU together; 0 for `devices.bank_mib`."""
    standbys: int = 0
    """Replicas without a model kept ready for the CPU slots of this host."""
    gpu_standbys: int = 0
    """Replicas without a model kept ready on each GPU of this host."""
    server_path: str = os.defpath
    """PATH of server functions that run as processes."""
    environments: Path | None = None
    """Folder with the packages of Python functions."""
    shared: tuple[Path, ...] = ()
    """Folders with packages and files of functions; servers see them read-only."""
    pythons: tuple[str, ...] = ()
    """Interpreters of Python functions; empty for the one that runs this."""
    mounts: MountRules = field(default_factory=MountRules)
    """Folders of this host that containers of servers may mount."""
    orphan_s: float = 60.0
    """Seconds for which a replica continues to serve without a manager before it exits."""
    host_lost_s: float = 75.0
    """Seconds after which a host that cannot be reached is given up; at least `orphan_s` + 15,
    since its replicas take calls for `orphan_s`."""
    ping_s: float = 5.0
    """Seconds between two PINGs; a replica that misses three is ended."""
    tick_s: float = 1.0
    """Seconds between two ticks, which enforce deadlines and idle times."""
    log_bytes: int = 1024 * 1024
    """Bytes of output kept per replica."""
    logs_kept: int = 10
    """Replicas per function whose output is kept."""
    logs_bytes: int = 1024 * 1024 * 1024
    """Bytes of output kept of all replicas together, except those that run."""
    notes_kept: int = 100
    """Decisions kept per pool for `fnctl why`."""
    starts_at_once: int = 2
    """Concurrent starts; more of them only slow each other down."""
    read_ahead_mib: int = 4096
    """MiB of a model that are read ahead into memory while its replica starts; 0 for none."""
