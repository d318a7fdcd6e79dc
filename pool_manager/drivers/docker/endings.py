"""How a container ended, in words."""

from __future__ import annotations

import contextlib
import signal

SIGNAL_BASE = 128
"""An exit code above this says which signal ended the process (the engine, and its init)."""
KILLED = SIGNAL_BASE + signal.SIGKILL


def how(code: int | None, *, out_of_memory: bool) -> str:
    """`out_of_memory`: the kernel killed something in it for want of memory; that explains a KILL
    and nothing else, since the container may have gone on without what was killed."""
    if code is None:
        return "exited"
    if code == KILLED and out_of_memory:
        return "was killed by SIGKILL: out of memory"
    if code > SIGNAL_BASE:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(code - SIGNAL_BASE).name}"
    return f"exited with code {code}"
