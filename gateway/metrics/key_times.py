"""Calls by key and function: how many arrive, and their time, by which keys share the costs of
functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gateway.ports import CallHistory
from registry.usage import UsageRow, bucket_of

WAITING_MAX: Final = 10_000
"""Max times that wait for a flush; a further one causes it."""


class KeyTime:
    """A function's calls with one key since the last flush: `calls` that arrived, and `seconds` of
    those that ended. `key_id` is "" for calls without a key."""

    __slots__ = ("calls", "key_id", "name", "namespace", "seconds")

    def __init__(self, key_id: str, namespace: str, name: str) -> None:
        self.key_id, self.namespace, self.name = key_id, namespace, name
        self.calls, self.seconds = 0, 0.0


class KeyTimes:
    """Adds calls and their time up, and passes them on with `flush`, which each report of a gateway
    begins with. Event loop thread only.

    A call costs two additions: heads that are admitted alike share a KeyTime.
    """

    def __init__(self, history: CallHistory, wall: Callable[[], float]) -> None:
        """`history` receives the numbers, `wall` returns Unix seconds."""
        self._history, self._wall = history, wall
        self._waiting: list[KeyTime] = []

    def arrived(self, time: KeyTime) -> None:
        """Count a call; of a model one whose body is complete."""
        if not (time.calls or time.seconds):
            self._begin(time)
        time.calls += 1

    def add(self, time: KeyTime, seconds: float) -> None:
        """Add the time of a call, from being sent to a replica until its end."""
        if not (time.calls or time.seconds):
            self._begin(time)
        time.seconds += seconds

    def _begin(self, time: KeyTime) -> None:
        if len(self._waiting) >= WAITING_MAX:
            self.flush()
        self._waiting.append(time)

    def flush(self) -> None:
        """Pass on what was added since the last flush; of time a millisecond at least for each key
        and function."""
        waiting, self._waiting = self._waiting, []
        sums: dict[tuple[str, str, str], float] = {}
        for time in waiting:
            if time.calls:
                self._history.arrived(time.namespace, time.name, time.calls)
            if time.seconds:
                owner = (time.key_id, time.namespace, time.name)
                sums[owner] = sums.get(owner, 0.0) + time.seconds
            time.calls, time.seconds = 0, 0.0
        bucket_s = bucket_of(self._wall())
        for owner, seconds in sums.items():
            row = UsageRow(*owner, bucket_s, busy_ms=max(1, round(seconds * 1e3)))
            self._history.used(row)
