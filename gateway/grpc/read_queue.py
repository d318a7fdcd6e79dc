"""Which message is read next, and which read is ended for it. Pure.

gRPC shows nothing of a message that has not arrived as a whole, so each read has room for the
largest one. Room is scarce therefore, and the reads of one party must not keep it from others.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final, Generic, Protocol, TypeVar

from registry.shares import Shares

WAITING_MAX: Final = 1024
"""Max reads that wait for room."""
WAIT_S: Final = 10.0
"""Seconds after which a read that waits is refused."""


class PendingRead(Protocol):
    """A read that has not ended. `party`: whose it is, see `Shares`. `since_s`: when it began to
    wait, or, once it has room, when it got that. `within_s`: seconds it may take from then."""

    party: str
    since_s: float
    within_s: float


R = TypeVar("R", bound=PendingRead)


class ReadQueue(Generic[R]):
    """Reads that wait for room, and those that have it.

    `patience_s`: seconds that a read waits before one that has had room for that long is ended.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._shares = Shares("messages wait for room", WAITING_MAX)
        self._waiting: dict[str, deque[R]] = {}
        self._reading: dict[R, None] = {}
        self._counts: dict[str, int] = {}

    def __bool__(self) -> bool:
        """Return whether any read waits."""
        return bool(self._waiting)

    def wait(self, read: R) -> None:
        """Let a read wait. Raises QueueFull if too many do, or too many of its party."""
        self._shares.take(read.party)
        self._waiting.setdefault(read.party, deque()).append(read)

    def forget(self, read: R) -> None:
        """Let a read wait no more. Idempotent."""
        own = self._waiting.get(read.party)
        if own is None or read not in own:
            return
        own.remove(read)
        if not own:
            del self._waiting[read.party]
        self._shares.give_back(read.party)

    def begin(self, read: R, now: float) -> None:
        """Note that a read has room, until `end`."""
        read.since_s = now
        self._reading[read] = None
        self._counts[read.party] = self._counts.get(read.party, 0) + 1

    def end(self, read: R) -> None:
        """Note that a read gave its room back."""
        del self._reading[read]
        left = self._counts[read.party] - 1
        if left:
            self._counts[read.party] = left
        else:
            del self._counts[read.party]

    def first(self) -> R | None:
        """Return the read that gets the next room: of the party that has least, the longest wait.

        None if no read waits.
        """
        counts = self._counts
        heads = (own[0] for own in self._waiting.values())
        return min(heads, key=lambda one: (counts.get(one.party, 0), one.since_s), default=None)

    def overdue(self, now: float) -> list[R]:
        """Return the reads that have waited for WAIT_S."""
        return [one for own in self._waiting.values() for one in own if now >= one.since_s + WAIT_S]

    def is_impatient(self, now: float) -> bool:
        """Return whether a read has waited as long as one may before another is ended."""
        heads = (own[0].since_s for own in self._waiting.values())
        return now >= min(heads, default=math.inf) + self._patience_s

    def late(self, now: float) -> list[R]:
        """Return the reads whose time is over."""
        return [one for one in self._reading if now >= one.since_s + one.within_s]

    def slowest(self, now: float) -> R | None:
        """Return the read to end: of the party that has most room, the oldest one.

        None if each is younger than a wait may be: those are quick, and their room comes back.
        """
        old = (one for one in self._reading if now >= one.since_s + self._patience_s)
        return min(old, key=lambda one: (-self._counts[one.party], one.since_s), default=None)

    @property
    def has_room(self) -> bool:
        """Whether any read has room."""
        return bool(self._reading)
