"""Times of injected faults: they decide which answers may be refused or cut off."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

AFTER_S = 3.0
"""Seconds after a fault in which it may still be the cause: a sidecar that was killed ends its
server only when the manager has noticed, after the server's grace."""


class FaultTimes:
    """Times of faults. `is_up`: whether the server listens."""

    def __init__(self) -> None:
        self.is_up = True
        self._faults = self._deaths = 0
        self._fault_s = self._death_s = -AFTER_S

    @contextmanager
    def fault(self) -> Iterator[None]:
        """Note that a container or the engine is disturbed."""
        self._faults += 1
        try:
            yield
        finally:
            self._faults -= 1
            self._fault_s = time.monotonic()

    @contextmanager
    def death(self, *, is_down: bool = False) -> Iterator[None]:
        """Note that a gateway process is killed and replaced; with `is_down`, the only one."""
        self._deaths += 1
        self.is_up = not is_down
        try:
            with self.fault():
                yield
        finally:
            self.is_up = True
            self._deaths -= 1
            self._death_s = time.monotonic()

    def is_calm_since(self, began_s: float) -> bool:
        """Return whether nothing was disturbed since then, or shortly before."""
        return not self._faults and self._fault_s + AFTER_S < began_s

    def is_steady_since(self, began_s: float) -> bool:
        """Return whether no gateway process was killed since then."""
        return not self._deaths and self._death_s < began_s
