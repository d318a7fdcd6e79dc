"""Which parts of a slab are in use. Pure: offsets and lengths, no memory.

The lowest gap that is large enough is taken, so that what is used stays together at the low end:
those pages are in memory already, and the rest of a large slab costs nothing.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final

BLOCK: Final = 64 * 1024
"""Bytes. Every part begins at a multiple of it and takes whole ones."""


class Allocator:
    """Parts of `capacity` bytes, rounded down to whole blocks. All numbers are bytes.

    `touched` is the end of the highest part there ever was: what of the slab may be in memory.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity // BLOCK * BLOCK
        self.touched = 0
        self._gaps = [(0, self.capacity)] if self.capacity else []  # (offset, size), by offset
        self._taken: dict[int, tuple[int, int]] = {}  # offset -> (size in blocks, length asked for)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is taken."""
        return not self._taken

    def fit(self, length: int) -> int | None:
        """The offset that `take` would give, None where no gap is large enough."""
        size = _size(length)
        return next((offset for offset, gap in self._gaps if gap >= size), None)

    def take(self, length: int) -> int | None:
        """Take the lowest part that holds `length` bytes; its offset, or None."""
        offset = self.fit(length)
        if offset is None:
            return None
        at = bisect_left(self._gaps, (offset, 0))
        gap, size = self._gaps[at][1], _size(length)
        if gap == size:
            del self._gaps[at]
        else:
            self._gaps[at] = (offset + size, gap - size)
        self._taken[offset] = (size, length)
        self.touched = max(self.touched, offset + size)
        return offset

    def free(self, offset: int, length: int) -> None:
        """Give a part back. Raises KeyError unless it was taken just so and not given back yet."""
        size, asked = self._taken[offset]
        if asked != length:
            raise KeyError(offset)
        del self._taken[offset]
        at = bisect_left(self._gaps, (offset, 0))
        if at < len(self._gaps) and self._gaps[at][0] == offset + size:
            size += self._gaps.pop(at)[1]
        if at and sum(self._gaps[at - 1]) == offset:
            offset, before = self._gaps.pop(at - 1)
            size += before
        insort(self._gaps, (offset, size))

    def given_back(self, touched: int) -> None:
        """No more than the first `touched` bytes are in memory any more."""
        self.touched = min(self.touched, touched)


def _size(length: int) -> int:
    """In whole blocks, one at least."""
    return max(1, -(-length // BLOCK)) * BLOCK
