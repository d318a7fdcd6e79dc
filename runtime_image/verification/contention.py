"""Whether other work had the CPUs while something was measured.

A measurement is contended if its threads waited in the kernel's run queue, or if fewer CPUs than it
has threads were left to it. The queue shows waits of milliseconds, but is silent where a run fits
into one time slice; the CPUs' idle time has a resolution of 10 ms, and shows the load beside it.
Both read the same in containers: /proc/stat is the machine's, and only the CPUs of the process's
affinity count. Time stolen by a hypervisor is neither idle nor the process's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from runtime_image.contract.contention import ContentionState

WINDOW_S: Final = 0.2
"""Min seconds between the two readings of the CPUs' idle time."""
WAIT_SHARE: Final = 0.1
WAIT_MIN_S: Final = 0.001
"""Run-queue wait of all threads that shows contention: as a share of the wall time of the measured
runs, and at least this many seconds."""
FREE_SHARE: Final = 0.75
"""CPUs left to a measurement without contention, for each of its threads."""


@dataclass(frozen=True, slots=True)
class CpuReading:
    """Times in seconds at one moment."""

    wall_s: float
    """Monotonic clock."""
    own_s: float
    """CPU time of all threads of the process."""
    waited_s: float | None
    """Run-queue wait of its threads; None if the kernel does not report it."""
    idle_s: float | None
    """Idle time of the CPUs that the process may use, summed; None if unknown."""
    cpus: int
    """Number of these CPUs."""


def read() -> CpuReading:
    """Return a reading of this process and its CPUs."""
    cpus = os.sched_getaffinity(0)
    return CpuReading(time.monotonic(), time.process_time(), _waited_s(), _idle_s(cpus), len(cpus))


def free_cpus(before: CpuReading, after: CpuReading) -> float | None:
    """Return the CPUs that the process had or could have had, on average; None if unknown. Pure."""
    if before.idle_s is None or after.idle_s is None or after.wall_s <= before.wall_s:
        return None
    free_s = after.own_s - before.own_s + max(0.0, after.idle_s - before.idle_s)
    return free_s / (after.wall_s - before.wall_s)


def is_free(before: CpuReading, after: CpuReading, threads: int) -> bool | None:
    """Return whether `threads` threads of the process had a CPU each; None if unknown. Pure."""
    free = free_cpus(before, after)
    return None if free is None else free >= FREE_SHARE * max(1, min(threads, after.cpus))


def contention(
    began: CpuReading, ended: CpuReading, settled: CpuReading, threads: int
) -> ContentionState:
    """Return the contention of runs between `began` and `ended` on `threads` threads. `settled` is
    at least WINDOW_S after `began`. Pure."""
    wall_s = ended.wall_s - began.wall_s
    if began.waited_s is not None and ended.waited_s is not None:
        waited_s = ended.waited_s - began.waited_s
        if waited_s >= max(WAIT_MIN_S, WAIT_SHARE * wall_s):
            return "busy"
    has_cpus = is_free(began, settled, threads)
    if has_cpus is None:
        return "unknown"
    return "none" if has_cpus else "busy"


def idle_s(lines: Iterable[str], cpus: Iterable[int], tick_s: float) -> float | None:
    """Return the idle time of CPUs, waits for disks included, from lines of /proc/stat
    (proc_stat(5)); None if one is missing. Pure."""
    wanted = {f"cpu{number}" for number in cpus}
    total = 0
    for line in lines:
        name, *values = line.split()
        if name in wanted:
            wanted.discard(name)
            try:
                total += int(values[3]) + int(values[4])
            except (IndexError, ValueError):
                return None
    return None if wanted else total * tick_s


def _idle_s(cpus: Iterable[int]) -> float | None:
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return None
    return idle_s(filter(str.strip, lines), cpus, 1 / os.sysconf("SC_CLK_TCK"))


def _waited_s() -> float | None:
    """Return the second number of each thread's schedstat (Documentation/scheduler/sched-stats)."""
    total, is_known = 0, False
    try:
        threads = list(Path("/proc/self/task").iterdir())
    except OSError:
        return None
    for thread in threads:
        try:
            total += int((thread / "schedstat").read_text("ascii").split()[1])
            is_known = True
        except (OSError, IndexError, ValueError):
            continue  # the thread ended, or the kernel keeps no such statistics
    return total / 1e9 if is_known else None


class Contention:
    """Contention of the runs within a block; `state` is known after it."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self.state: ContentionState = "unknown"

    def __enter__(self) -> Contention:
        self._began = read()
        return self

    def __exit__(self, *_: object) -> None:
        ended = read()
        time.sleep(max(0.0, WINDOW_S - (ended.wall_s - self._began.wall_s)))
        self.state = contention(self._began, ended, read(), self._threads)
