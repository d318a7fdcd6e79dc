"""A pool's load over the last minute, second by second."""

from __future__ import annotations

STABLE_S = 60
PANIC_S = 6


class LoadWindow:
    """Busy requests per second of the last `STABLE_S` seconds. `now` is monotonic seconds.

    A second without news counts as the one before it: load is reported when it changes and once a
    second, and a late report says nothing about what happens.
    """

    __slots__ = ("_began", "_busy", "_held", "_last")

    def __init__(self) -> None:
        self._busy: list[int] = []
        self._began: int | None = None
        self._held = 0
        self._last = 0

    def observe(self, busy: int, now: float) -> None:
        """So many requests are held or in flight at `now`."""
        second = int(now)
        if self._began is None:
            self._began = self._last = second
            self._busy = [0] * STABLE_S
        self._reach(second)
        self._busy[second % STABLE_S] = self._held = busy

    def hold(self, busy: int, now: float) -> None:
        """Seconds to come count as `busy` until observed; this one has been, or is to be."""
        if self._began is not None:
            self._reach(int(now))
            self._held = busy

    def mean(self, window_s: int, now: float) -> float:
        """Mean over the last `window_s` seconds, or over those known if they are fewer."""
        if self._began is None:
            return 0.0
        second = int(now)
        self._reach(second)
        count = max(1, min(window_s, second - self._began + 1))
        return sum(self._busy[(second - back) % STABLE_S] for back in range(count)) / count

    def _reach(self, second: int) -> None:
        for missed in range(max(self._last + 1, second - STABLE_S + 1), second + 1):
            self._busy[missed % STABLE_S] = self._held
        self._last = max(self._last, second)
