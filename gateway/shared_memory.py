"""Large request and answer bodies in shared memory, and what each replica may access of them.

A `SlabPool` has one slab per pool, created for the pool's first large body. Request bodies are
placed in slots of the slab, and the pool's replicas read them in place. Invariants:

- A slot is reused only after its last reference was released.
- Resident memory, including slabs that a replica still has mapped, stays within a budget.
- If there is no room, the body travels in a frame.

The pages of a sealed slab cannot be released one by one. A slab that was idle for long enough is
retired as a whole; the pool's next large body creates a new one.

A `SharedLink` is the shared-memory half of one data link. Everything that a replica sends is
validated. Its answers are copied with pread: access to a mapping of its memory could crash this
process.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count
from typing import Final

import structlog

from gateway.socket_channel import SideSocket, hello_member
from runtime_image.contract.link import ANSWER_SLAB_MAX, SLAB_BODY_MIN, Flag
from runtime_image.link.allocator import BLOCK, Allocator
from runtime_image.link.descriptors import SIDE_CLOSED
from runtime_image.link.frames import LinkError
from runtime_image.link.shared_memory import (
    SideChannel,
    SlabNotice,
    SlabRange,
    check_size,
    is_unread,
    make_slab,
    open_for_reading,
    unpack_range,
)

log = structlog.get_logger()

SLABS_MAX: Final = 64
"""Max slabs, including retired ones that are still mapped."""
TOUCHED_MAX: Final = 32 * 2**20
"""Bytes. An idle slab that has touched more is retired after SHORT_IDLE_S, others after
LONG_IDLE_S."""
SHORT_IDLE_S: Final = 10.0
LONG_IDLE_S: Final = 300.0
RETRY_S: Final = 10.0
"""Seconds without new slabs after the system refused one."""
BUDGET_FACTOR: Final = 2
"""Max resident bytes of all slabs, as a multiple of the capacity."""

ANSWER_SLABS_MAX: Final = 2
"""Max slabs that a replica may have announced on one link at once."""
NOTICES_MAX: Final = 64
"""Max notices of a replica during the life of one link; an honest one sends one."""
LOST_MAX: Final = 4
"""Max lost links of one replica whose side channel is still open. Beyond that, new links of the
replica get no side channel: each lost one costs a descriptor and the slots that were in flight."""

Body = bytes | bytearray | memoryview


class SlabPool:
    """All slabs of this process. Event loop thread only."""

    def __init__(self, capacity: int) -> None:
        """Create the pool without slabs. `capacity`: max bytes of one slab."""
        self._capacity = capacity // BLOCK * BLOCK
        self._numbers = count(1)
        self._live: dict[str, Slab] = {}
        self._retired: list[Slab] = []
        self._filling = 0
        self._is_usable = self._capacity > 0
        self._retry_at_s = 0.0
        self.links: set[SharedLink] = set()
        """Links whose replica may have mapped slabs."""

    @property
    def touched(self) -> int:
        """Upper bound of the resident bytes of all slabs."""
        return sum(slab.allocator.touched for slab in (*self._live.values(), *self._retired))

    def lost_link_count(self, replica: str) -> int:
        """Return how many lost links to `replica` still let it read bodies."""
        return sum(link.is_lost for link in self.links if link.replica == replica)

    def allocate(self, pool: str, length: int) -> BodySlot | None:
        """Return a slot for an arriving body, None if it has to travel in a frame: it is small,
        uploads fill half of the capacity, or there is no memory."""
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
        """Stop counting the body in `slot` as an upload: it is complete."""
        self._filling -= len(slot.view)

    def free(self, slot: BodySlot) -> None:
        """Free the memory of `slot`, whose last reference was released."""
        slot.slab.allocator.free(slot.offset, len(slot.view))

    def sweep(self, now: float) -> None:
        """Retire slabs that were idle for long enough and close unmapped ones."""
        self._retry(now)
        for slab in list(self._live.values()):
            if not slab.allocator.is_empty:
                slab.idle_since_s = 0.0
            elif not slab.idle_since_s:
                slab.idle_since_s = now
            else:
                is_large = slab.allocator.touched > TOUCHED_MAX
                if now - slab.idle_since_s >= (SHORT_IDLE_S if is_large else LONG_IDLE_S):
                    self._retire(slab)
        self._close_unmapped()

    def close(self) -> None:
        """End every side channel and release every slab. Calls in flight keep their views."""
        self._is_usable, self._capacity = False, 0
        for link in list(self.links):
            link.close()
        for slab in list(self._live.values()):
            self._retire(slab)
        for slab in self._retired:
            slab.close()
        self._retired.clear()

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
        """Allow new slabs again RETRY_S after memory or descriptors ran out."""
        if self._is_usable or not self._capacity:
            return
        if not self._retry_at_s:
            self._retry_at_s = now + RETRY_S
        elif now >= self._retry_at_s:
            self._is_usable, self._retry_at_s = True, 0.0

    def _has_memory(self, slab: Slab, end: int) -> bool:
        """Return whether `slab` may be touched up to `end`; evicts other, idle slabs if needed."""
        more = max(0, -(-end // BLOCK) * BLOCK - slab.allocator.touched)
        while self.touched + more > BUDGET_FACTOR * self._capacity:
            if not self._evict(slab):
                return False
        return True

    def _evict(self, spared: Slab | None = None) -> bool:
        """Retire the slab that has been idle longest; return whether this released memory."""
        idle = [s for s in self._live.values() if s.allocator.is_empty and s is not spared]
        if not idle:
            return False
        # idle_since_s is 0 until a sweep sees the slab idle: such a slab became idle last.
        victim = min(idle, key=lambda slab: slab.idle_since_s or float("inf"))
        before = len(self._retired)
        self._retire(victim)
        self._close_unmapped()
        return len(self._retired) <= before

    def _retire(self, slab: Slab) -> None:
        del self._live[slab.pool]
        self._retired.append(slab)
        slab.retire()
        for link in self.links:
            link.on_retired(slab.number)

    def _close_unmapped(self) -> None:
        for slab in [slab for slab in self._retired if slab.is_unmapped()]:
            self._retired.remove(slab)
            slab.close()


class Slab:
    """Request bodies of one pool, in memory that only this process writes.

    `number` identifies the slab on side channels. `idle_since_s`: when a sweep first found it empty
    (monotonic seconds), 0 while it is in use.
    """

    def __init__(self, number: int, pool: str, capacity: int) -> None:
        """Map new memory. Raises OSError if there is no memory or no descriptor."""
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
        """Return a writable view of one part."""
        return self._view[offset : offset + length]

    def retire(self) -> None:
        """Unmap the slab here, once no view refers to it. Mappings of replicas keep it resident."""
        self._view = memoryview(b"")
        os.close(self.descriptor)
        self.descriptor = -1

    def is_unmapped(self) -> bool:
        """Return whether no process maps the slab any more; for retired slabs."""
        return is_unread(self._own)

    def close(self) -> None:
        """Close the last descriptor of a retired slab."""
        os.close(self._own)


class BodySlot:
    """Reference-counted part of a slab that holds one body.

    The creator of the call has one reference. Each link that the body was sent on has another one
    until its replica releases the request. `view` is writable and exactly as long as the body.
    """

    __slots__ = ("_references", "_slabs", "is_filling", "offset", "slab", "view")

    def __init__(self, slabs: SlabPool, slab: Slab, offset: int, length: int) -> None:
        self._slabs = slabs
        self._references = 1
        self.slab = slab
        self.offset = offset
        self.view = slab.view(offset, length)
        self.is_filling = True

    def mark_filled(self) -> None:
        """Mark the body as complete: it no longer counts as an upload."""
        if self.is_filling:
            self._slabs.on_filled(self)
            self.is_filling = False

    def acquire(self) -> None:
        """Add a reference."""
        assert self._references > 0, "a slot that was freed"
        self._references += 1

    def release(self) -> None:
        """Drop a reference; to be called exactly once per reference."""
        assert self._references > 0, "a slot that was freed"
        self._references -= 1
        if not self._references:
            self.mark_filled()
            self._slabs.free(self)


class SharedLink(SideSocket):
    """Side channel of one data link: request slots that the replica reads, and its answer slabs.

    A slot whose body the replica reads in place is held until the replica
    releases the request. If the link is lost first, the slot is held until the side channel ends:
    then the replica's process has exited or has unmapped everything of this link. A slot whose body
    travelled in a frame is released with the link at the latest. `is_lost`: the link has ended, the
    side channel has not.
    """

    def __init__(
        self, replica: str, pool: str, slabs: SlabPool, on_ended: Callable[[str], None]
    ) -> None:
        """See `SideSocket`. `pool`: the replica's."""
        super().__init__(replica, on_ended)
        self.is_lost = False
        self._pool = pool
        self._slabs = slabs
        self._channel = SideChannel(self._own)
        self._announced: set[int] = set()
        self._in_place: dict[int, BodySlot] = {}
        """Slots that the replica reads in place, by request id."""
        self._framed: dict[int, BodySlot] = {}
        """Slots whose body travelled in a frame, by request id."""
        self._answers: dict[int, int] = {}
        """Descriptors of the replica's slabs, by slab number."""
        self._notices = 0

    @property
    def descriptors(self) -> list[int]:
        """The replica's end, to be sent with HELLO; empty if LOST_MAX is reached."""
        is_trusted = self._slabs.lost_link_count(self.replica) < LOST_MAX
        return super().descriptors if is_trusted else []

    def on_hello(self, body: bytes | bytearray) -> None:
        """Process the replica's HELLO, which accepts or declines slabs. Raises LinkError."""
        if hello_member(body, "slabs") is not True:
            self.close()
            return
        self._slabs.links.add(self)
        self._begin()

    def send(self, id: int, slot: BodySlot, body: Body) -> tuple[Body, int]:
        """Return body and flags of the frame REQUEST `id`, whose body is in `slot`."""
        slot.acquire()
        if not self._can_read(slot):
            # The slot is held nevertheless: the transport may not have written all of it yet.
            self._framed[id] = slot
            return body, 0
        self._in_place[id] = slot
        place = SlabRange(slot.slab.number, slot.offset, len(slot.view))
        return place.pack(), Flag.SLAB

    def release(self, id: int) -> None:
        """Release the slot of a request that the replica has released."""
        slot = self._in_place.pop(id, None) or self._framed.pop(id, None)
        if slot is not None:
            slot.release()

    def read_answer(self, packed: bytes | bytearray) -> bytes:
        """Copy the answer that a RESPONSE with the flag SLAB refers to. Raises LinkError."""
        place = unpack_range(packed)
        if place.slab not in self._answers:
            self._read()
        descriptor = self._answers.get(place.slab)
        if descriptor is None:
            raise LinkError(f"slab {place.slab} was not announced")
        if place.offset + place.length > ANSWER_SLAB_MAX:
            raise LinkError(
                f"an answer at {place.offset} of {place.length} bytes is over the limit"
            )
        try:
            body = os.pread(descriptor, place.length, place.offset)
        except OSError as error:
            raise LinkError(f"an answer cannot be read: {error}") from error
        if len(body) != place.length:
            raise LinkError(f"expected an answer of {place.length} bytes, got {len(body)}")
        return body

    def on_link_lost(self) -> None:
        """Release all slots except those that the replica may still read in place."""
        self.is_lost = True
        self._release_all(self._framed)
        self._close_answers()
        if not self._in_place:
            self.close()

    def on_retired(self, number: int) -> None:
        """Notify the replica that the pool has retired a slab."""
        if number in self._announced:
            self._announced.discard(number)
            self._channel.retire(number)

    def close(self) -> None:
        """Close the side channel and release every slot."""
        if not self._is_open:
            return
        super().close()
        self._slabs.links.discard(self)
        self._close_answers()
        self._release_all(self._framed)
        self._release_all(self._in_place)

    def _can_read(self, slot: BodySlot) -> bool:
        """Return whether the replica has the slab of `slot`; announces the slab if needed.

        A slab of another revision is never shared, because other callers' bodies are in it. That
        case occurs when the call has followed its function's traffic.
        """
        slab = slot.slab
        if not self._is_reading or not self._is_open or slab.pool != self._pool:
            return False
        if slab.number not in self._announced:
            if not self._channel.announce(slab.number, slab.size, slab.descriptor):
                return False
            self._announced.add(slab.number)
        return True

    def _read(self) -> None:
        """Read the replica's notices; closes this link if the channel has ended.

        Raises LinkError.
        """
        try:
            while self._is_open and (notice := self._channel.receive()) is not None:
                self._notices += 1
                self._on_notice(notice)
        except EOFError:
            self._end(SIDE_CLOSED)

    def _on_notice(self, notice: SlabNotice) -> None:
        if not notice.size:
            self._on_answers_retired(notice.number)
            return
        try:
            if self._notices > NOTICES_MAX:
                raise LinkError(f"more than {NOTICES_MAX} notices")
            if notice.number in self._answers or len(self._answers) >= ANSWER_SLABS_MAX:
                raise LinkError(f"slab {notice.number} is one too many")
            if notice.size > ANSWER_SLAB_MAX:
                raise LinkError(f"a slab of {notice.size} bytes is over the limit")
            check_size(notice.descriptor, notice.size)
        except LinkError:
            os.close(notice.descriptor)
            raise
        self._answers[notice.number] = notice.descriptor

    def _on_answers_retired(self, number: int) -> None:
        if self._notices > NOTICES_MAX:
            raise LinkError(f"more than {NOTICES_MAX} notices")
        descriptor = self._answers.pop(number, None)
        if descriptor is None:
            raise LinkError(f"slab {number} was not announced")
        os.close(descriptor)

    def _close_answers(self) -> None:
        for descriptor in self._answers.values():
            os.close(descriptor)
        self._answers.clear()

    @staticmethod
    def _release_all(slots: dict[int, BodySlot]) -> None:
        held = list(slots.values())
        slots.clear()
        for slot in held:
            slot.release()
