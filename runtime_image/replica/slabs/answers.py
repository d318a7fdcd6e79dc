"""A replica's own slab, in which one link's large answers lie until their gateway has read them."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from typing import Final

from runtime_image.contract.link import ANSWER_SLAB_MAX
from runtime_image.link.allocator import Allocator
from runtime_image.link.frames import LinkError
from runtime_image.link.side_channel import SideChannel
from runtime_image.link.slab import Place, make_slab

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

    def put(self, body: bytes | bytearray | memoryview) -> Place | None:
        """Where `body` lies now; None where there is no room, and it goes in a frame."""
        memory = self._memory or self._make()
        if memory is None:
            return None
        offset = self._parts.take(len(body))
        if offset is None:
            return None
        memory[offset : offset + len(body)] = body
        self._count += 1
        return Place(NUMBER, offset, len(body))

    def free(self, place: Place) -> None:
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
