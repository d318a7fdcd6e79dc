"""Bodies in shared memory: requests in the gateways' slabs, answers in one slab per link.

An answer stays in its slab until the gateway has read it.
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

ANSWER_SLAB: Final = 1
"""Number of a link's only slab for answers."""
KEPT_BYTES: Final = 4 * 2**20
"""Bytes of an idle answer slab that stay in memory. They count as the function's memory."""
REST_S: Final = 10.0
"""Seconds without an answer after which an idle slab is trimmed to KEPT_BYTES."""
SLABS_MAX: Final = 8
"""Max slabs of one gateway mapped at once: a gateway may replace its slab."""
NOTICES_AT_ONCE: Final = 2 * SLABS_MAX
"""Max notices read per turn of the loop."""

Later = Callable[[float, Callable[[], None]], None]
Body = bytes | bytearray | memoryview


class SharedMemory:
    """Bodies of all links. Links without a side channel send bodies in frames.

    `broken(link)` is called if a gateway breaks the protocol of the side channel.
    """

    def __init__(self, loop: Loop, broken: Callable[[int], None]) -> None:
        self._loop = loop
        self._broken = broken
        self._bodies: dict[int, LinkBodies] = {}

    def accept(self, link: int, end: SocketEnd) -> bool:
        """Take the side channel received with HELLO; return False if there is none."""
        descriptor = end.take_descriptor()
        if descriptor is None:
            return False
        try:
            sock = socket.socket(fileno=descriptor)
        except OSError as error:
            os.close(descriptor)
            raise LinkError(f"expected a socket beside HELLO: {error}") from error
        bodies = LinkBodies(SideChannel(sock), self._loop.after)
        self._bodies[link] = bodies
        bodies.is_watched = True
        self._loop.watch(sock, lambda: self._readable(link, bodies))
        return True

    def request_body(self, link: int, frame: Frame) -> Body:
        """Return the body of a REQUEST. If it is a memoryview, `release` must be called."""
        if not frame.flags & Flag.SLAB:
            return frame.body
        bodies = self._bodies.get(link)
        if bodies is None:
            raise LinkError("a body in shared memory on a link without shared memory")
        return bodies.request_body(frame.body)

    def release(self, job: Job) -> None:
        """Mark a job's body as unused; idempotent."""
        if not isinstance(job.body, memoryview):
            return
        job.body = b""
        bodies = self._bodies[job.link]
        bodies.release()
        if bodies.is_closed:
            del self._bodies[job.link]

    def put_answer(self, link: int, body: Body) -> tuple[Body, int]:
        """Return body and flags of a RESPONSE frame."""
        bodies = self._bodies.get(link)
        place = bodies.put_answer(body) if bodies is not None else None
        return (body, 0) if place is None else (place, Flag.SLAB)

    def on_freed(self, link: int, frame: Frame) -> None:
        """Handle a FREED frame. Raises LinkError unless its range is in use."""
        bodies = self._bodies.get(link)
        if bodies is None:
            raise LinkError("FREED on a link without shared memory")
        bodies.on_freed(frame.body)

    def drop(self, link: int) -> None:
        """Handle a lost link. Its bodies stay mapped until the last of its jobs is done."""
        bodies = self._bodies.get(link)
        if bodies is None:
            return
        self._forget(bodies)
        bodies.drop()
        if bodies.is_closed:
            del self._bodies[link]

    def _readable(self, link: int, bodies: LinkBodies) -> None:
        if not bodies.is_watched:  # the link ended earlier in this turn
            return
        try:
            bodies.read_notices()
        except EOFError:
            self._forget(bodies)
        except LinkError:
            self._broken(link)

    def _forget(self, bodies: LinkBodies) -> None:
        if bodies.is_watched:
            bodies.is_watched = False
            self._loop.forget(bodies.channel.sock)


class LinkBodies:
    """Bodies of one link. The side channel is closed when the link is lost and none of its bodies
    is in use: the gateway may then reuse the memory. `is_watched`: the loop watches the side
    channel."""

    def __init__(self, channel: SideChannel, later: Later) -> None:
        self.channel = channel
        self.is_watched = False
        self._requests: dict[int, mmap.mmap] = {}
        self._answers = AnswerSlab(channel, later)
        self._lent = 0
        self._is_dropped = False

    @property
    def is_closed(self) -> bool:
        """Whether the link is lost and none of its bodies is in use."""
        return self._is_dropped and not self._lent

    def read_notices(self) -> None:
        """Map and unmap slabs by the gateway's notices. Raises like `SideChannel.receive`."""
        for _ in range(NOTICES_AT_ONCE):
            notice = self.channel.receive()
            if notice is None:
                return
            self._notice(notice)

    def request_body(self, packed: bytes | bytearray) -> memoryview:
        """Return a read-only view of a request body, valid until `release`. Raises LinkError."""
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

    def release(self) -> None:
        """Mark one view of a request body as unused."""
        self._lent -= 1
        self._close_if_done()

    def put_answer(self, body: bytes | bytearray | memoryview) -> bytes | None:
        """Copy an answer into the slab; return its packed range, or None: send it in a frame."""
        if len(body) < SLAB_BODY_MIN or self._is_dropped:
            return None
        place = self._answers.put(body)
        return None if place is None else place.pack()

    def on_freed(self, packed: bytes | bytearray) -> None:
        """Free an answer that the gateway has read. Raises LinkError unless its range is in use."""
        self._answers.free(unpack_range(packed))

    def drop(self) -> None:
        """Handle the loss of the link."""
        self._is_dropped = True
        self._answers.close()
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self.is_closed:
            self._requests.clear()
            self.channel.close()

    def _read_ahead(self) -> None:
        """Read pending notices: a slab is announced before the first frame that refers to it."""
        try:
            self.read_notices()
        except EOFError as error:
            raise LinkError("the side channel has ended") from error

    def _notice(self, notice: SlabNotice) -> None:
        if not notice.size:
            # Existing views keep the mapping alive.
            self._requests.pop(notice.number, None)
            return
        try:
            if notice.number in self._requests or len(self._requests) >= SLABS_MAX:
                raise LinkError(f"slab {notice.number} is one too many")
            self._requests[notice.number] = map_for_reading(notice.descriptor, notice.size)
        finally:
            os.close(notice.descriptor)


class AnswerSlab:
    """Slab for one link's answers, created for the first large one. `later(seconds, action)` is a
    timer."""

    def __init__(self, channel: SideChannel, later: Later, size: int = ANSWER_SLAB_MAX) -> None:
        self._channel = channel
        self._later = later
        self._size = size
        self._parts = Allocator(0)
        self._memory: mmap.mmap | None = None
        self._is_usable = True
        self._will_trim = False
        self._count = 0

    def put(self, body: bytes | bytearray | memoryview) -> SlabRange | None:
        """Copy `body` into the slab; return its range, or None if it does not fit."""
        memory = self._memory or self._make()
        if memory is None:
            return None
        offset = self._parts.take(len(body))
        if offset is None:
            return None
        memory[offset : offset + len(body)] = body
        self._count += 1
        return SlabRange(ANSWER_SLAB, offset, len(body))

    def free(self, place: SlabRange) -> None:
        """Free a range that the gateway has read. Raises LinkError unless it is in use."""
        try:
            self._parts.free(place.offset, place.length)
        except KeyError:
            raise LinkError(f"nothing to free at {place.offset}") from None
        self._trim_later()

    def close(self) -> None:
        """Release the memory; `put` then always returns None."""
        self._is_usable = False
        self._memory = None

    def _make(self) -> mmap.mmap | None:
        if not self._is_usable:
            return None
        self._is_usable = False  # do not retry a failure for every answer
        try:
            descriptor, memory = make_slab(self._size, read_only=False)
        except OSError:
            return None
        if self._channel.announce(ANSWER_SLAB, self._size, descriptor):
            self._is_usable = True
            self._memory, self._parts = memory, Allocator(self._size)
        os.close(descriptor)  # the mapping keeps the memory alive
        return self._memory

    def _trim_later(self) -> None:
        """Schedule the release of memory after REST_S seconds without an answer."""
        if self._parts.is_empty and self._parts.touched > KEPT_BYTES and not self._will_trim:
            self._will_trim = True
            count = self._count
            self._later(REST_S, lambda: self._trim(count))

    def _trim(self, count: int) -> None:
        self._will_trim = False
        if self._memory is None:
            return
        if self._count != count:
            self._trim_later()
            return
        self._memory.madvise(mmap.MADV_REMOVE, KEPT_BYTES, self._size - KEPT_BYTES)
        self._parts.given_back(KEPT_BYTES)
