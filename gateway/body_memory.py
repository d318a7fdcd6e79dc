"""Memory for one large body: it takes pages as bytes arrive, and gives them back with the body.

A buffer that grows is copied from time to time, so its body exists twice, and the allocator keeps
what it leaves behind.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable
from threading import Thread
from typing import Final, NamedTuple

BODY_MIN: Final = 4 * 1024 * 1024
"""Bytes. Smaller bodies are in buffers, whose memory the allocator uses again."""
FILES_MAX: Final = 64
"""Max bodies in anonymous files, which take two descriptors each."""


class BodyMemory(NamedTuple):
    """Zeroed memory, which lasts as long as `view` or any part of it.

    `descriptor`: of an anonymous file with the bytes, for another process to read, open as long as
    the memory lasts; -1 without a file.
    """

    view: memoryview
    descriptor: int = -1


class BodyMemories:
    """The memories of the large bodies of one process."""

    def __init__(self) -> None:
        self._in_files: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()

    def __len__(self) -> int:
        """Return the number of bodies in files."""
        return len(self._in_files)

    def allocate(self, size: int) -> BodyMemory | None:
        """Return memory for a body of at most `size` bytes; None if it is a small one, or there is
        no memory for it."""
        if size < BODY_MIN:
            return None
        try:
            if len(self._in_files) < FILES_MAX:
                return self._in_file(size)
            return BodyMemory(memoryview(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANON)))
        except OSError:
            return None

    def _in_file(self, size: int) -> BodyMemory:
        descriptor = os.memfd_create("fngate-body", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, size)
            mapped = mmap.mmap(descriptor, size)
        except OSError:
            os.close(descriptor)
            raise
        self._in_files.add(mapped)
        weakref.finalize(mapped, _close, descriptor).atexit = False
        return BodyMemory(memoryview(mapped), descriptor)


def _close(descriptor: int) -> None:
    """Close a file whose memory is about to be unmapped.

    In a thread, which runs after that: the system takes 8 ms to free 60 MB of a file.
    """
    try:
        Thread(target=os.close, args=(descriptor,), name="body-memory").start()
    except RuntimeError:  # no more threads, or the interpreter ends
        os.close(descriptor)


class GrowingBody:
    """A body whose length is not known yet: in a buffer, beyond BODY_MIN in memory of its own."""

    def __init__(self, room: Callable[[], memoryview | None]) -> None:
        """`room()` returns memory for the longest body; None if there is none."""
        self._room: Callable[[], memoryview | None] | None = room
        self._buffer = bytearray()
        self._view: memoryview | None = None
        self.size = 0

    def add(self, piece: bytes) -> None:
        """Add the next bytes."""
        end = self.size + len(piece)
        if end >= BODY_MIN and self._room is not None:
            self._view, self._room = self._room(), None
            if self._view is not None:
                self._view[: self.size] = self._buffer
                self._buffer = bytearray()
        if self._view is None:
            self._buffer += piece
        else:
            self._view[self.size : end] = piece
        self.size = end

    def whole(self) -> bytearray | memoryview:
        """Return all bytes. To be called once, at the end."""
        return self._buffer if self._view is None else self._view[: self.size]

    def clear(self) -> None:
        """Drop the bytes: an error that is kept for a while may reference this object."""
        self._buffer, self._view, self._room = bytearray(), None, None
