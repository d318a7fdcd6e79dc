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

TREE_MAX: Final = 100_000
"""Max processes that are looked at in one go."""
THREADS_MAX: Final = 1000
"""Max threads whose states are looked at in one go."""


class Process(NamedTuple):
    """A process; `started` tells it from a later one with the same pid."""

    pid: int
    started: int
    is_zombie: bool


def descendants(root: int) -> list[Process]:
    """Return the processes below `root`, without zombies."""
    found: list[Process] = []
    parents = [root]
    while parents and len(found) < TREE_MAX:
        for pid in _children(parents.pop()):
            process = _read(pid)
            if process is not None:
                parents.append(pid)
                if not process.is_zombie:
                    found.append(process)
    return found


def _children(pid: int) -> Iterator[int]:
    """Yield the children of a process (proc_pid_task(5)): a search of all /proc, every second and
    in every sidecar, would be felt on a large host."""
    folder = f"/proc/{pid}/task"
    with contextlib.suppress(OSError):
        for thread in os.listdir(folder):
            with contextlib.suppress(OSError):
                yield from map(int, Path(f"{folder}/{thread}/children").read_bytes().split())


def _read(pid: int) -> Process | None:
    """Return a process from its stat file (proc_pid_stat(5)), None if it is gone."""
    try:
        data = Path(f"/proc/{pid}/stat").read_bytes()
        fields = data.rpartition(b")")[2].split()
        return Process(pid, int(fields[19]), fields[0] in (b"Z", b"X"))
    except (OSError, IndexError, ValueError):
        return None


def kill(process: Process) -> None:
    """Kill a process, unless another one has its pid by now."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        return
    try:
        now = _read(process.pid)
        if now is not None and now.started == process.started:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    finally:
        os.close(pidfd)


def resident_mib(processes: list[Process], *, is_peak: bool = False) -> float:
    """Return the sum of the processes' resident memory, or of their peaks. Pages that several share
    count several times."""
    field = "VmHWM:" if is_peak else "VmRSS:"
    return sum(_kib(f"/proc/{process.pid}/status", (field,)) for process in processes) / 1024


def cpu_s(processes: list[Process]) -> float:
    """Return the sum of the processes' CPU time in seconds (proc_pid_stat(5))."""
    ticks = 0
    for process in processes:
        with contextlib.suppress(OSError, IndexError, ValueError):
            data = Path(f"/proc/{process.pid}/stat").read_bytes()
            ticks += sum(map(int, data.rpartition(b")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


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
        is_traced = is_traced or _kib(f"/proc/{process.pid}/status", ("TracerPid:",)) > 0
        with contextlib.suppress(OSError, IndexError):
            for thread in os.listdir(f"/proc/{process.pid}/task")[: max(0, left)]:
                left -= 1
                data = Path(f"/proc/{process.pid}/task/{thread}/stat").read_bytes()
                is_waiting = is_waiting or data.rpartition(b")")[2].split()[0] in (b"R", b"D")
    return Activity(cpu_s(processes), is_waiting, is_traced)


def private_mib(processes: list[Process]) -> float:
    """Return the sum of the processes' memory without mapped files; shared pages count once.

    Costs about a millisecond per GiB.
    """
    fields = ("Pss_Anon:", "Pss_Shmem:")
    return sum(_kib(f"/proc/{process.pid}/smaps_rollup", fields) for process in processes) / 1024


def _kib(path: str, fields: tuple[str, ...]) -> int:
    try:
        text = Path(path).read_text()
    except OSError:
        return 0
    lines = (line.split() for line in text.splitlines())
    return sum(int(words[1]) for words in lines if words and words[0] in fields)
