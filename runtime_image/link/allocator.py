"""Allocator for ranges of a slab. Pure: offsets and lengths, no memory.

First fit: `take` returns the lowest gap that is large enough. Pages at the low end are in memory
already, and untouched pages of a large slab use none.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final

BLOCK: Final = 64 * 1024
"""Bytes. Every range starts at a multiple of this and its size is a multiple of it."""


class Allocator:
    """Ranges within `capacity` bytes, rounded down to whole blocks. All numbers are bytes.

    `touched` is the end of the highest range ever taken: pages above it are not in memory.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity // BLOCK * BLOCK
        self.touched = 0
        self._gaps = [(0, self.capacity)] if self.capacity else []  # (offset, size), by offset
        self._taken: dict[int, tuple[int, int]] = {}  # offset -> (bytes of whole blocks, length)

    @property
    def is_empty(self) -> bool:
        """Whether no range is taken."""
        return not self._taken

    def fit(self, length: int) -> int | None:
        """Return the offset that `take` would return, None if no gap is large enough."""
        size = _size(length)
        return next((offset for offset, gap in self._gaps if gap >= size), None)

    def take(self, length: int) -> int | None:
        """Take the lowest range that holds `length` bytes; return its offset, or None."""
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
        """Free a range. Raises KeyError unless exactly this range is taken."""
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
        """Lower `touched` after the pages above it were removed from memory."""
        self.touched = min(self.touched, touched)


def _size(length: int) -> int:
    """Return `length` rounded up to whole blocks, at least one."""
    return max(1, -(-length // BLOCK)) * BLOCK
