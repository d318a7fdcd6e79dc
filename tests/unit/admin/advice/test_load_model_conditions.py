"""What a virtual world is like."""

from __future__ import annotations

from admin.advice.load_model import Conditions


def test_the_last_caller_comes_at_the_horizon() -> None:
    """Hours are seconds there."""
    assert Conditions(hours=0.5).horizon_s == 1800.0
