"""Shared memory of all of a replica's links, as its serving part sees it.

A replica's own slab, in which one link's large answers lie until their gateway has read them.

One link's bodies in shared memory: requests in its gateway's slabs, answers in one of ours.
"""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Callable
from typing import Final

from runtime_image.contract.link import ANSWER_SLAB_MAX, SLAB_BODY_MIN, Flag
from runtime_image.link.allocator import Allocator
from runtime_image.link.frames import Frame, LinkError
from runtime_image.link.shared_memory import (
    SideChannel,
    SlabNotice,
    SlabRange,
    make_slab,
    map_for_reading,
    unpack_range,
)
from runtime_image.link.socket_end import SocketEnd
from runtime_image.replica.intake import Job
from runtime_image.replica.loop import Loop

NUMBER: Final = 1
"""Of the only slab that a link has for answers."""
KEPT: Final = 4 * 2**20
"""Bytes that stay in memory after a rest; they count against the function's memory."""
REST_S: Final = 10.0

Later = Callable[[float, Callable[[], None]], None]


class AnswerSlab:
    """Made when the first large answer comes. `later(seconds, action)` is a timer."""

    def __init__(self, channel: SideChannel, later: Later, size: int = ANSWER_SLAB_MAX) -> None:
        self._channel = channel
        self._later = later
        self._size = size
        self._parts = Allocator(0)
        self._memory: mmap.mmap | None = None
        self._is_usable = True
        self._will_rest = False
        self._count = 0

    @property
    def touched(self) -> int:
        """Bytes that are in memory."""
        return self._parts.touched

    def put(self, body: bytes | bytearray | memoryview) -> SlabRange | None:
        """Where `body` lies now; None where there is no room, and it goes in a frame."""
        memory = self._memory or self._make()
        if memory is None:
            return None
        offset = self._parts.take(len(body))
        if offset is None:
            return None
        memory[offset : offset + len(body)] = body
        self._count += 1
        return SlabRange(NUMBER, offset, len(body))

    def free(self, place: SlabRange) -> None:
        """The gateway has read it. Raises LinkError where nothing lies that it was told of."""
        try:
            self._parts.free(place.offset, place.length)
        except KeyError:
            raise LinkError(f"nothing to free at {place.offset}") from None
        self._rest()

    def close(self) -> None:
        """Nobody reads it any more; there will be none again."""
        self._is_usable = False
        self._memory = None

    def _make(self) -> mmap.mmap | None:
        if not self._is_usable:
            return None
        self._is_usable = False  # whatever fails, it is not tried with every answer
        try:
            descriptor, memory = make_slab(self._size, read_only=False)
        except OSError:
            return None
        if self._channel.announce(NUMBER, self._size, descriptor):
            self._is_usable = True
            self._memory, self._parts = memory, Allocator(self._size)
        os.close(descriptor)  # the mapping keeps the memory
        return self._memory

    def _rest(self) -> None:
        """Give memory back after a while without an answer."""
        if self._parts.is_empty and self._parts.touched > KEPT and not self._will_rest:
            self._will_rest = True
            count = self._count
            self._later(REST_S, lambda: self._rested(count))

    def _rested(self, count: int) -> None:
        self._will_rest = False
        if self._memory is None:
            return
        if self._count != count:
            self._rest()
            return
        self._memory.madvise(mmap.MADV_REMOVE, KEPT, self._size - KEPT)
        self._parts.given_back(KEPT)


SLABS_MAX: Final = 8
"""Slabs of one gateway that are mapped at once: it replaces one, it does not collect them."""
NOTICES_MAX: Final = 2 * SLABS_MAX
"""Notices read at once."""


class SharedBodies:
    """Its side channel ends when nothing of its link is read any more: by that a gateway knows that
    it may write there again. `is_watched`: whether notices are waited for."""

    def __init__(self, channel: SideChannel, later: Later) -> None:
        self.channel = channel
        self.is_watched = False
        self._requests: dict[int, mmap.mmap] = {}
        self._answers = AnswerSlab(channel, later)
        self._lent = 0
        self._is_dropped = False

    @property
    def is_closed(self) -> bool:
        """Whether the link is gone and nobody reads a body of it."""
        return self._is_dropped and not self._lent

    def read_notices(self) -> None:
        """Take what the gateway says of its slabs. Raises EOFError and LinkError as `receive`."""
        for _ in range(NOTICES_MAX):
            notice = self.channel.receive()
            if notice is None:
                return
            self._notice(notice)

    def request(self, packed: bytes | bytearray) -> memoryview:
        """The request body at a place, read-only, until `returned`. Raises LinkError."""
        place = unpack_range(packed)
        if place.slab not in self._requests:
            self._read_ahead()
        memory = self._requests.get(place.slab)
        if memory is None:
            raise LinkError(f"slab {place.slab} was not announced")
        if place.offset + place.length > len(memory):
            raise LinkError(f"{place} is outside of its slab of {len(memory)} bytes")
        self._lent += 1
        return memoryview(memory)[place.offset : place.offset + place.length]

    def returned(self) -> None:
        """A request body is not read any more."""
        self._lent -= 1
        self._close_if_done()

    def answer(self, body: bytes | bytearray | memoryview) -> bytes | None:
        """The place of an answer put into shared memory; None: it goes in a frame."""
        if len(body) < SLAB_BODY_MIN or self._is_dropped:
            return None
        place = self._answers.put(body)
        return None if place is None else place.pack()

    def freed(self, packed: bytes | bytearray) -> None:
        """The gateway has read an answer. Raises LinkError for one that is not there."""
        self._answers.free(unpack_range(packed))

    def drop(self) -> None:
        """The link is gone."""
        self._is_dropped = True
        self._answers.close()
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self.is_closed:
            self._requests.clear()
            self.channel.close()

    def _read_ahead(self) -> None:
        """A slab is announced before the first frame that names it, so the notice is here."""
        try:
            self.read_notices()
        except EOFError as error:
            raise LinkError("the side channel has ended") from error

    def _notice(self, notice: SlabNotice) -> None:
        if not notice.size:
            # Whoever still has a view of it keeps the mapping.
            self._requests.pop(notice.number, None)
            return
        try:
            if notice.number in self._requests or len(self._requests) >= SLABS_MAX:
                raise LinkError(f"slab {notice.number} is one too many")
            self._requests[notice.number] = map_for_reading(notice.descriptor, notice.size)
        finally:
            os.close(notice.descriptor)


Body = bytes | bytearray | memoryview


class Sharing:
    """Links without a side channel have all bodies in frames. `broken(link)` hears of a gateway
    that breaks the rules of one."""

    def __init__(self, loop: Loop, broken: Callable[[int], None]) -> None:
        self._loop = loop
        self._broken = broken
        self._bodies: dict[int, SharedBodies] = {}

    def greet(self, link: int, end: SocketEnd) -> bool:
        """Take the side channel that came beside HELLO; whether there is one."""
        descriptor = end.take_descriptor()
        if descriptor is None:
            return False
        try:
            sock = socket.socket(fileno=descriptor)
        except OSError as error:
            os.close(descriptor)
            raise LinkError(f"expected a socket beside HELLO: {error}") from error
        bodies = SharedBodies(SideChannel(sock), self._loop.after)
        self._bodies[link] = bodies
        bodies.is_watched = True
        self._loop.watch(sock, lambda: self._readable(link, bodies))
        return True

    def request(self, link: int, frame: Frame) -> Body:
        """The body of a REQUEST, wherever it lies: a memoryview is to be `returned`."""
        if not frame.flags & Flag.SLAB:
            return frame.body
        bodies = self._bodies.get(link)
        if bodies is None:
            raise LinkError("a body in shared memory on a link without")
        return bodies.request(frame.body)

    def returned(self, job: Job) -> None:
        """A job's body is not read any more; said again, it means nothing."""
        if not isinstance(job.body, memoryview):
            return
        job.body = b""
        bodies = self._bodies[job.link]
        bodies.returned()
        if bodies.is_closed:
            del self._bodies[job.link]

    def answer(self, link: int, body: Body) -> tuple[Body, int]:
        """Body and flags of a RESPONSE."""
        bodies = self._bodies.get(link)
        place = bodies.answer(body) if bodies is not None else None
        return (body, 0) if place is None else (place, Flag.SLAB)

    def freed(self, link: int, frame: Frame) -> None:
        """A FREED frame. Raises LinkError where nothing is to free."""
        bodies = self._bodies.get(link)
        if bodies is None:
            raise LinkError("FREED on a link without shared memory")
        bodies.freed(frame.body)

    def drop(self, link: int) -> None:
        """A link is gone; its bodies stay until the last of its jobs is done."""
        bodies = self._bodies.get(link)
        if bodies is None:
            return
        self._forget(bodies)
        bodies.drop()
        if bodies.is_closed:
            del self._bodies[link]

    def _readable(self, link: int, bodies: SharedBodies) -> None:
        if not bodies.is_watched:  # the link ended in this very turn
            return
        try:
            bodies.read_notices()
        except EOFError:
            self._forget(bodies)
        except LinkError:
            self._broken(link)

    def _forget(self, bodies: SharedBodies) -> None:
        if bodies.is_watched:
            bodies.is_watched = False
            self._loop.forget(bodies.channel.sock)
