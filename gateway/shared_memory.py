"""Large bodies in shared memory: slabs for requests, and what a link's replica may read of them.

A `SlabPool` has one slab per pool, made when its first large body comes. Request bodies lie in
slots of it, which the pool's replicas read in place. Invariants:

- A slot is allocated again only after its last reference was released.
- Resident memory, including slabs that a replica still has mapped, stays within a budget.
- Where there is no room, the body goes in a frame.

Pages of a sealed slab cannot be given back one by one. A slab that was idle for long enough is
retired as a whole; the pool's next large body makes a new one.

A `SharedLink` is the shared-memory half of one data link. Everything that a replica sends is
checked. Its answers are copied with pread: a mapping of its memory could end this process.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Callable, Iterator
from itertools import count
from typing import Final

import structlog

from runtime_image.contract.link import ANSWER_SLAB_MAX, SLAB_BODY_MIN, Flag
from runtime_image.link.allocator import BLOCK, Allocator
from runtime_image.link.frames import LinkError
from runtime_image.link.shared_memory import (
    Notice,
    Place,
    SideChannel,
    check_size,
    is_unread,
    make_slab,
    open_for_reading,
    unpack_place,
)

log = structlog.get_logger()

SLABS_MAX: Final = 64
"""Slabs at once, including retired ones that are still mapped."""
TOUCHED_MAX: Final = 32 * 2**20
"""Bytes. A slab that has touched more is retired after SHORT_IDLE_S."""
SHORT_IDLE_S: Final = 10.0
LONG_IDLE_S: Final = 300.0
RETRY_S: Final = 10.0
"""Seconds until slabs are made again after one could not be made."""
BUDGET_FACTOR: Final = 2
"""Bytes of resident memory of all slabs, in multiples of the capacity."""

ANSWER_SLABS_MAX: Final = 2
"""Slabs that a replica may have announced on one link at once."""
NOTICES_MAX: Final = 64
"""Notices that a replica may send on one link in all; an honest one sends one."""
HELLO_MAX: Final = 4096
"""Bytes of a HELLO's body."""
LOST_MAX: Final = 4
"""Lost links of one replica with an open side channel. Beyond, new links of the replica get no side
channel: each lost one costs a descriptor, and the slots of what was in flight."""

Body = bytes | bytearray | memoryview


class SlabPool:
    """All slabs of this process. For the loop's thread alone."""

    def __init__(self, capacity: int) -> None:
        """`capacity`: bytes of one slab, at most."""
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
        """Resident bytes of all slabs, at most."""
        return sum(slab.allocator.touched for slab in self._all())

    def lost_link_count(self, replica: str) -> int:
        """Links to `replica` that have ended while it may still read bodies of them."""
        return sum(link.is_lost for link in self.links if link.replica == replica)

    def allocate(self, pool: str, length: int) -> BodySlot | None:
        """A slot for a body that is about to be read. None where the body is to go in a frame: it
        is small, uploads fill half of the capacity, or there is no memory."""
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
        """The body in `slot` is whole."""
        self._filling -= len(slot.view)

    def free(self, slot: BodySlot) -> None:
        """The last reference to `slot` was released."""
        slot.slab.allocator.free(slot.offset, len(slot.view))

    def sweep(self, now: float) -> None:
        """Retire slabs that were idle for long enough, and close unmapped ones. To be called about
        ten times a second."""
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
        """The gateway shuts down: end every side channel and release every slab. Calls that are
        still in flight keep their views."""
        self._is_usable, self._capacity = False, 0
        for link in list(self.links):
            link.close()
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
        """Memory or descriptors that were missing may be there after a while."""
        if self._is_usable or not self._capacity:
            return
        if not self._retry_at_s:
            self._retry_at_s = now + RETRY_S
        elif now >= self._retry_at_s:
            self._is_usable, self._retry_at_s = True, 0.0

    def _has_memory(self, slab: Slab, end: int) -> bool:
        """Whether `slab` may be touched up to `end`; idle slabs of other pools are evicted."""
        more = max(0, -(-end // BLOCK) * BLOCK - slab.allocator.touched)
        while self.touched + more > BUDGET_FACTOR * self._capacity:
            if not self._evict(slab):
                return False
        return True

    def _evict(self, spared: Slab | None = None) -> bool:
        """Retire the slab that was idle for longest; whether its memory came free at once."""
        idle = [s for s in self._live.values() if s.allocator.is_empty and s is not spared]
        if not idle:
            return False
        # A slab that no sweep has found idle yet became idle after all that were found.
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
        if not self._retired:
            return
        for slab in [slab for slab in self._retired if slab.is_unmapped()]:
            self._retired.remove(slab)
            slab.close()


class Slab:
    """Request bodies of one pool, in memory that this process alone writes.

    `number` names the slab on side channels. `idle_since_s`: when a sweep first found it empty
    (monotonic seconds), 0 while it is in use.
    """

    def __init__(self, number: int, pool: str, capacity: int) -> None:
        """Raises OSError where there is no memory or descriptor for it."""
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
        """A part of it, writable."""
        return self._view[offset : offset + length]

    def retire(self) -> None:
        """Unmap it here, once no view refers to it. Mappings of replicas keep it resident."""
        self._view = memoryview(b"")
        os.close(self.descriptor)
        self.descriptor = -1

    def is_unmapped(self) -> bool:
        """Whether no process has it mapped any more; for retired slabs."""
        return is_unread(self._own)

    def close(self) -> None:
        """Close the last descriptor of a retired slab."""
        os.close(self._own)


class BodySlot:
    """A part of a slab for one body, with a count of references.

    The code that made the call has one reference, and so has each link that the body was sent on
    until its replica lets go of the request. `view` is writable and exactly as long as the body.
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
        """The body is whole and no longer counts as an upload."""
        if self.is_filling:
            self._slabs.on_filled(self)
            self.is_filling = False

    def acquire(self) -> None:
        """Add a reference."""
        assert self._references > 0, "a slot that was freed"
        self._references += 1

    def release(self) -> None:
        """Drop a reference; each is to be released exactly once."""
        assert self._references > 0, "a slot that was freed"
        self._references -= 1
        if not self._references:
            self.mark_filled()
            self._slabs.free(self)


class SharedLink:
    """The side channel of one data link: request slots that the replica reads, and its answers.

    Made before the link. A slot whose body the replica reads in place is held until the replica
    lets go of the request. Once the link is lost, it is held until the side channel ends: then the
    process is gone, or has unmapped everything of this link. A slot whose body went in a frame is
    held no longer than the link. `is_lost`: the link has ended, the side channel has not.
    """

    def __init__(
        self, replica: str, pool: str, slabs: SlabPool, on_ended: Callable[[str], None]
    ) -> None:
        """`on_ended(reason)` is called once, when the replica's end of the side channel is gone or
        breaks the protocol. Raises OSError where there are no descriptors left."""
        self.replica = replica
        self.is_lost = False
        self._pool = pool
        self._slabs = slabs
        self._on_ended = on_ended
        self._loop = asyncio.get_running_loop()
        own, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel = SideChannel(own)
        self._is_agreed = False
        self._is_open = True
        self._announced: set[int] = set()
        self._in_place: dict[int, BodySlot] = {}
        """By request id: slots that the replica reads in place."""
        self._framed: dict[int, BodySlot] = {}
        """By request id: slots whose body went in a frame."""
        self._answers: dict[int, int] = {}
        """Descriptors of the replica's slabs by number."""
        self._notices = 0

    @property
    def descriptors(self) -> list[int]:
        """The replica's end, to be sent beside HELLO; empty where LOST_MAX is reached."""
        is_trusted = self._slabs.lost_link_count(self.replica) < LOST_MAX
        return [self._theirs.fileno()] if is_trusted else []

    def hello_sent(self) -> None:
        """HELLO carries the replica's end: close this process's copy of it."""
        self._theirs.close()

    def on_hello(self, body: bytes | bytearray) -> None:
        """The replica's HELLO came; its JSON says whether the replica uses the side channel. Raises
        LinkError."""
        if not _accepts_slabs(body):
            self.close()
            return
        self._is_agreed = True
        self._slabs.links.add(self)
        self._loop.add_reader(self._channel.sock, self._on_readable)

    def send(self, id: int, slot: BodySlot, body: Body) -> tuple[Body, int]:
        """Body and flags of REQUEST `id`, whose body lies in `slot`."""
        slot.acquire()
        if not self._can_read(slot):
            # Held all the same: the transport may not have written all of it yet.
            self._framed[id] = slot
            return body, 0
        self._in_place[id] = slot
        place = Place(slot.slab.number, slot.offset, len(slot.view))
        return place.pack(), Flag.SLAB

    def release(self, id: int) -> None:
        """The replica has let go of a request."""
        slot = self._in_place.pop(id, None) or self._framed.pop(id, None)
        if slot is not None:
            slot.release()

    def read_answer(self, packed: bytes | bytearray) -> bytes:
        """A copy of the answer that a RESPONSE with the flag SLAB names. Raises LinkError."""
        place = unpack_place(packed)
        if place.slab not in self._answers:
            self._read_notices()
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
        """The link is gone. Slots that the replica may still read are kept until the side channel
        ends."""
        self.is_lost = True
        self._release_all(self._framed)
        self._close_answers()
        if not self._in_place:
            self.close()

    def on_retired(self, number: int) -> None:
        """The pool has retired a slab: the replica is to unmap it."""
        if number in self._announced:
            self._announced.discard(number)
            self._channel.retire(number)

    def close(self) -> None:
        """End the side channel and release every slot."""
        if not self._is_open:
            return
        self._is_open = False
        if self._is_agreed:
            self._loop.remove_reader(self._channel.sock)
        self._slabs.links.discard(self)
        self._theirs.close()
        self._channel.close()
        self._close_answers()
        self._release_all(self._framed)
        self._release_all(self._in_place)

    def _can_read(self, slot: BodySlot) -> bool:
        """Whether the replica has, or has just been sent, the slab of `slot`. The slab of another
        revision is not shown to it, as other callers' bodies lie there: the call has followed its
        function's traffic."""
        slab = slot.slab
        if not self._is_agreed or not self._is_open or slab.pool != self._pool:
            return False
        if slab.number not in self._announced:
            if not self._channel.announce(slab.number, slab.size, slab.descriptor):
                return False
            self._announced.add(slab.number)
        return True

    def _on_readable(self) -> None:
        try:
            self._read_notices()
        except LinkError as error:
            log.warning("a link broke the protocol", link=f"side {self.replica}", reason=str(error))
            self._end(str(error))

    def _end(self, reason: str) -> None:
        self.close()
        self._on_ended(reason)

    def _read_notices(self) -> None:
        """Read what the replica announces and retires; the end of the channel ends this link.
        Raises LinkError."""
        try:
            while self._is_open and (notice := self._channel.receive()) is not None:
                self._notices += 1
                self._on_notice(notice)
        except EOFError:
            self._end("the side channel has ended")

    def _on_notice(self, notice: Notice) -> None:
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


def _accepts_slabs(hello: bytes | bytearray) -> bool:
    """Whether the body of a replica's HELLO accepts the side channel; it may be empty. Raises
    LinkError."""
    if not hello:
        return False
    try:
        if len(hello) > HELLO_MAX:
            raise ValueError(f"{len(hello)} bytes")
        fields = json.loads(hello)
    except (ValueError, RecursionError) as error:
        raise LinkError(f"malformed HELLO: {error}") from error
    return isinstance(fields, dict) and fields.get("slabs") is True
