"""Time of calls by key and function, by which keys share the costs of functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from registry.usage import UsageRow, bucket_of

FLUSH_S: Final = 1.0
"""Seconds between the first call of a key after a flush and the next flush."""
WAITING_MAX: Final = 10_000
"""Max times that wait for a flush; a further one causes it."""


class KeyTime:
    """Time of a function's calls with one key since the last flush, in seconds. `key_id` is "" for
    calls without a key."""

    __slots__ = ("key_id", "name", "namespace", "seconds")

    def __init__(self, key_id: str, namespace: str, name: str) -> None:
        self.key_id, self.namespace, self.name = key_id, namespace, name
        self.seconds = 0.0


class KeyTimes:
    """Adds the time of calls up, and passes it on every FLUSH_S. Event loop thread only.

    A call costs one addition: heads that are admitted alike share a KeyTime.
    """

    def __init__(
        self,
        used: Callable[[UsageRow], None],
        wall: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        """`used` receives the rows, `wall` returns Unix seconds, `call_later` is the event
        loop's."""
        self._used, self._wall, self._call_later = used, wall, call_later
        self._waiting: list[KeyTime] = []

    def add(self, time: KeyTime, seconds: float) -> None:
        """Add the time of a call, from being sent to a replica until its end."""
        if not time.seconds:
            self._begin(time)
        time.seconds += seconds

    def _begin(self, time: KeyTime) -> None:
        waiting = self._waiting
        if len(waiting) >= WAITING_MAX:
            self.flush()
        elif not waiting:
            self._call_later(FLUSH_S, self.flush)
        self._waiting.append(time)

    def flush(self) -> None:
        """Pass on what was added since the last flush, a millisecond at least for each key and
        function."""
        waiting, self._waiting = self._waiting, []
        sums: dict[tuple[str, str, str], float] = {}
        for time in waiting:
            owner = (time.key_id, time.namespace, time.name)
            sums[owner] = sums.get(owner, 0.0) + time.seconds
            time.seconds = 0.0
        bucket_s = bucket_of(self._wall())
        for owner, seconds in sums.items():
            self._used(UsageRow(*owner, bucket_s, busy_ms=max(1, round(seconds * 1e3))))
