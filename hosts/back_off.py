"""Waits between attempts that fail."""

from __future__ import annotations


def back_off_s(first_s: float, max_s: float, failures: int, chance: float) -> float:
    """Return the seconds to wait after `failures` earlier failures in a row: between half of
    `first_s` x 2^failures and all of it, at most `max_s`. `chance` is between 0 and 1."""
    return min(max_s, first_s * 2.0 ** min(failures, 32)) * (0.5 + 0.5 * chance)
