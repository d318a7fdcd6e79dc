"""One link's bodies in shared memory: requests in its gateway's slabs, answers in one of ours."""

from __future__ import annotations

import mmap
import os
from typing import Final

from runtime_image.contract.link import SLAB_BODY_MIN
from runtime_image.link.frames import LinkError
from runtime_image.link.side_channel import Notice, SideChannel
from runtime_image.link.slab import map_for_reading, unpack_place
from runtime_image.replica.slabs.answers import AnswerSlab, Later

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
        place = unpack_place(packed)
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
        self._answers.free(unpack_place(packed))

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

    def _notice(self, notice: Notice) -> None:
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
