"""Warnings of functions whose `min` keeps all devices of a kind. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pool_manager.hosts.view import HostView
from registry.catalog import Deployed

NAMED_MAX: Final = 8
SLACK: Final = 1e-6
"""Shares of devices are decimal fractions."""
NOUNS: Final = {"cpu": ("CPU slot", "CPU slots"), "cuda": ("GPU", "GPUs")}
REMEDY: Final = "fnctl scale NAME --min 0 frees what it keeps"
MORE_SLOTS: Final = ", FN_CPU_SLOTS sets the number of CPU slots"


def slot_warnings(
    subject: Deployed, functions: Iterable[Deployed], hosts: Iterable[HostView]
) -> list[str]:
    """Return what to say after a change of a function: that the `min` of functions keeps all
    devices on which it may run, of all hosts; [] while some are left.

    `functions` are the current revisions of all functions. Labels of hosts and memory are left out.
    """
    known = list(hosts)
    counts = {"cpu": sum(one.cpu_slots for one in known), "cuda": sum(one.gpus for one in known)}
    there = {kind: count for kind, count in counts.items() if count}
    kept = [one for one in functions if one.function.scaling.min]
    groups = [{"cpu"}, {"cuda"}, {"cpu", "cuda"}]
    for group in groups:  # the smallest that has all of the function's kinds
        if _kinds(subject, there) <= group and (text := _text(group, there, kept)):
            return [text]
    return []


def _kinds(one: Deployed, there: dict[str, int]) -> set[str]:
    """Return the kinds of the devices on which a function may run."""
    kind = one.revision.device.kind
    return set(there) if kind == "any" else {kind}


def _text(group: set[str], there: dict[str, int], kept: list[Deployed]) -> str:
    """Return the warning for the kinds of devices in `group`, "" while some are left."""
    keepers = [one for one in kept if _kinds(one, there) <= group]
    asked = sum(one.function.scaling.min * one.revision.device.share for one in keepers)
    total = sum(there.get(kind, 0) for kind in group)
    if not total or asked < total - SLACK:
        return ""
    kinds = [kind for kind in NOUNS if kind in group and kind in there]
    nouns = " and ".join(f"{there[kind]} {NOUNS[kind][there[kind] > 1]}" for kind in kinds)
    names = [one.function.name for one in keepers]
    listed = ", ".join(names[:NAMED_MAX])
    if len(names) > NAMED_MAX:
        listed += f" and {len(names) - NAMED_MAX} more"
    if asked > total + SLACK:
        said = f"min asks for {asked:g} of {nouns} ({listed}): not all are kept, and no other"
    else:
        said = f"min keeps all of {nouns} ({listed}): no other"
    return f"{said} function can start; {REMEDY}" + (MORE_SLOTS if "cpu" in kinds else "")
