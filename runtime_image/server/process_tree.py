"""The processes below this one: their memory, and their end.

The sidecar is a subreaper (prctl(2)): whatever its server starts stays below it, also what forks
twice or opens a session of its own.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from runtime_image.proc import parse_sizes, read_stat, read_text

TREE_MAX: Final = 100_000
"""Max processes that are looked at in one go."""
THREADS_MAX: Final = 1000
"""Max threads whose states are looked at in one go."""
_TRACED: Final = re.compile(r"^TracerPid:\s*[1-9]", re.MULTILINE)


class Process(NamedTuple):
    """A process; `started` tells it from a later one with the same pid."""

    pid: int
    started: int


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


def cpu_s(processes: list[Process]) -> float:
    """Return the sum of the processes' CPU time in seconds."""
    stats = (read_stat(f"/proc/{process.pid}") for process in processes)
    return sum(stat.cpu_s for stat in stats if stat is not None)


class Activity(NamedTuple):
    """What processes do."""

    cpu_s: float
    """Total of their CPU time in seconds."""
    is_waiting: bool
    """Whether a thread is runnable or waits for a disk: it works, or would if it got its turn."""
    is_traced: bool
    """Whether a debugger traces one of them (TracerPid of proc_pid_status(5))."""


def activity(processes: list[Process]) -> Activity:
    """Return what the processes do, by their states and their threads'."""
    left = THREADS_MAX
    is_waiting = is_traced = False
    for process in processes:
        folder = f"/proc/{process.pid}"
        status = read_text(f"{folder}/status")
        is_traced = is_traced or _TRACED.search(status) is not None
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"{folder}/task")[: max(0, left)]:
                left -= 1
                stat = read_stat(f"{folder}/task/{thread}")
                is_waiting = is_waiting or (stat is not None and stat.state in (b"R", b"D"))
    return Activity(cpu_s(processes), is_waiting, is_traced)
