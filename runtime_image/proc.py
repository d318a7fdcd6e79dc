"""Readers of /proc: what a process is and has used, and sizes of memory (proc(5)).

A process may end at any moment, so what cannot be read is None or empty.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

_TICKS: Final = os.sysconf("SC_CLK_TCK")


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
