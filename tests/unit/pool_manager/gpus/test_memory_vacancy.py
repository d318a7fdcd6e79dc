"""When a GPU is free of a replica."""

from __future__ import annotations

import pytest

from pool_manager.gpus.memory import SLACK_MIB, still_taken
from pool_manager.gpus.nvml import GpuProcess, Reading


def gpu(used_mib: float | None, *processes: GpuProcess, lists: bool = True) -> Reading:
    """A GPU that uses and lists this."""
    return Reading("GPU-a", "0", used_mib=used_mib, processes=processes if lists else None)


def test_a_listed_process_is_still_there() -> None:
    """Whatever the memory says, and whether or not its part is told."""
    listed = gpu(0.0, GpuProcess(9, 5.0), GpuProcess(4711, 1_234.0))

    assert still_taken(listed, {4711}, 9e9, 0.0) == "GPU-a still shows 1,234 MiB of pid 4711"
    untold = gpu(0.0, GpuProcess(4711, None))
    assert still_taken(untold, {4711}, 9e9, 0.0) == "GPU-a still shows pid 4711"
    assert still_taken(untold, {1}, 9e9, 0.0) == ""


@pytest.mark.parametrize("pids", [frozenset({1}), frozenset(), None])
@pytest.mark.parametrize("lists", [True, False])
def test_memory_must_be_back(pids: frozenset[int] | None, lists: bool) -> None:
    """What others are charged and what was foreign at the start may be in use, and a little more;
    with processes that nobody knows, or that are not listed, this alone decides."""
    most = 1_000.0 + 300.0 + SLACK_MIB

    assert still_taken(gpu(most, lists=lists), pids, 1_000.0, 300.0) == ""
    assert still_taken(gpu(most + 1, lists=lists), pids, 1_000.0, 300.0) == (
        "GPU-a still has 1,557 MiB in use, expected at most 1,300 of others and 256 more"
    )


def test_what_cannot_be_seen_is_not_waited_for() -> None:
    """A driver that tells neither processes nor memory keeps no device from others."""
    assert still_taken(gpu(None, lists=False), {1}, 0.0, 0.0) == ""
