"""What is said of hosts."""

from __future__ import annotations

from typing import Final

DISK_LOW_MIB: Final = 256
"""Free disk space of a host below which files and images may not fit any more."""
CLOCK_OFF_S: Final = 5.0
"""Difference of clocks from which the times in a host's logs mislead. Nothing else depends on it.
"""


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
