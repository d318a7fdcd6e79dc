"""Order in which the scans of large bodies take turns on the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

Scan = Callable[[], bool]
"""Does one step of a scan; returns whether that goes on."""


class ScanTurns:
    """Scans of this process, one step per iteration of the loop for all of them together.

    The bodies are in memory and counted there, which bounds the queue. Event loop thread only.
    """

    def __init__(self) -> None:
        self._waiting: deque[Scan] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, scan: Scan) -> None:
        """Give a scan its turns from the next iteration on, until it is over."""
        self._waiting.append(scan)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """Do a step of the first scan, which then waits behind the others."""
        scan = self._waiting[0]
        goes_on = scan()
        self._waiting.popleft()
        if goes_on:
            self._waiting.append(scan)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._turn)
