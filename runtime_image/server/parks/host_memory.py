"""The host memory that a server takes while it is put to sleep, sleeps and is woken."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from runtime_image.proc import parse_sizes

PAUSE_S: Final = 0.1
"""Least seconds between two readings."""
PAUSE_FACTOR: Final = 4
"""A pause is at least as many times as long as the reading before: one of many GiB takes 0.1 s, and
the engine must not be slowed down."""


LEAST_FREE: Final = 0.05
"""Part of a host's memory that the park of a trial leaves free."""


def shortage(meminfo: str) -> str:
    """Return that a park leaves its host too little memory, by the text of /proc/meminfo
    (proc_meminfo(5)); "" otherwise. The kernel would kill other servers for it, too."""
    sizes = parse_sizes(meminfo)
    left, least = sizes.get("MemAvailable"), LEAST_FREE * sizes.get("MemTotal", 0)
    if left is None or left >= least:
        return ""
    return (
        f"its host has {left / 1024:,.0f} MiB of memory left, expected at least"
        f" {least / 1024:,.0f} beside a sleeping engine"
    )


class HostMemoryPeak:
    """The most that a server's processes hold, beyond what they held at `begin`.

    It is read in a thread of its own, since the engine's calls block. A peak between two readings
    is missed: an engine copies its weights for seconds, and keeps the copy while it sleeps.
    """

    def __init__(self, read_mib: Callable[[], float]) -> None:
        """`read_mib` returns the MiB of the server's processes now. It is called in any thread."""
        self._read_mib = read_mib
        self._over = threading.Event()
        self._before_mib = self._most_mib = 0.0

    def begin(self) -> None:
        """Begin to read, until `end`."""
        self._before_mib = self._most_mib = self._read_mib()
        threading.Thread(target=self._watch, name="host memory", daemon=True).start()

    def end(self) -> float:
        """Read a last time; return the MiB."""
        self._over.set()
        return max(self._most_mib, self._read_mib()) - self._before_mib

    def _watch(self) -> None:
        pause_s = PAUSE_S
        while not self._over.wait(pause_s):
            began_s = time.monotonic()
            self._most_mib = max(self._most_mib, self._read_mib())
            pause_s = max(PAUSE_S, PAUSE_FACTOR * (time.monotonic() - began_s))
