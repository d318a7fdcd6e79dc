"""Memory of request bodies that are still arriving.

Their bytes count against the same limit as the bodies of calls that wait or run, from the first
byte on. When the limit is reached, the uploads with the least recent progress are given up, so that
many slow clients cannot keep fast ones out. Used by one thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, Protocol

from registry.errors import BodyEvicted, FnError, QueueFull

HALF_LIFE_S: Final = 2.0
"""Progress made so long ago counts half."""
BATCH: Final = 16
"""One eviction frees at least this fraction of the limit, because each one looks at all uploads."""
SMALL: Final = 16 * 1024
"""Bytes. Smaller uploads are given up only when all others are: they free next to nothing."""
RETRY_S: Final = 1.0

OnEvicted = Callable[[FnError], None]
"""Told that a reservation was given up, and why; it is released by then."""


class HeldBytes(Protocol):
    """The counter that reservations share with accepted calls."""

    @property
    def held_bytes(self) -> int:
        """Bytes of bodies that arrive, wait or are in flight."""

    def reserve(self, count: int) -> None:
        """Add to that count; negative to give back."""


class BodyReservation:
    """Bytes that one connection has sent and no call owns yet."""

    __slots__ = ("_at_s", "_on_evicted", "_progress", "_reservations", "bytes")

    def __init__(self, reservations: BodyBudget, evicted: OnEvicted, now: float) -> None:
        self._reservations = reservations
        self._on_evicted = evicted
        self._progress = 0.0
        self._at_s = now
        self.bytes = 0

    def grow(self, count: int) -> None:
        """Reserve `count` bytes more. Raises BodyEvicted where there is no room for them even
        without the uploads that are slower; the reservation is then released."""
        self._reservations.grow(self, count)

    def release(self) -> None:
        """Give all bytes back; to be called any number of times."""
        self._reservations.release(self)

    def add_progress(self, count: int, now: float) -> None:
        """Count `count` bytes, which came at `now`."""
        self._progress = self.progress(now) + count
        self._at_s = now
        self.bytes += count

    def progress(self, now: float) -> float:
        """Bytes received lately, older ones counting less."""
        return self._progress * math.exp2((self._at_s - now) / HALF_LIFE_S)

    def evict(self, error: FnError) -> None:
        """Tell the owner that the reservation was given up."""
        self._on_evicted(error)


class BodyBudget:
    """All reservations of one process. `capacity` bounds `held.held_bytes`; `clock` gives seconds
    on any scale."""

    def __init__(self, held: HeldBytes, capacity: int, clock: Callable[[], float]) -> None:
        self._held = held
        self._capacity = capacity
        self._clock = clock
        self._all: set[BodyReservation] = set()

    def __len__(self) -> int:
        return len(self._all)

    def open(self, evicted: OnEvicted) -> BodyReservation:
        """A reservation without bytes."""
        return BodyReservation(self, evicted, self._clock())

    def make_room(self, count: int) -> None:
        """Evict uploads, the slowest first, until `count` bytes more fit; none where even all of
        them would not be enough."""
        self._evict(count, None)

    def charge(self, count: int) -> None:
        """Count `count` bytes of a whole body, which is not evicted; `give_back` ends that. Raises
        QueueFull."""
        self._evict(count, None)
        if self._held.held_bytes + count > self._capacity:
            text = f"bodies of {self._held.held_bytes} bytes are held"
            raise QueueFull(f"{text}, at most {self._capacity} are allowed", retry_after_s=RETRY_S)
        self._held.reserve(count)

    def refund(self, count: int) -> None:
        """Undo `hold`."""
        self._held.reserve(-count)

    def grow(self, one: BodyReservation, count: int) -> None:
        """`Reservation.grow`."""
        over = self._held.held_bytes + count - self._capacity
        if over > 0 and over > sum(other.bytes for other in self._all if other is not one):
            # Calls have the memory: evicting all other uploads would not free enough.
            self.release(one)
            held = f"the requests held have {self._held.held_bytes} bytes"
            text = f"{held}, at most {self._capacity} are allowed"
            raise BodyEvicted(text, retry_after_s=RETRY_S)
        if not self._evict(count, one):
            self.release(one)
            raise _error()
        self._all.add(one)
        one.add_progress(count, self._clock())
        self._held.reserve(count)

    def release(self, one: BodyReservation) -> None:
        """`Reservation.release`."""
        if one in self._all:
            self._all.remove(one)
            self._held.reserve(-one.bytes)
            one.bytes = 0

    def _evict(self, count: int, grower: BodyReservation | None) -> bool:
        """Whether `count` bytes fit afterwards and `grower` is not among those evicted, which is
        not told."""
        over = self._held.held_bytes + count - self._capacity
        if over <= 0:
            return True
        if over > sum(one.bytes for one in self._all):
            return False
        free = max(over, self._capacity // BATCH)
        now = self._clock()
        for one in sorted(self._all, key=lambda one: (one.bytes < SMALL, one.progress(now))):
            if free <= 0 or (over <= 0 and one.bytes < SMALL):
                break
            free, over = free - one.bytes, over - one.bytes
            self.release(one)
            if one is grower:
                return False
            one.evict(_error())
        return True


def _error() -> BodyEvicted:
    text = "the memory for request bodies is used up; uploads that made little progress were ended"
    return BodyEvicted(text, retry_after_s=RETRY_S)
