"""One slab of a pool: request bodies of its calls, which its replicas read where they lie."""

from __future__ import annotations

import os
from typing import Protocol

from runtime_image.link.allocator import Allocator
from runtime_image.link.slab import is_unread, make_slab, open_for_reading


class Owner(Protocol):
    """Who gave a slot out."""

    def filled(self, slot: Slot) -> None:
        """Its body is whole."""

    def free(self, slot: Slot) -> None:
        """Nobody refers to it any more."""


class Slot:
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

    def filled(self) -> None:
        """The body is whole: it is no upload any more."""
        if self.is_filling:
            self._owner.filled(self)
            self.is_filling = False

    def hold(self) -> None:
        """One reference more."""
        assert self._references > 0, "a slot that was given back"
        self._references += 1

    def drop(self) -> None:
        """One reference less; each is to be dropped exactly once."""
        assert self._references > 0, "a slot that was given back"
        self._references -= 1
        if not self._references:
            self.filled()
            self._owner.free(self)


class Slab:
    """Memory that this process alone writes. `number` names it on side channels.

    `rests_since_s` (monotonic): since when it was seen to be empty, 0 while it is not.
    """

    def __init__(self, number: int, pool: str, capacity: int) -> None:
        """Raises OSError where there is no memory for it."""
        self.number = number
        self.pool = pool
        self.parts = Allocator(capacity)
        self.size = self.parts.capacity
        self.rests_since_s = 0.0
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

    def is_gone(self) -> bool:
        """Whether nobody has it in memory any more; to be asked of a retired one."""
        return is_unread(self._own)

    def close(self) -> None:
        """Forget a retired one."""
        os.close(self._own)
