"""What a trial's park has to free."""

from __future__ import annotations

import pytest

from pool_manager.core.park.residue import (
    STEADY_MIB,
    STEADY_READINGS,
    Held,
    is_steady,
    why_not_freed,
    why_unreadable,
)

A, B = "GPU-a", "GPU-b"


@pytest.mark.parametrize(
    ("held", "why"),
    [
        ({A: 0.0, B: 1.0}, ""),
        ({}, "it is on no GPU whose memory can be read"),
        ({A: 0.0, B: None}, "the driver does not report what its processes hold on GPU-b"),
    ],
)
def test_each_gpu_has_to_be_readable(held: Held, why: str) -> None:
    """What the driver does not tell proves nothing."""
    assert why_unreadable(held) == why


@pytest.mark.parametrize(
    ("readings", "steady"),
    [
        ([8000.0] * (STEADY_READINGS - 1), False),
        ([8000.0] * STEADY_READINGS, True),
        ([8000.0] + [500.0] * STEADY_READINGS, True),
        ([500.0 + STEADY_MIB] + [500.0] * (STEADY_READINGS - 1), True),
        ([None] + [0.0] * (STEADY_READINGS - 1), False),
        ([0.0] * (STEADY_READINGS - 1) + [None], False),
        ([501.0 + STEADY_MIB] + [500.0] * (STEADY_READINGS - 1), False),
    ],
)
def test_memory_that_still_changes_is_read_again(
    readings: list[float | None], steady: bool
) -> None:
    """The last GPU counts as well: it is the one that changes."""
    assert is_steady([{A: 500.0, B: mib} for mib in readings]) is steady


@pytest.mark.parametrize(
    ("kept_mib", "why"),
    [
        (3999.0, ""),
        (
            4000.0,
            "its processes hold 4,000 MiB of GPU-b asleep and 8,000 awake, expected less than half",
        ),
        (
            8000.0,
            "its processes hold 8,000 MiB of GPU-b asleep and 8,000 awake, expected less than half",
        ),
    ],
)
def test_less_than_half_may_be_kept(kept_mib: float, why: str) -> None:
    """Of each GPU."""
    assert why_not_freed({A: 8000.0, B: 8000.0}, {A: 500.0, B: kept_mib}) == why


def test_an_engine_without_memory_frees_none() -> None:
    """It does not use the GPU, or the driver lists other processes: nothing is proven."""
    assert why_not_freed({A: 0.0}, {A: 0.0}).endswith("expected less than half")
