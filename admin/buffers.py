"""Settings of the C library's allocator for large buffers."""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8
"""Parameter numbers of `mallopt` in glibc's malloc.h."""
MMAP_THRESHOLD = 32 * 2**20
TRIM_THRESHOLD = 128 * 2**20
"""Bytes. Buffers up to MMAP_THRESHOLD come from the heap. The heap shrinks only if more than
TRIM_THRESHOLD is free at its end."""
ARENAS_MAX = 2
"""Heaps of the process. gRPC frees what clients sent in any of its threads: with a heap for each,
every one of them would keep that much."""


def keep_large_buffers() -> bool:
    """Make the process keep freed body buffers; return whether the C library supports it (glibc).

    Otherwise each body's memory is requested from the kernel anew, which zeroes every page: half of
    the cost of a body of some MB.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    wanted = (
        (M_MMAP_THRESHOLD, MMAP_THRESHOLD),
        (M_TRIM_THRESHOLD, TRIM_THRESHOLD),
        (M_ARENA_MAX, ARENAS_MAX),
    )
    taken = [mallopt(*one) for one in wanted]
    return all(taken)
