"""Scaling: how many replicas a pool should have, and why.

The two windows and the panic rule are those of the Knative autoscaler
(knative.dev/docs/serving/autoscaling/kpa-specific).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

from pool_manager.core.state import PoolSpec
from registry.exchange import Load

STABLE_S = 60
PANIC_S = 6
PANIC_FACTOR = 2
"""Panic begins when the short window requires this many times the ready replicas."""


class LoadWindow:
    """Concurrent requests in each of the last `STABLE_S` seconds. `now` is monotonic seconds.

    A second without a report counts like the second before it: load is reported once a second and
    when it changes, and a late report says nothing about the load.
    """

    __slots__ = ("_began", "_busy", "_held", "_last")

    def __init__(self) -> None:
        self._busy: list[int] = []
        self._began: int | None = None
        self._held = 0
        self._last = 0

    def observe(self, busy: int, now: float) -> None:
        """Record that `busy` requests are held or in flight at `now`."""
        second = int(now)
        if self._began is None:
            self._began = self._last = second
            self._busy = [0] * STABLE_S
        self._reach(second)
        self._busy[second % STABLE_S] = self._held = busy

    def hold(self, busy: int, now: float) -> None:
        """Count the seconds after `now` as `busy` until the next observation."""
        if self._began is not None:
            self._reach(int(now))
            self._held = busy

    def mean(self, window_s: int, now: float) -> float:
        """Return the mean over the last `window_s` seconds, or over the observed ones if fewer."""
        if self._began is None:
            return 0.0
        second = int(now)
        if second > self._last:
            self._reach(second)
        count = max(1, min(window_s, second - self._began + 1))
        begin, end = (second - count + 1) % STABLE_S, second % STABLE_S + 1
        if begin < end:
            return sum(self._busy[begin:end]) / count
        return (sum(self._busy[begin:]) + sum(self._busy[:end])) / count

    def _reach(self, second: int) -> None:
        for missed in range(max(self._last + 1, second - STABLE_S + 1), second + 1):
            self._busy[missed % STABLE_S] = self._held
        self._last = max(self._last, second)


class Wanted(NamedTuple):
    """Wanted number of replicas, and the reason as shown by `fnctl why`."""

    replicas: int
    reason: str


@dataclass(slots=True)
class Scaler:
    """Load window and panic mode of one pool. Times are monotonic seconds."""

    window: LoadWindow = field(default_factory=LoadWindow)
    panic_until_s: float = 0.0
    peak: int = 0

    def observe(self, busy: int, now: float) -> None:
        """Record that `busy` requests are held or in flight."""
        self.window.observe(busy, now)

    def hold(self, busy: int, now: float) -> None:
        """Count the seconds after `now` as `busy` until the next observation."""
        self.window.hold(busy, now)

    def forget(self) -> None:
        """Reset window and panic mode: the pool is cold."""
        self.window = LoadWindow()
        self.panic_until_s, self.peak = 0.0, 0


def wanted(
    spec: PoolSpec, load: Load, scaler: Scaler, ready: int, now: float, *, is_fresh: bool
) -> Wanted:
    """Return how many replicas a pool should have; all cases but (1) are kept within `min` and
    `max`.

    (1) A trial: one.
    (2) No load, and the pool was not used for `idle_s`, or it has a `min` and no ready replica:
        none.
    (3) No replica is ready: one. The speed of a replica is not known yet, and if one cannot be
        loaded, its copies cannot either.
    (4) Panic: there is load, and the mean over PANIC_S requires PANIC_FACTOR times the ready
        replicas. Panic lasts for STABLE_S, during which the number never falls.
    (5) Otherwise: the mean over STABLE_S.
    (6) After (4) or (5), without load: at most the ready replicas, since only calls start one.
    (7) After (4) to (6), a result of none or one: one, for the next call.

    `ready`: replicas that can serve. `is_fresh`: used less than `idle_s` ago, or about to be used.
    """
    busy = load.busy
    if spec.role == "trial":  # (1)
        return Wanted(1, "a deploy verifies it")
    if not busy and (not is_fresh or (spec.min > 0 and not ready)):  # (2)
        return _bounded(Wanted(0, "no calls"), spec)
    if not ready:  # (3)
        reason = f"{load.queued} held and {load.in_flight} in flight, none is ready yet"
        return _bounded(Wanted(1, reason if busy else "a start was requested"), spec)
    stable = ceil(scaler.window.mean(STABLE_S, now) / spec.target)
    burst = ceil(scaler.window.mean(PANIC_S, now) / spec.target)
    if now >= scaler.panic_until_s:
        scaler.peak = 0
    if busy and burst >= PANIC_FACTOR * max(1, ready):
        scaler.panic_until_s = now + STABLE_S
    if now < scaler.panic_until_s:  # (4)
        count = scaler.peak = max(scaler.peak, ready, stable, burst)
        reason = f"a burst, up to {count} x {spec.target} requests at once"
    else:  # (5)
        count, reason = stable, f"{spec.target} requests per replica over {STABLE_S} s"
    if not busy:  # (6)
        count = min(count, ready)
    if count <= 1:  # (7)
        count = 1
        reason = f"calls, {spec.target} at once per replica" if busy else "kept for the next call"
    return _bounded(Wanted(count, reason), spec)


def _bounded(asked: Wanted, spec: PoolSpec) -> Wanted:
    if asked.replicas < spec.min:
        return Wanted(spec.min, f"{asked.reason}; min is {spec.min}")
    if asked.replicas > spec.max:
        return Wanted(spec.max, f"{asked.reason}; max is {spec.max}")
    return asked
