"""Settings of the C library's allocator for large buffers."""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
"""Parameter numbers of `mallopt` in glibc's malloc.h."""
MMAP_THRESHOLD = 32 * 2**20
TRIM_THRESHOLD = 128 * 2**20
"""Bytes. Buffers up to MMAP_THRESHOLD come from the heap. The heap shrinks only if more than
TRIM_THRESHOLD is free at its end."""


def keep_large_buffers() -> bool:
    """Make the process keep freed body buffers; return whether the C library supports it (glibc).

    Otherwise each body's memory is requested from the kernel anew, which zeroes every page: half of
    the cost of a body of some MB.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return all(
        [mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD), mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD)]
    )
