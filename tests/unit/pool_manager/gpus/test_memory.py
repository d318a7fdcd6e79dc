"""What a replica has of its GPU."""

from __future__ import annotations

from pool_manager.gpus.memory import taken_mib
from pool_manager.gpus.nvml import GpuProcess, Reading


def gpu(used_mib: float | None, *processes: GpuProcess, lists: bool = True) -> Reading:
    """A GPU that uses and lists this."""
    return Reading("GPU-a", "0", used_mib=used_mib, processes=processes if lists else None)


def test_a_replica_has_what_its_processes_have() -> None:
    """All of them together, and nobody else."""
    listed = gpu(9_000.0, GpuProcess(1, 500.0), GpuProcess(2, 300.0), GpuProcess(3, 700.0))

    assert taken_mib(listed, {1, 2}, 0.0, is_alone=False) == 800.0


def test_else_it_has_what_came_with_it() -> None:
    """Where its part is not told and nobody else is there."""
    for untold in (
        gpu(900.0, GpuProcess(1, None)),
        gpu(900.0, GpuProcess(1, None), GpuProcess(2, 50.0)),
        gpu(900.0, lists=False),
        gpu(900.0, GpuProcess(7, 10.0)),
    ):
        assert taken_mib(untold, {1, 2}, 100.0, is_alone=True) == 800.0
        assert taken_mib(untold, {1, 2}, 100.0, is_alone=False) is None
        assert taken_mib(untold, {1, 2}, None, is_alone=True) is None
    assert taken_mib(gpu(900.0, GpuProcess(1, 5.0)), None, 100.0, is_alone=True) == 800.0


def test_it_never_has_less_than_nothing() -> None:
    """Others may have given something back meanwhile."""
    assert taken_mib(gpu(50.0), None, 100.0, is_alone=True) == 0.0
    assert taken_mib(gpu(None), None, 100.0, is_alone=True) is None
