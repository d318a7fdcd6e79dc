"""One data link's bodies in shared memory: which slots its replica may read, and its answers.

Everything that comes from a replica is checked; what it says lies somewhere is copied by system
call, for a mapping of its memory could end this process.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Callable
from typing import Final

import structlog

from gateway.shared_memory import BodySlot, SlabPool
from runtime_image.contract.link import ANSWER_SLAB_MAX, Flag
from runtime_image.link.frames import LinkError
from runtime_image.link.shared_memory import Notice, Place, SideChannel, check_size, unpack_place

log = structlog.get_logger()

ANSWER_SLABS_MAX: Final = 2
"""Slabs of a replica that may be announced at once on one link."""
NOTICES_MAX: Final = 64
"""Notices that a link's replica may send in all: an honest one sends one."""

HELLO_MAX: Final = 4096
"""Bytes of what a replica says when it greets."""
LOST_MAX: Final = 4
"""Lost links of one replica whose side channels have not ended. Beyond, it is trusted with no more:
each costs a descriptor, and the slots of what was in flight."""

Body = bytes | bytearray | memoryview


class SharedLink:
    """Made before the link; `ended(reason)` hears once that the replica's end of the side channel
    is gone or breaks the rules.

    A slot whose body the replica reads where it lies is held until the replica lets go of the
    request. When the link is lost, that is when the side channel ends: the process is gone, or has
    nothing of this link any more. One whose body went in a frame is held no longer than the link.
    """

    def __init__(
        self, replica: str, pool: str, slabs: SlabPool, ended: Callable[[str], None]
    ) -> None:
        """Raises OSError where there are no descriptors left."""
        self.replica = replica
        self.is_lost = False
        self._pool = pool
        self._slabs = slabs
        self._on_ended = ended
        self._loop = asyncio.get_running_loop()
        own, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel = SideChannel(own)
        self._is_agreed = False
        self._is_open = True
        self._announced: set[int] = set()
        self._shared: dict[int, BodySlot] = {}  # by request id: read by the replica where they lie
        self._framed: dict[int, BodySlot] = {}  # by request id: sent in frames
        self._answers: dict[int, int] = {}  # descriptors by number
        self._notices = 0

    @property
    def descriptors(self) -> list[int]:
        """The replica's end, to be sent beside HELLO; none where it is trusted no more."""
        is_trusted = self._slabs.lost_link_count(self.replica) < LOST_MAX
        return [self._theirs.fileno()] if is_trusted else []

    def hello_sent(self) -> None:
        """The replica's end is on its way: only there is it open from now on."""
        self._theirs.close()

    def on_hello(self, said: bytes | bytearray) -> None:
        """The replica's HELLO came: JSON that says whether it took its end. Raises LinkError."""
        if not _takes_slabs(said):
            self.close()
            return
        self._is_agreed = True
        self._slabs.links.add(self)
        self._loop.add_reader(self._channel.sock, self._on_readable)

    def send(self, id: int, slot: BodySlot | None, body: Body) -> tuple[Body, int]:
        """Body and flags of REQUEST `id`."""
        if slot is None:
            return body, 0
        slot.acquire()
        if not self._can_read(slot):
            # Held all the same: the transport may not have taken all of it yet.
            self._framed[id] = slot
            return body, 0
        self._shared[id] = slot
        place = Place(slot.slab.number, slot.offset, len(slot.view))
        return place.pack(), Flag.SLAB

    def release(self, id: int) -> None:
        """The replica has let go of a request."""
        slot = self._shared.pop(id, None) or self._framed.pop(id, None)
        if slot is not None:
            slot.release()

    def read_answer(self, packed: bytes | bytearray) -> bytes:
        """A copy of the answer that a RESPONSE with the flag SLAB is about. Raises LinkError."""
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
        """The link is gone; what the replica may still read is kept until the side channel ends."""
        self.is_lost = True
        self._drop(self._framed)
        self._close_answers()
        if not self._shared:
            self.close()

    def on_retired(self, number: int) -> None:
        """`Slabs`: a slab is used no more."""
        if number in self._announced:
            self._announced.discard(number)
            self._channel.retire(number)

    def close(self) -> None:
        """End the side channel; nobody reads any more."""
        if not self._is_open:
            return
        self._is_open = False
        if self._is_agreed:
            self._loop.remove_reader(self._channel.sock)
        self._slabs.links.discard(self)
        self._theirs.close()
        self._channel.close()
        self._close_answers()
        self._drop(self._framed)
        self._drop(self._shared)

    def _can_read(self, slot: BodySlot) -> bool:
        """Whether the replica has, or has just been given, this slot's slab. One that follows its
        function's traffic is not shown the other callers of the revision before it."""
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
        """Take what the replica says of its slabs. Raises LinkError; its end ends this one."""
        try:
            while self._is_open and (notice := self._channel.receive()) is not None:
                self._notices += 1
                self._on_notice(notice)
        except EOFError:
            self._end("the side channel has ended")

    def _on_notice(self, notice: Notice) -> None:
        if not notice.size:
            self._forget_answers(notice.number)
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

    def _forget_answers(self, number: int) -> None:
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
    def _drop(slots: dict[int, BodySlot]) -> None:
        held = list(slots.values())
        slots.clear()
        for slot in held:
            slot.release()


def _takes_slabs(said: bytes | bytearray) -> bool:
    """What a replica's HELLO says of its end of the side channel; one may say nothing."""
    if not said:
        return False
    try:
        if len(said) > HELLO_MAX:
            raise ValueError(f"{len(said)} bytes")
        fields = json.loads(said)
    except (ValueError, RecursionError) as error:
        raise LinkError(f"malformed HELLO: {error}") from error
    return isinstance(fields, dict) and fields.get("slabs") is True
