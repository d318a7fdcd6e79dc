"""GPU memory: which GPUs are chosen, how much replicas take, whether it was given back. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from pool_manager.core.state import Device
from pool_manager.gpus.nvml import Reading, Snapshot
from registry.errors import BadRequest

ALL: Final = "all"
NONE: Final = "none"


SLACK_MIB: Final = 256.0
"""What a GPU may show beyond what is accounted for: contexts and fragments of others."""


def choose(setting: str, snapshot: Snapshot) -> list[Reading]:
    """The GPUs that FN_GPUS names: "all", "none", or numbers and UUIDs with commas between.

    The number or UUID of a GPU in MIG mode stands for all its slices. Raises BadRequest where one
    is not there, or is named twice.
    """
    if setting in (ALL, NONE):
        return list(snapshot.gpus) if setting == ALL else []
    chosen: list[Reading] = []
    for name in (part.strip() for part in setting.split(",")):
        found = [gpu for gpu in snapshot.gpus if name in _names(gpu)]
        if not found:
            there = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in snapshot.gpus) or "none"
            raise BadRequest(
                f"gpus: expected all, none or GPUs that are there, got {name!r}; there is {there}"
            )
        if any(gpu in chosen for gpu in found):
            raise BadRequest(f"gpus: expected each GPU once, got {name!r} again")
        chosen += found
    return chosen


def _names(gpu: Reading) -> set[str]:
    """The names of a GPU or slice in the setting."""
    return {gpu.uuid, gpu.index, *([gpu.parent, gpu.index.partition(":")[0]] if gpu.parent else [])}


def foreign_mib(gpu: Reading, ours: Mapping[str, Collection[int] | None]) -> float:
    """Memory in use on a GPU that no replica of ours accounts for.

    `ours`: the pids of our replicas on this GPU by id, None if unknown. Where the driver does not
    tell the memory of each process, nothing counts as foreign while a replica of ours is there: the
    baseline would be wrong once it ends.
    """
    used = gpu.used_mib or 0.0
    if not ours:
        return used
    pids = [pids for pids in ours.values() if pids is not None]
    known = _used_by(gpu, {pid for some in pids for pid in some})
    if known is None or len(pids) < len(ours):
        return 0.0
    return max(0.0, used - known)


def _used_by(gpu: Reading, pids: Collection[int]) -> float | None:
    """MiB of these processes, None where the driver does not tell of all of them."""
    if gpu.processes is None:
        return None
    sizes = [process.memory_mib for process in gpu.processes if process.pid in pids]
    if any(size is None for size in sizes):
        return None
    return sum(size for size in sizes if size is not None)


def device(gpu: Reading, foreign: float) -> Device:
    """A GPU as placement sees it: a bank of its own, without what the driver and foreign
    processes have. 0 MiB, not accounted, where the driver does not tell its size."""
    if gpu.total_mib is None:
        return Device(gpu.uuid, "cuda")
    return Device(gpu.uuid, "cuda", max(1.0, gpu.total_mib - (gpu.reserved_mib or 0.0) - foreign))


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


def still_taken(
    gpu: Reading, pids: Collection[int] | None, others_mib: float, foreign_mib: float
) -> str:
    """Why a replica is not proved gone from a GPU, "" once it is.

    It is when none of its `pids` is listed and no more memory is used than the other replicas'
    `others_mib`, the `foreign_mib` found at the start, and a little. Where its pids are not known,
    or the driver lists none, memory alone decides; where it tells neither, there is nothing that
    could be seen.
    """
    for process in gpu.processes or ():
        if process.pid in (pids or ()):
            held = "" if process.memory_mib is None else f"{process.memory_mib:,.0f} MiB of "
            return f"{gpu.uuid} still shows {held}pid {process.pid}"
    if gpu.used_mib is None:
        return ""
    expected = others_mib + foreign_mib
    if gpu.used_mib <= expected + SLACK_MIB:
        return ""
    return (
        f"{gpu.uuid} still has {gpu.used_mib:,.0f} MiB in use, expected at most"
        f" {expected:,.0f} of others and {SLACK_MIB:,.0f} more"
    )
