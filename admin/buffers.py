"""How the C library keeps the memory of large buffers."""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
"""Of glibc's malloc.h."""
MMAP_THRESHOLD = 32 * 2**20
TRIM_THRESHOLD = 128 * 2**20
"""Bytes. Buffers up to the first come from the heap, and the heap is given back to the system only
where more than the second lies free at its end."""


def keep_large_buffers() -> bool:
    """Have freed buffers of bodies stay with the process; whether its C library can (glibc's can).

    Without, each body's memory is asked of the system anew, which fills page after page with zeros:
    half of what a body of some MB costs.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return all(
        [mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD), mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD)]
    )
