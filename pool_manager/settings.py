"""The pool manager's settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Frozen; made by `Settings.pool()`, handed to the manager by `admin/compose.py`."""

    run_dir: Path
    """Short folder for the replicas' sockets; a socket path ends at 107 bytes."""
    model_dir: Path
    """Folder for the replicas' model files, on the store's file system (hard links)."""
    log_dir: Path
    """Folder for the replicas' output."""
    cpu_slots: int = 2
    """How many replicas the CPU takes at once."""
    threads_per_slot: int = 1
    """Threads of an engine on one slot: its share of the cores."""
    memory_mib: int = 0
    """Memory cap of a replica whose function names none; 0 for no cap."""
    gpus: str = "all"
    """GPUs for replicas: all, none, or their numbers and UUIDs with commas between."""
    caps_all: bool = False
    """Whether a replica without a configured memory cap gets one by what its trial measured."""
    host_memory_mib: float = 0.0
    """What all replicas on CPU slots may take together; 0 for all of the machine's."""
    standbys: int = 0
    """Replicas without a model kept ready for the CPU slots of this host."""
    gpu_standbys: int = 0
    """Replicas without a model kept ready on each GPU of this host."""
    orphan_s: float = 60.0
    """Seconds a replica serves on without a manager before it goes."""
    ping_s: float = 5.0
    """Seconds between two PINGs; three without an answer end the replica."""
    tick_s: float = 1.0
    """Seconds between two ticks, which handle deadlines and idle times."""
    log_bytes: int = 1024 * 1024
    """Bytes of output kept per replica."""
    logs_kept: int = 10
    """Replicas whose output is kept per function."""
    logs_bytes: int = 1024 * 1024 * 1024
    """Bytes of output kept of all replicas together, but for those that run."""
    notes_kept: int = 100
    """Decisions kept per pool for `fnctl why`."""
    starts_at_once: int = 2
    """Launches in flight at once; more only slow each other down."""
    read_ahead_mib: int = 4096
    """MiB of a model read into memory while its replica starts; 0 for none."""
