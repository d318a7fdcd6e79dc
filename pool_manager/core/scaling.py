"""How many replicas a pool should have, and why.

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
"""Panic begins when the short window asks for so many times the replicas that are ready."""


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


class Wanted(NamedTuple):
    """A number of replicas and its reason in words."""

    replicas: int
    reason: str


@dataclass(slots=True)
class Scaler:
    """One pool's load and the panic it may be in. Times are monotonic seconds."""

    window: LoadWindow = field(default_factory=LoadWindow)
    panic_until_s: float = 0.0
    peak: int = 0

    def observe(self, busy: int, now: float) -> None:
        """So many requests are held or in flight."""
        self.window.observe(busy, now)

    def hold(self, busy: int, now: float) -> None:
        """So many are left, as far as is known before the next observation."""
        self.window.hold(busy, now)

    def forget(self) -> None:
        """The pool is cold: what was is no measure of what comes."""
        self.window = LoadWindow()
        self.panic_until_s, self.peak = 0.0, 0

    def by_load(self, spec: PoolSpec, ready: int, now: float, *, is_busy: bool) -> Wanted:
        """What the windows ask for, unbounded; while in panic never less than before. Only calls
        begin a panic, and only calls start a replica: what was may keep those there are."""
        stable_mean = self.window.mean(STABLE_S, now)
        panic_mean = self.window.mean(PANIC_S, now)
        stable, burst = ceil(stable_mean / spec.target), ceil(panic_mean / spec.target)
        if now >= self.panic_until_s:
            self.peak = 0
        if is_busy and burst >= PANIC_FACTOR * max(1, ready):
            self.panic_until_s = now + STABLE_S
        asked, reason = stable, f"{spec.target} requests per replica over {STABLE_S} s"
        if now < self.panic_until_s:
            asked = self.peak = max(self.peak, ready, stable, burst)
            reason = f"a burst, up to {self.peak} x {spec.target} requests at once"
        return Wanted(asked if is_busy else min(asked, ready), reason)


def wanted(
    spec: PoolSpec, load: Load, scaler: Scaler, ready: int, now: float, *, is_fresh: bool
) -> Wanted:
    """One at once from zero, then what the windows ask for, always between `min` and `max`.

    `ready`: replicas that can serve. While there are none nothing is known of how fast one works
    off what came, and where one cannot be loaded its copies cannot either. `is_fresh`: used less
    than `idle_s` ago, or about to be; one replica then stays although nobody calls.
    """
    if spec.role == "trial":
        return Wanted(1, "a deploy verifies it")
    busy = load.busy
    is_floor = spec.min > 0 and not ready
    if not busy and (is_floor or not is_fresh):
        return _bounded(Wanted(0, "nobody calls"), spec)
    if not ready:
        reason = f"{load.queued} held and {load.in_flight} in flight, none is ready yet"
        return _bounded(Wanted(1, reason if busy else "asked for"), spec)
    asked = scaler.by_load(spec, ready, now, is_busy=busy > 0)
    if asked.replicas <= 1:
        text = f"calls, {spec.target} at once per replica" if busy else "kept for the next call"
        return _bounded(Wanted(1, text), spec)
    return _bounded(asked, spec)


def _bounded(asked: Wanted, spec: PoolSpec) -> Wanted:
    if asked.replicas < spec.min:
        return Wanted(spec.min, f"{asked.reason}; min is {spec.min}")
    if asked.replicas > spec.max:
        return Wanted(spec.max, f"{asked.reason}; max is {spec.max}")
    return asked
