"""The processes below this one: their memory, and their end.

The sidecar is a subreaper (prctl(2)): whatever its server starts stays below it, also what forks
twice or opens a session of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from runtime_image.proc import parse_sizes, read_stat, read_text

TREE_MAX: Final = 100_000
"""Max processes that are looked at in one go."""


class Process(NamedTuple):
    """A process; `started` tells it from a later one with the same pid."""

    pid: int
    started: int

    @property
    def folder(self) -> str:
        """Its folder of /proc."""
        return f"/proc/{self.pid}"


def descendants(root: int) -> list[Process]:
    """Return the processes below `root`, without zombies."""
    found: list[Process] = []
    parents = [root]
    while parents and len(found) < TREE_MAX:
        for pid in _children(parents.pop()):
            stat = read_stat(f"/proc/{pid}")
            if stat is not None:
                parents.append(pid)
                if not stat.is_zombie:
                    found.append(Process(pid, stat.started))
    return found


def _children(pid: int) -> Iterator[int]:
    """Yield the children of a process (proc_pid_task(5)): a search of all /proc, every second and
    in every sidecar, would be felt on a large host."""
    folder = f"/proc/{pid}/task"
    with contextlib.suppress(OSError):
        for thread in os.listdir(folder):
            with contextlib.suppress(OSError):
                yield from map(int, Path(f"{folder}/{thread}/children").read_bytes().split())


def kill(process: Process) -> None:
    """Kill a process, unless another one has its pid by now."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        return
    try:
        now = read_stat(f"/proc/{process.pid}")
        if now is not None and now.started == process.started:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    finally:
        os.close(pidfd)


def resident_mib(processes: list[Process], *, is_peak: bool = False) -> float:
    """Return the sum of the processes' resident memory, or of their peaks. Pages that several share
    count several times."""
    field = "VmHWM" if is_peak else "VmRSS"
    return _total_mib(processes, "status", (field,))


def private_mib(processes: list[Process]) -> float:
    """Return the sum of the processes' memory without mapped files; shared pages count once.

    Costs about a millisecond per GiB.
    """
    return _total_mib(processes, "smaps_rollup", ("Pss_Anon", "Pss_Shmem"))


def _total_mib(processes: list[Process], file: str, fields: tuple[str, ...]) -> float:
    sizes = [parse_sizes(read_text(f"/proc/{process.pid}/{file}")) for process in processes]
    return sum(one.get(field, 0) for one in sizes for field in fields) / 1024
