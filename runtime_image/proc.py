"""Readers of /proc: what a process is and has used, and sizes of memory (proc(5)).

A process may end at any moment, so what cannot be read is None or empty.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

THREADS_MAX: Final = 1000
"""Max threads whose states are looked at in one go."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_TRACED: Final = re.compile(r"^TracerPid:\s*[1-9]", re.MULTILINE)


class Stat(NamedTuple):
    """A process or a thread, by its file `stat` (proc_pid_stat(5))."""

    state: bytes
    parent: int
    group: int
    session: int
    cpu_s: float
    """CPU time of its threads in user and kernel mode, in seconds."""
    started: int
    """Ticks from the start of the machine; tells a process from a later one with the same pid."""

    @property
    def is_zombie(self) -> bool:
        """Whether it has ended, and was not waited for."""
        return self.state in (b"Z", b"X")


def parse_stat(data: bytes) -> Stat | None:
    """Parse a file `stat`; None for anything else. The name before the last `)` may be any text."""
    fields = data.rpartition(b")")[2].split()
    try:
        parent, group, session = map(int, fields[1:4])
        cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS
        return Stat(fields[0], parent, group, session, cpu_s, int(fields[19]))
    except (IndexError, ValueError):
        return None


def read_stat(folder: str) -> Stat | None:
    """Read a folder of /proc, that of a process or of a thread; None if it is gone."""
    try:
        return parse_stat(Path(f"{folder}/stat").read_bytes())
    except OSError:
        return None


class ProcessActivity(NamedTuple):
    """What processes do at one look."""

    cpu_s: float
    """Total of their CPU time in seconds."""
    is_waiting: bool
    """Whether a thread is runnable or waits for a disk: it works, or would if it got its turn. One
    that is woken for a moment is so, too: only two looks in a row tell."""
    is_traced: bool
    """Whether a debugger traces one of them (TracerPid of proc_pid_status(5))."""


def activity(folders: Iterable[str]) -> ProcessActivity:
    """Return what processes do, by their folders of /proc: their CPU time, and the states of at
    most THREADS_MAX of their threads."""
    left, cpu_s = THREADS_MAX, 0.0
    is_waiting = is_traced = False
    for folder in folders:
        stat = read_stat(folder)
        cpu_s += stat.cpu_s if stat is not None else 0.0
        is_traced = is_traced or _TRACED.search(read_text(f"{folder}/status")) is not None
        with contextlib.suppress(OSError):
            for thread in [] if is_waiting else os.listdir(f"{folder}/task")[:left]:
                left -= 1
                stat = read_stat(f"{folder}/task/{thread}")
                is_waiting = is_waiting or (stat is not None and stat.state in (b"R", b"D"))
    return ProcessActivity(cpu_s, is_waiting, is_traced)


def parse_sizes(text: str) -> dict[str, int]:
    """Return sizes in KiB by name, from lines such as "VmRSS:  123 kB" (proc_pid_status(5),
    proc_pid_smaps(5), proc_meminfo(5))."""
    rows = (line.split() for line in text.splitlines())
    return {row[0].rstrip(":"): int(row[1]) for row in rows if len(row) == 3 and row[2] == "kB"}


def read_text(path: str | Path) -> str:
    """Return the text of a file, "" if its process is gone."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
