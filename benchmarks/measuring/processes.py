"""Resources of processes: CPU time, memory, and their cores."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
SCHEDULED = 2
"""CPUCLOCK_SCHED: nanoseconds on a processor (linux/posix-timers.h)."""


def cpu_ns(pid: int) -> int:
    """Return the CPU nanoseconds of all threads of a process so far, including ended ones.

    Uses clock_getcpuclockid(3), because /proc/PID/schedstat is up to a tick behind for a running
    thread and has no data for an ended one. Raises ProcessLookupError.
    """
    try:
        return time.clock_gettime_ns((~pid << 3) | SCHEDULED)
    except OSError as error:
        raise ProcessLookupError(f"pid: expected a living process, got {pid}") from error


def cpu_ms(pids: Iterable[int]) -> float:
    """Return the CPU milliseconds of several processes together."""
    return sum(cpu_ns(pid) for pid in pids) / 1e6


@dataclass(frozen=True, slots=True)
class Time:
    """Time of a thread: on a processor, and ready but waiting for one. It slept the rest."""

    on_ns: int
    waiting_ns: int

    @property
    def wanted_ns(self) -> int:
        """Time with work to do, whether or not a processor was free."""
        return self.on_ns + self.waiting_ns


def thread_times(pid: int) -> dict[int, Time]:
    """Return the times of each living thread (proc(5), schedstat)."""
    found = {}
    for task in _tasks(pid):
        try:
            found[task] = parse_schedstat((PROC / f"{pid}/task/{task}/schedstat").read_text())
        except FileNotFoundError:
            continue
    return found


def busiest(before: Mapping[int, Time], after: Mapping[int, Time]) -> Time:
    """Return the times of the busiest thread between two readings. Raises ValueError without
    one."""
    if not after:
        raise ValueError("threads: expected at least one, got none")
    none = Time(0, 0)
    grown = [
        Time(now.on_ns - was.on_ns, now.waiting_ns - was.waiting_ns)
        for thread, now in after.items()
        for was in [before.get(thread, none)]
    ]
    return max(grown, key=lambda time: time.on_ns)


def parse_schedstat(text: str) -> Time:
    """Parse the first two of three numbers. Raises ValueError."""
    fields = text.split()
    if len(fields) != 3 or not all(field.isdecimal() for field in fields):
        raise ValueError(f"schedstat: expected three whole numbers, got {text!r}")
    return Time(int(fields[0]), int(fields[1]))


def memory_kb(pid: int) -> dict[str, int]:
    """Return `pss`, in which shared pages are divided among their processes, and `uss`, the memory
    that would be free without the process."""
    return parse_rollup((PROC / f"{pid}/smaps_rollup").read_text())


def parse_rollup(text: str) -> dict[str, int]:
    """Parse smaps_rollup in kB (proc(5)). Raises ValueError."""
    fields = {}
    for line in text.splitlines():
        name, found, rest = line.partition(":")
        if found and rest.endswith("kB"):
            fields[name] = int(rest.split()[0])
    try:
        return {"pss": fields["Pss"], "uss": fields["Private_Clean"] + fields["Private_Dirty"]}
    except KeyError as error:
        raise ValueError(f"smaps_rollup: expected a line {error}, got {text[:200]!r}") from error


def family(pid: int) -> list[int]:
    """Return a process and all its living descendants."""
    return descendants(pid, dict(_parents()))


def descendants(pid: int, parents: Mapping[int, int]) -> list[int]:
    """Return `pid` followed by its descendants, by a table of parents."""
    found = [pid]
    for one in found:  # grows during the loop
        found += [child for child, parent in parents.items() if parent == one]
    return found


def _parents() -> Iterator[tuple[int, int]]:
    for entry in PROC.iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            yield int(entry.name), int(stat.rpartition(")")[2].split()[1])


def pin(pids: Iterable[int], cores: Set[int]) -> None:
    """Pin every thread of these processes to `cores`; later threads and children inherit it."""
    for pid in pids:
        for task in _tasks(pid):
            try:
                os.sched_setaffinity(task, cores)
            except ProcessLookupError:
                continue


def _tasks(pid: int) -> list[int]:
    return [int(entry.name) for entry in (PROC / f"{pid}/task").iterdir()]
