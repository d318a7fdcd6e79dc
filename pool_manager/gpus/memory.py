"""How much of its GPU's memory a replica has taken."""

from __future__ import annotations

from collections.abc import Collection

from pool_manager.gpus.reading import Reading


def taken_mib(
    gpu: Reading, pids: Collection[int] | None, before_mib: float | None, *, is_alone: bool
) -> float | None:
    """MiB by its processes; else what the GPU uses more than `before_mib`, before its launch, if
    it `is_alone` there; else None. Its host memory is not in it."""
    sizes = [process.memory_mib for process in gpu.processes or () if process.pid in (pids or ())]
    known = [size for size in sizes if size is not None]
    if known and len(known) == len(sizes):
        return sum(known)
    if not is_alone or gpu.used_mib is None or before_mib is None:
        return None
    return max(0.0, gpu.used_mib - before_mib)
