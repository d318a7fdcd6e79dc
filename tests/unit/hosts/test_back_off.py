"""Waits between attempts that fail."""

from __future__ import annotations

from hosts.back_off import back_off_s


def test_waits_grow_to_a_limit_and_differ() -> None:
    """0.5 s doubles to 30 s; the lower half of each wait is certain, the rest is chance."""
    most = [back_off_s(0.5, 30.0, failures, 1.0) for failures in (0, 1, 2, 5, 6, 1000)]

    assert most == [0.5, 1.0, 2.0, 16.0, 30.0, 30.0]
    assert back_off_s(0.5, 30.0, 1000, 0.0) == 15.0
