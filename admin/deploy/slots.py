"""Warnings of functions whose `min` keeps all GPUs, or all memory for replicas on CPUs. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pool_manager.core.ledger import RESERVE_MIB
from pool_manager.host import HostView
from registry.catalog import Deployed

NAMED_MAX: Final = 8
SLACK: Final = 1e-6
"""Shares of devices are decimal fractions."""
REMEDY: Final = "fnctl scale NAME --min 0 frees what it keeps"
MORE_MEMORY: Final = ", FN_HOST_MEMORY_MIB sets the memory for all replicas on CPUs"


def slot_warnings(
    subject: Deployed, functions: Iterable[Deployed], hosts: Iterable[HostView]
) -> list[str]:
    """Return what to say after a change of a function: that the `min` of functions keeps all GPUs
    of all hosts, or all memory for replicas on CPUs, and it needs one of the two; [] while some is
    left. CPU slots are not kept: they are given in turns.

    `functions` are the current revisions of all functions. Labels of hosts and the memory of GPUs
    are left out; of functions that may run on both kinds, where there are GPUs, so is what they
    keep and what keeps them out.
    """
    known = list(hosts)
    gpus, mib = sum(one.gpus for one in known), sum(one.memory_mib for one in known)
    kind = _kind(subject, gpus)
    alike = [one for one in functions if _kind(one, gpus) == kind]
    keepers = [one for one in alike if one.function.scaling.min]
    text = ""
    if kind == "cuda" and gpus:
        text = _of_gpus(keepers, alike, gpus)
    elif kind == "cpu" and mib:
        text = _of_memory(keepers, alike, mib - RESERVE_MIB)
    return [text] if text else []


def _kind(one: Deployed, gpus: int) -> str:
    """Return the kind of device on which a function runs, "any" if there is a choice."""
    kind = one.revision.device.kind
    return "cpu" if kind == "any" and not gpus else kind


def _of_gpus(keepers: list[Deployed], alike: list[Deployed], gpus: int) -> str:
    """Return the warning for GPUs, "" while some are left: as many as a function without a `min`
    takes for one replica, if that is several."""
    asked = sum(one.function.scaling.min * _gpus(one) for one in keepers)
    if asked < gpus - SLACK:
        wide = [one for one in alike if one not in keepers and one.revision.device.count > 1]
        largest = max(wide, key=_gpus, default=None)
        if largest is None or not asked or asked + _gpus(largest) <= gpus + SLACK:
            return ""
        name, count = largest.function.name, largest.revision.device.count
        said = f"min keeps {asked:g} of {gpus} GPUs ({_names(keepers)}): no room for {name}"
        return f"{said}, which needs {count}; {REMEDY}"
    noun = f"{gpus} {'GPU' if gpus == 1 else 'GPUs'} ({_names(keepers)})"
    if asked > gpus + SLACK:
        said = (
            f"min asks for {asked:g} of {noun}: not all are kept, and no other function can start"
        )
        return f"{said}; {REMEDY}"
    return f"min keeps all of {noun}: no other function can start; {REMEDY}"


def _of_memory(keepers: list[Deployed], alike: list[Deployed], mib: float) -> str:
    """Return the warning for the memory of replicas on CPUs, "" while the largest has room."""
    asked_mib = sum(one.function.scaling.min * _mib(one) for one in keepers)
    rest = [one for one in alike if not one.function.scaling.min]
    largest = max(rest, key=_mib, default=None)
    largest_mib = _mib(largest) if largest is not None else 0.0
    if not asked_mib or asked_mib + largest_mib <= mib:
        return ""
    of = f"{asked_mib:.0f} of {mib:.0f} MiB for replicas on CPUs ({_names(keepers)})"
    if largest is None or asked_mib > mib:
        said = f"min asks for {of}: not all are kept, and no other function can start"
    else:
        said = f"min keeps {of}: no room for {largest.function.name}, which needs {largest_mib:.0f}"
    return f"{said}; {REMEDY}{MORE_MEMORY}"


def _gpus(one: Deployed) -> float:
    """Return the GPUs that a replica takes."""
    return one.revision.device.count * one.revision.device.share


def _mib(one: Deployed) -> float:
    """Return the memory of a replica as its trial measured it, 0 if that is unknown."""
    return one.profile.memory_mib if one.profile else 0.0


def _names(keepers: list[Deployed]) -> str:
    names = [one.function.name for one in keepers]
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more
