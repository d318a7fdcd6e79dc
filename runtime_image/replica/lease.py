"""How long a replica on another host may accept requests without its manager. Pure.

A replica that cannot be reached is replaced after a while; it must have stopped by then. Whatever
the manager has sent may lie in buffers for long, so the arrival of a PING proves nothing about the
time at which it was sent. But a PING names the number of PONGs that the manager has received, so it
was sent after the last one of these: the lease begins anew at that PONG, or at the HELLO that was
answered by WELCOME.
"""

from __future__ import annotations

from collections import deque
from typing import Final

PONGS_MAX: Final = 64
"""Max PONGs whose times are remembered."""


class Lease:
    """Lease of `orphan_s` seconds. `now` is seconds of a clock that also counts while the machine
    sleeps (CLOCK_BOOTTIME). It is over once and for all."""

    def __init__(self, orphan_s: float, now: float) -> None:
        self._orphan_s = orphan_s
        self._began_s = now
        self._pongs: deque[tuple[int, float]] = deque(maxlen=PONGS_MAX)
        self._sent = 0
        self._is_over = False

    def on_welcome(self, hello_s: float) -> None:
        """Handle the WELCOME that answers the HELLO of a new link, sent at `hello_s`."""
        self._begin(hello_s)
        self._pongs.clear()
        self._sent = 0

    def on_ping(self, received: int) -> None:
        """Handle a PING that acknowledges the first `received` PONGs of this link."""
        while self._pongs and self._pongs[0][0] <= received:
            self._begin(self._pongs.popleft()[1])

    def on_pong(self, now: float) -> None:
        """Record that a PONG is sent."""
        self._sent += 1
        self._pongs.append((self._sent, now))

    def is_over(self, now: float) -> bool:
        """Whether the replica may accept nothing more."""
        self._is_over = self._is_over or now - self._began_s >= self._orphan_s
        return self._is_over

    def _begin(self, at_s: float) -> None:
        self._began_s = max(self._began_s, at_s)
