"""Slabs of one gateway process: one per pool, made when its first large body comes.

Invariants: a slot is given out again only when its last reference was dropped; what slabs take of
memory, including those that a replica does not let go of, stays within a budget; where there is no
room a body goes in a frame, as it would without any of this.

Pages of a sealed slab cannot be given back one by one. So one that rests is retired as a whole, and
the pool's next large body makes a new one.

One slab of a pool: request bodies of its calls, which its replicas read where they lie.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from typing import Final, Protocol

import structlog

from runtime_image.contract.link import SLAB_BODY_MIN
from runtime_image.link.allocator import BLOCK, Allocator
from runtime_image.link.shared_memory import is_unread, make_slab, open_for_reading


class Owner(Protocol):
    """Who gave a slot out."""

    def on_filled(self, slot: BodySlot) -> None:
        """Its body is whole."""

    def free(self, slot: BodySlot) -> None:
        """Nobody refers to it any more."""


class BodySlot:
    """A place for one body. It is used again when the last reference to it was dropped.

    References are one for its call, dropped by whoever made that, and one for each replica that
    the body was sent to and that has not let go of it. `view` is writable, exactly as long as the
    body.
    """

    __slots__ = ("_owner", "_references", "is_filling", "offset", "slab", "view")

    def __init__(self, owner: Owner, slab: Slab, offset: int, length: int) -> None:
        self._owner = owner
        self._references = 1
        self.slab = slab
        self.offset = offset
        self.view = slab.view(offset, length)
        self.is_filling = True

    def mark_filled(self) -> None:
        """The body is whole: it is no upload any more."""
        if self.is_filling:
            self._owner.on_filled(self)
            self.is_filling = False

    def acquire(self) -> None:
        """One reference more."""
        assert self._references > 0, "a slot that was given back"
        self._references += 1

    def release(self) -> None:
        """One reference less; each is to be dropped exactly once."""
        assert self._references > 0, "a slot that was given back"
        self._references -= 1
        if not self._references:
            self.mark_filled()
            self._owner.free(self)


class Slab:
    """Memory that this process alone writes. `number` names it on side channels.

    `rests_since_s` (monotonic): since when it was seen to be empty, 0 while it is not.
    """

    def __init__(self, number: int, pool: str, capacity: int) -> None:
        """Raises OSError where there is no memory for it."""
        self.number = number
        self.pool = pool
        self.allocator = Allocator(capacity)
        self.size = self.allocator.capacity
        self.idle_since_s = 0.0
        descriptor, memory = make_slab(self.size, read_only=True)
        self._view = memoryview(memory)
        try:
            self._own = open_for_reading(descriptor)
            try:
                self.descriptor = open_for_reading(descriptor)
            except OSError:
                os.close(self._own)
                raise
        finally:
            os.close(descriptor)

    def view(self, offset: int, length: int) -> memoryview:
        """That part, writable."""
        return self._view[offset : offset + length]

    def retire(self) -> None:
        """Unmap it, once nothing refers to it; what others have mapped stays in memory."""
        self._view = memoryview(b"")
        os.close(self.descriptor)
        self.descriptor = -1

    def is_unmapped(self) -> bool:
        """Whether nobody has it in memory any more; to be asked of a retired one."""
        return is_unread(self._own)

    def close(self) -> None:
        """Forget a retired one."""
        os.close(self._own)


log = structlog.get_logger()

SLABS_MAX: Final = 64
"""Slabs at once, retired ones that are still in memory included."""
TOUCHED_MAX: Final = 32 * 2**20
"""Bytes. A slab that has touched more rests for SHORT_REST_S only."""
SHORT_IDLE_S: Final = 10.0
LONG_IDLE_S: Final = 300.0
RETRY_S: Final = 10.0
"""How long bodies are copied after no slab could be made."""
BUDGET_FACTOR: Final = 2
"""Times the capacity: bytes that all slabs together may have in memory."""


class Listener(Protocol):
    """A link to `replica` that may have passed slabs on. `is_lost`: it has ended, and the replica
    may still read bodies of it."""

    @property
    def replica(self) -> str:
        """Its id."""

    @property
    def is_lost(self) -> bool:
        """See above."""

    def on_retired(self, number: int) -> None:
        """A slab is used no more."""

    def close(self) -> None:
        """This process goes."""


class SlabPool:
    """Runs in one event loop's thread. `capacity` is bytes of one slab, at most."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity // BLOCK * BLOCK
        self._numbers = count(1)
        self._live: dict[str, Slab] = {}
        self._retired: list[Slab] = []
        self._filling = 0
        self._is_usable = self._capacity > 0
        self._retry_at_s = 0.0
        self.links: set[Listener] = set()

    @property
    def touched(self) -> int:
        """Bytes that slabs have in memory, at most."""
        return sum(slab.allocator.touched for slab in self._all())

    def lost_link_count(self, replica: str) -> int:
        """Links to a replica that have ended while it may still read bodies of them."""
        return sum(link.is_lost for link in self.links if link.replica == replica)

    def allocate(self, pool: str, length: int) -> BodySlot | None:
        """Room for a body that is about to be read; None where it is to go in a frame: it is too
        small, too many are being read, or there is no memory."""
        if length < SLAB_BODY_MIN or self._filling + length > self._capacity // 2:
            return None
        slab = self._live.get(pool) or self._make_slab(pool)
        if slab is None:
            return None
        offset = slab.allocator.fit(length)
        if offset is None or not self._has_memory(slab, offset + length):
            return None
        slab.allocator.take(length)
        slab.idle_since_s = 0.0
        self._filling += length
        return BodySlot(self, slab, offset, length)

    def on_filled(self, slot: BodySlot) -> None:
        """A slot's: its body is whole."""
        self._filling -= len(slot.view)

    def free(self, slot: BodySlot) -> None:
        """A slot's: nobody refers to it any more."""
        slot.slab.allocator.free(slot.offset, len(slot.view))

    def sweep(self, now: float) -> None:
        """Retire what has rested for long enough, forget what is out of memory; about ten times a
        second."""
        self._retry(now)
        for slab in list(self._live.values()):
            if not slab.allocator.is_empty:
                slab.idle_since_s = 0.0
            elif not slab.idle_since_s:
                slab.idle_since_s = now
            else:
                rest_s = SHORT_IDLE_S if slab.allocator.touched > TOUCHED_MAX else LONG_IDLE_S
                if now - slab.idle_since_s >= rest_s:
                    self._retire(slab)
        self._close_unmapped()

    def close(self) -> None:
        """End every side channel and give all memory back; calls that go on keep theirs."""
        self._is_usable, self._capacity = False, 0
        for listener in list(self.links):
            listener.close()
        for slab in list(self._live.values()):
            self._retire(slab)
        for slab in self._retired:
            slab.close()
        self._retired.clear()

    def _all(self) -> Iterator[Slab]:
        yield from self._live.values()
        yield from self._retired

    def _make_slab(self, pool: str) -> Slab | None:
        if not self._is_usable:
            return None
        if len(self._live) + len(self._retired) >= SLABS_MAX and not self._evict():
            return None
        try:
            slab = Slab(next(self._numbers), pool, self._capacity)
        except OSError as error:
            self._is_usable = False
            log.warning("no shared memory: large bodies are copied for now", reason=str(error))
            return None
        self._live[pool] = slab
        return slab

    def _retry(self, now: float) -> None:
        """What there was no memory or descriptor for may be had after a while."""
        if self._is_usable or not self._capacity:
            return
        if not self._retry_at_s:
            self._retry_at_s = now + RETRY_S
        elif now >= self._retry_at_s:
            self._is_usable, self._retry_at_s = True, 0.0

    def _has_memory(self, slab: Slab, end: int) -> bool:
        """Whether the budget, or what another pool's slab at rest has of it, allows for more."""
        more = max(0, -(-end // BLOCK) * BLOCK - slab.allocator.touched)
        while self.touched + more > BUDGET_FACTOR * self._capacity:
            if not self._evict(slab):
                return False
        return True

    def _evict(self, spared: Slab | None = None) -> bool:
        """Retire the slab that has rested for longest; whether its memory came free at once."""
        resting = [s for s in self._live.values() if s.allocator.is_empty and s is not spared]
        if not resting:
            return False
        # One that was not seen to rest yet began to after all that were.
        victim = min(resting, key=lambda slab: slab.idle_since_s or float("inf"))
        before = len(self._retired)
        self._retire(victim)
        self._close_unmapped()
        return len(self._retired) <= before

    def _retire(self, slab: Slab) -> None:
        del self._live[slab.pool]
        self._retired.append(slab)
        slab.retire()
        for listener in self.links:
            listener.on_retired(slab.number)

    def _close_unmapped(self) -> None:
        if not self._retired:
            return
        for slab in [slab for slab in self._retired if slab.is_unmapped()]:
            self._retired.remove(slab)
            slab.close()
