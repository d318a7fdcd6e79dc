"""Choice of GPUs, memory of replicas on them, and the proof that it was freed. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from pool_manager.core.state import Device
from registry.errors import BadRequest
from registry.model.hosts import LOCAL_HOST, id_on
from runtime_image.contract.gpus import GpuProcess, Reading, Snapshot

ALL: Final = "all"
NONE: Final = "none"
MODEL_MAX: Final = 300
"""Max characters of the model of a GPU."""


FREE_SHARE: Final = 0.95
"""Part of the expected free memory of a GPU that must be there before a model is loaded. The rest
is what drivers keep for themselves, which labels and ResourceSlices do not tell."""
SLACK_MIB: Final = 256.0
"""MiB that a GPU may show beyond the accounted memory: contexts and fragments of others."""


def choose(setting: str, snapshot: Snapshot) -> list[Reading]:
    """Return the GPUs that FN_GPUS names: "all", "none", or comma-separated numbers and UUIDs.

    The number or UUID of a GPU in MIG mode stands for all its slices. Raises BadRequest if a GPU
    does not exist or is named twice.
    """
    if setting in (ALL, NONE):
        return list(snapshot.gpus) if setting == ALL else []
    chosen: list[Reading] = []
    for name in (part.strip() for part in setting.split(",")):
        found = [gpu for gpu in snapshot.gpus if name in _names(gpu)]
        if not found:
            there = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in snapshot.gpus) or "none"
            raise BadRequest(
                f"gpus: expected all, none or GPUs of this host, got {name!r}; it has {there}"
            )
        if any(gpu in chosen for gpu in found):
            raise BadRequest(f"gpus: expected each GPU once, got {name!r} again")
        chosen += found
    return chosen


def _names(gpu: Reading) -> set[str]:
    """Return the names of a GPU or slice that the setting may use."""
    return {gpu.uuid, gpu.index, *([gpu.parent, gpu.index.partition(":")[0]] if gpu.parent else [])}


def cuda_numbers(snapshot: Snapshot) -> dict[str, int]:
    """Return the numbers by which CUDA finds the GPUs of a host in the order PCI_BUS_ID, by UUID.

    Empty where numbers may mean other GPUs: beside MIG slices, of which a process sees one, beside
    a GPU that is lost or without its slices in the snapshot, and without PCI addresses.
    """
    is_whole = not (snapshot.lost or snapshot.unreadable)
    indexes = {gpu.index for gpu in snapshot.gpus}
    if not is_whole or indexes != {str(number) for number in range(len(snapshot.gpus))}:
        return {}
    places = sorted((gpu.pci_bus or "", gpu.uuid) for gpu in snapshot.gpus)
    if len({place for place, _ in places} - {""}) < len(places):
        return {}
    return {uuid: number for number, (_, uuid) in enumerate(places)}


def parts(gpus: Collection[Reading]) -> dict[str, float]:
    """Return the part of its GPU that each slice is, by memory; slices that report none are equal.
    All slices of a GPU add up to 1, and a whole GPU is not listed."""
    sizes: dict[str, dict[str, float]] = {}
    for gpu in gpus:
        if gpu.parent:
            sizes.setdefault(gpu.parent, {})[gpu.uuid] = gpu.total_mib or 0.0
    return {
        uuid: mib / sum(slices.values()) if sum(slices.values()) else 1 / len(slices)
        for slices in sizes.values()
        for uuid, mib in slices.items()
    }


def foreign_mib(gpu: Reading, ours: Mapping[str, Collection[int] | None]) -> float:
    """Return the MiB in use on a GPU that do not belong to our replicas.

    `ours`: the pids of our replicas on this GPU by id, None if unknown. If the driver does not
    report memory per process, the result is 0 while one of our replicas is on the GPU: any other
    baseline would be wrong once that replica ends.
    """
    used = gpu.used_mib or 0.0
    if not ours:
        return used
    pids = [pids for pids in ours.values() if pids is not None]
    known = held_mib(gpu, {pid for some in pids for pid in some})
    if known is None or len(pids) < len(ours):
        return 0.0
    return max(0.0, used - known)


def held_mib(gpu: Reading, pids: Collection[int]) -> float | None:
    """Return the MiB of these processes, 0 if the driver lists none of them; None if it does not
    report them."""
    if gpu.processes is None:
        return None
    sizes = [process.memory_mib for process in gpu.processes if process.pid in pids]
    if any(size is None for size in sizes):
        return None
    return sum(size for size in sizes if size is not None)


def device(gpu: Reading, foreign: float, snapshot: Snapshot, host: str = LOCAL_HOST) -> Device:
    """Return a GPU of a host's snapshot as a device with its own memory bank, less the memory of
    the driver and of foreign processes. The size is 0 (not accounted) if the driver does not report
    it."""
    free_mib = 0.0
    if gpu.total_mib is not None:
        free_mib = max(1.0, gpu.total_mib - (gpu.reserved_mib or 0.0) - foreign)
    return Device(
        id_on(host, gpu.uuid),
        "cuda",
        free_mib,
        host=host,
        model=model_of(gpu, snapshot.driver),
        pci_bus=gpu.pci_bus or "",
        is_slice=bool(gpu.parent),
        links=tuple(
            replace(one, first=id_on(host, one.first), second=id_on(host, one.second))
            for one in snapshot.links
            if gpu.uuid in (one.first, one.second)
        ),
    )


def model_of(gpu: Reading, driver: str | None) -> str:
    """Return all that is known of a GPU and that compiled files depend on, as in "NVIDIA H100 PCIe
    MIG 1g.10gb, 9856 MiB, sm90, driver 570.86.15"."""
    parts = [
        gpu.name or "GPU",
        f"{gpu.total_mib:.0f} MiB" if gpu.total_mib is not None else "",
        "sm{}{}".format(*gpu.capability) if gpu.capability is not None else "",
        f"driver {driver}" if driver else "",
    ]
    return ", ".join(part for part in parts if part)[:MODEL_MAX]


def taken_mib(
    gpu: Reading, pids: Collection[int] | None, before_mib: float | None, *, is_alone: bool
) -> float | None:
    """Return the GPU memory of a replica in MiB, None if unknown. Host memory is not included.

    It is the sum over the replica's processes, if the driver reports it; else, if the replica
    `is_alone` on the GPU, the memory in use beyond `before_mib`, the value before its launch.
    """
    sizes = [process.memory_mib for process in gpu.processes or () if process.pid in (pids or ())]
    known = [size for size in sizes if size is not None]
    if known and len(known) == len(sizes):
        return sum(known)
    if not is_alone or gpu.used_mib is None or before_mib is None:
        return None
    return max(0.0, gpu.used_mib - before_mib)


def lacks_room(gpu: Reading, expected_mib: float) -> str:
    """Return why a replica must not load its model on a GPU that it has read before, "" if it may:
    less than FREE_SHARE of what should be free there is. Others use it that the ledger does not
    know. A GPU that reports no memory is not judged."""
    if gpu.total_mib is None or gpu.used_mib is None or expected_mib <= 0:
        return ""
    free_mib = max(0.0, gpu.total_mib - gpu.used_mib)
    if free_mib >= FREE_SHARE * expected_mib:
        return ""
    return (
        f"{gpu.uuid} has {free_mib:,.0f} MiB free, expected {expected_mib:,.0f}: programs that are"
        " no replicas use it"
    )


def grown_mib(before: Reading, after: Reading) -> float | None:
    """Return the MiB by which the use of a GPU has grown, None if that is unknown."""
    if before.used_mib is None or after.used_mib is None:
        return None
    return max(0.0, after.used_mib - before.used_mib)


def listed(gpu: Reading, pids: Collection[int]) -> GpuProcess | None:
    """Return the first of these processes that the driver lists on a GPU, None if it lists none."""
    return next((process for process in gpu.processes or () if process.pid in pids), None)


def still_taken(
    gpu: Reading, pids: Collection[int] | None, others_mib: float, foreign_mib: float
) -> str:
    """Return why a replica is not yet proved gone from a GPU, "" once it is.

    It is gone when none of its `pids` is listed and the memory in use is at most the other
    replicas' `others_mib` + the `foreign_mib` found at the start + SLACK_MIB. If its pids are
    unknown or the driver lists no processes, memory alone decides. If the driver reports neither,
    the replica counts as gone.
    """
    process = listed(gpu, pids or ())
    if process is not None:
        held = "" if process.memory_mib is None else f"{process.memory_mib:,.0f} MiB of "
        return f"{gpu.uuid} still shows {held}pid {process.pid}"
    if gpu.used_mib is None:
        return ""
    expected = others_mib + foreign_mib
    if gpu.used_mib <= expected + SLACK_MIB:
        return ""
    return (
        f"{gpu.uuid} still has {gpu.used_mib:,.0f} MiB in use, expected at most"
        f" {expected:,.0f} of others and {SLACK_MIB:,.0f} of slack"
    )
