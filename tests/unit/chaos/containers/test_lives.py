"""What is told of restarts: who answered first, and after how long."""

from __future__ import annotations

import pytest

from tests.chaos.containers.lives import receipt, spread
from tests.support.caller import Answer


@pytest.mark.parametrize(
    ("timing", "expected"),
    [
        ('replica;desc="ab12cd34", queue;dur=0.1', ("ab12cd34", False)),
        ('cold;desc="f@1 on cpu:0", replica;desc="ab12cd34", load;dur=3', ("ab12cd34", True)),
        ("queue;dur=0.1", ("", False)),
    ],
)
def test_a_receipt_tells_replica_and_cold_start(timing: str, expected: tuple[str, bool]) -> None:
    """As `Server-Timing` says; nobody where it says nothing."""
    assert receipt(Answer(200, {"Server-Timing": timing}, b"")) == expected


def test_a_spread_is_told_in_three_figures() -> None:
    """Least, median and most, and that there is nothing."""
    assert spread([5, 1, 9, 3]) == "1, 4, 9"
    assert spread([]) == "none"
