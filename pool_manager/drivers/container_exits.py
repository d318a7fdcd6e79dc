"""How the containers of replicas have ended, in words; the same for every engine of containers."""

from __future__ import annotations

import contextlib
import signal
from typing import Final

from pool_manager.driver import MEMORY_KILL

SIGNAL_BASE: Final = 128
"""An exit code above this is SIGNAL_BASE + the signal that ended the process (a convention of
engines and of their init)."""
KILLED: Final = SIGNAL_BASE + signal.SIGKILL


def describe_exit(code: int | None, *, out_of_memory: bool) -> str:
    """Return the description of an exit. `out_of_memory`: the kernel killed a process of the
    container for lack of memory. This explains only an exit by KILL, since the container may have
    continued without that process."""
    if code is None:
        return "exited"
    if code == KILLED and out_of_memory:
        return f"{MEMORY_KILL} and was killed by SIGKILL"
    if code > SIGNAL_BASE:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(code - SIGNAL_BASE).name}"
    return f"exited with code {code}"


_EXITS: Final = {
    0: " by itself (it must stay in the foreground)",
    126: ": a program cannot be executed",
    127: ": a program was not found",
}
"""Meanings of a server's exit codes; 126 and 127 as of shells, and of the engine's init for the
image's own program."""


def describe_server_exit(code: int | None, *, out_of_memory: bool) -> str:
    """Return the description of the exit of a replica whose server has ended by itself."""
    how = describe_exit(code, out_of_memory=out_of_memory)
    if code is None or how.startswith(MEMORY_KILL):
        return how
    return f"lost its server, which {how}{_EXITS.get(code, '')}"


def describe_sidecar_exit(code: int | None, *, out_of_memory: bool) -> str:
    """Return the description of the exit of a replica whose sidecar has ended. With code 0 it was
    drained or terminated."""
    how = describe_exit(code, out_of_memory=out_of_memory)
    return f"lost its sidecar, which {how}" if code else how
