"""How much more memory this process may take."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Final

MIB: Final = 2**20
STATUS: Final = Path("/proc/self/status")
HOST: Final = Path("/proc/meminfo")


def free_mib(cap_mib: int) -> float:
    """MiB that can be taken until the process's cap (0 for none), the kernel's limit on private
    memory or the end of the host's memory is reached; 0 where none of it can be known."""
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    data_mib = None if limit == resource.RLIM_INFINITY else limit / MIB
    try:
        return room_mib(STATUS.read_text(), HOST.read_text(), cap_mib, data_mib)
    except OSError:
        return 0.0


def room_mib(status: str, host: str, cap_mib: int, data_mib: float | None) -> float:
    """The same of the texts of /proc/self/status and /proc/meminfo. `data_mib` is RLIMIT_DATA.

    The cap of a container counts what is resident; RLIMIT_DATA counts every private mapping that
    could be written to, resident or not.
    """
    process, machine = _sizes_mib(status), _sizes_mib(host)
    rooms = [machine.get("MemAvailable", 0.0)]
    if cap_mib:
        rooms.append(cap_mib - process.get("VmRSS", cap_mib))
    if data_mib is not None:
        rooms.append(data_mib - process.get("VmData", data_mib))
    return max(0.0, min(rooms))


def _sizes_mib(text: str) -> dict[str, float]:
    """The lines that are sizes, "Name:  123 kB"."""
    words = [line.split() for line in text.splitlines()]
    return {
        word[0].rstrip(":"): int(word[1]) / 1024
        for word in words
        if len(word) == 3 and word[2] == "kB"
    }
