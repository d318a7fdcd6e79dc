"""What a trial's park has to free, by readings of its processes on each of their GPUs. Pure.

In a trial nothing is known yet of what an engine keeps. So it is read until it stays the same, and
it must be less than half of what the engine held awake: an engine that frees only its cache of
prompts, or nothing, is better stopped. What a device has room for besides is decided at each park
(`Parks.obstacle`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

KEPT_SHARE: Final = 0.5
"""An engine keeps less than this part of what it held awake."""
STEADY_READINGS: Final = 4
"""Readings in a row that are the same: memory is freed in steps."""
STEADY_MIB: Final = 16.0
"""Two readings that differ by at most this much are the same."""

Held = Mapping[str, float | None]
"""MiB that processes hold by device, None where the driver does not report them."""


def why_unreadable(held: Held) -> str:
    """Return why what a replica holds cannot be read, "" if it can."""
    if not held:
        return "it is on no GPU whose memory can be read"
    for device, mib in held.items():
        if mib is None:
            return f"the driver does not report what its processes hold on {device}"
    return ""


def is_steady(readings: Sequence[Held]) -> bool:
    """Whether the last STEADY_READINGS are the same on each device."""
    last = readings[-STEADY_READINGS:]
    if len(last) < STEADY_READINGS:
        return False
    return all(
        known is not None and mib is not None and abs(known - mib) <= STEADY_MIB
        for device, mib in last[-1].items()
        for known in (one.get(device) for one in last)
    )


def why_not_freed(awake: Held, asleep: Held) -> str:
    """Return why a sleeping engine has not freed enough, "" if it has. Both are readings that
    `why_unreadable` accepts, of the same devices."""
    for device, mib in asleep.items():
        before_mib, kept_mib = awake[device] or 0.0, mib or 0.0
        if kept_mib >= KEPT_SHARE * before_mib:
            return (
                f"its processes hold {kept_mib:,.0f} MiB of {device} asleep and {before_mib:,.0f}"
                " awake, expected less than half"
            )
    return ""
