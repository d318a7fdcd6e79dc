"""Memory for arriving request bodies, from the same budget as the bodies of accepted calls.

Bytes are reserved as they arrive. When the budget is used up, the uploads with the least recent
progress are evicted, so that many slow clients cannot block fast ones. Single-threaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from gateway.body_memory import BodyMemories
from gateway.dispatch.held import HeldBytes
from gateway.unsent import UnsentAnswers
from registry.errors import BodyEvicted, FnError, QueueFull

HALF_LIFE_S: Final = 2.0
"""Seconds after which received bytes count half as progress."""
BATCH: Final = 16
"""One eviction frees at least this fraction (1/N) of the budget, because each one sorts all
uploads."""
SMALL: Final = 16 * 1024
"""Bytes. Smaller uploads are evicted last, because they free almost nothing."""
RETRY_S: Final = 1.0

OnEvicted = Callable[[FnError], None]
"""Callback after a reservation was evicted and released, with the error for its client."""


class BodyReservation:
    """Received bytes of one connection that no accepted call counts yet."""

    __slots__ = ("_at_s", "_budget", "_on_evicted", "_progress", "bytes")

    def __init__(self, budget: BodyBudget, on_evicted: OnEvicted, now: float) -> None:
        self._budget = budget
        self._on_evicted = on_evicted
        self._progress = 0.0
        self._at_s = now
        self.bytes = 0

    def grow(self, count: int) -> None:
        """Reserve `count` more bytes.

        Raises BodyEvicted if they would not fit even after the eviction of all slower uploads; the
        reservation is then released.
        """
        self._budget.grow(self, count)

    def release(self) -> None:
        """Release all bytes. Idempotent."""
        self._budget.release(self)

    def add_progress(self, count: int, now: float) -> None:
        """Add `count` bytes received at `now`."""
        self._progress = self.progress(now) + count
        self._at_s = now
        self.bytes += count

    def progress(self, now: float) -> float:
        """Return the recently received bytes; older ones count less."""
        return self._progress * math.exp2((self._at_s - now) / HALF_LIFE_S)

    def evict(self, error: FnError) -> None:
        """Notify the owner that the reservation was evicted."""
        self._on_evicted(error)


class BodyBudget:
    """All reservations of one process, and its unsent answers, which are part of the same count.

    `held` counts both, and has the limit; `clock` returns seconds on any scale. `memories`: of
    large bodies.
    """

    def __init__(self, held: HeldBytes, clock: Callable[[], float]) -> None:
        self.held: Final = held
        self._clock = clock
        self._all: set[BodyReservation] = set()
        self.answers = UnsentAnswers(held, clock)
        self.memories = BodyMemories()

    def __len__(self) -> int:
        return len(self._all)

    def open(self, on_evicted: OnEvicted) -> BodyReservation:
        """Return an empty reservation."""
        return BodyReservation(self, on_evicted, self._clock())

    def make_room(self, count: int) -> None:
        """Evict uploads, the slowest first, until `count` more bytes fit.

        None is evicted if evicting all of them would not suffice.
        """
        self._evict(count, None)

    def charge(self, count: int) -> None:
        """Count a complete body of `count` bytes, which is never evicted, until `refund`.

        Raises QueueFull if it does not fit.
        """
        self._evict(count, None)
        if self.held.bytes + count > self.held.most:
            raise QueueFull(self.held.over_text, retry_after_s=RETRY_S)
        self.held.bytes += count

    def try_charge(self, count: int) -> bool:
        """Charge a complete body if it fits without an eviction; return whether it did."""
        held = self.held
        if held.bytes + count > held.most:
            return False
        held.bytes += count
        return True

    def try_grow(self, one: BodyReservation, count: int) -> bool:
        """Reserve `count` more bytes if they fit without an eviction; return whether they did."""
        if not self.try_charge(count):
            return False
        self._all.add(one)
        one.add_progress(count, self._clock())
        return True

    def refund(self, count: int) -> None:
        """Undo `charge`."""
        self.held.bytes -= count

    def grow(self, one: BodyReservation, count: int) -> None:
        """Implement `BodyReservation.grow`."""
        over = self.held.bytes + count - self.held.most
        if over > 0 and over > sum(other.bytes for other in self._all if other is not one):
            # Accepted calls occupy the memory: evicting all other uploads would not free enough.
            self.release(one)
            raise BodyEvicted(self.held.over_text, retry_after_s=RETRY_S)
        if not self._evict(count, one):
            self.release(one)
            raise _evicted_error()
        self._all.add(one)
        one.add_progress(count, self._clock())
        self.held.bytes += count

    def release(self, one: BodyReservation) -> None:
        """Implement `BodyReservation.release`."""
        if one in self._all:
            self._all.remove(one)
            self.held.bytes -= one.bytes
            one.bytes = 0

    def _evict(self, count: int, grower: BodyReservation | None) -> bool:
        """Make room for `count` bytes.

        Returns False if they do not fit or `grower` itself was evicted; its owner is then not
        notified.
        """
        over = self.held.bytes + count - self.held.most
        if over <= 0:
            return True
        if over > sum(one.bytes for one in self._all):
            return False
        free = max(over, self.held.most // BATCH)
        now = self._clock()
        for one in sorted(self._all, key=lambda one: (one.bytes < SMALL, one.progress(now))):
            if free <= 0 or (over <= 0 and one.bytes < SMALL):
                break
            free, over = free - one.bytes, over - one.bytes
            self.release(one)
            if one is grower:
                return False
            one.evict(_evicted_error())
        return True


def _evicted_error() -> BodyEvicted:
    text = "the memory for request bodies is used up; uploads that made little progress were ended"
    return BodyEvicted(text, retry_after_s=RETRY_S)
