"""Limits of a child process that reads files which may be hostile (setrlimit(2))."""

from __future__ import annotations

import resource


def lower_limit(limit: int, most: int) -> None:
    """Lower a resource limit of this process to `most`; a lower limit is kept."""
    soft, hard = resource.getrlimit(limit)
    known = [number for number in (soft, hard, most) if number != resource.RLIM_INFINITY]
    resource.setrlimit(limit, (min(known), min(known)))
