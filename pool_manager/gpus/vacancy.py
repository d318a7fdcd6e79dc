"""Whether a replica that was ended has given its GPU back."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from pool_manager.gpus.reading import Reading

SLACK_MIB: Final = 256.0
"""What a GPU may show beyond what is accounted for: contexts and fragments of others."""


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
