"""Tests of whether a measurement had the CPUs to itself."""

from __future__ import annotations

import pytest

from runtime_image.verification.contention import CpuReading, contention, idle_s, read

BEGAN = CpuReading(0.0, 0.0, 0.0, 0.0, 2)


@pytest.mark.parametrize(
    ("own_s", "waited_s", "idle_total_s", "threads", "expected"),
    [
        (0.2, 0.0, 0.2, 1, "none"),
        (0.2, 0.0, 0.0, 1, "none"),  # another CPU is busy, which one thread does not need
        (0.2, 0.0, 0.0, 2, "busy"),
        (0.01, 0.0, 0.0, 1, "busy"),  # one time slice: no wait, but no CPU is idle beside it
        (0.2, 0.05, 0.2, 1, "busy"),
        (0.2, 0.0005, 0.2, 1, "none"),
        (0.2, None, 0.2, 1, "none"),
        (0.2, None, None, 1, "unknown"),
        (0.2, 0.05, None, 1, "busy"),
        (0.0, 0.0, 0.4, 64, "none"),  # more threads than CPUs wait for each other
    ],
)
def test_contention(
    own_s: float,
    waited_s: float | None,
    idle_total_s: float | None,
    threads: int,
    expected: str,
) -> None:
    """Either sign shows contention; without both it is unknown."""
    began = BEGAN if idle_total_s is not None else CpuReading(0.0, 0.0, 0.0, None, 2)
    ended = CpuReading(0.2, own_s, waited_s, idle_total_s, 2)
    assert contention(began, ended, ended, threads) == expected


def test_only_the_processs_cpus_count() -> None:
    """CPUs outside the affinity are left out; a missing or damaged line is unknown."""
    lines = ["cpu  9 9 9 99 9", "cpu0 1 1 1 10 5", "cpu1 1 1 1 70 0", "intr 1"]
    assert idle_s(lines, [0], 0.01) == pytest.approx(0.15)
    assert idle_s(lines, [0, 1], 0.01) == pytest.approx(0.85)
    assert idle_s(lines, [2], 0.01) is None
    assert idle_s(["cpu0 1 1"], [0], 0.01) is None
    assert idle_s(["cpu0 1 1 1 x 1"], [0], 0.01) is None


def test_this_machine_is_read() -> None:
    """A reading has a clock and at least one CPU."""
    found = read()
    assert found.cpus >= 1
    assert found.wall_s > 0
