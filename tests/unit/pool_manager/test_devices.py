"""The devices of this host."""

from __future__ import annotations

from pathlib import Path

import pytest

from pool_manager.core.hosts import HostMemory
from pool_manager.core.state import Device
from pool_manager.devices import bank_mib, cpu_slots, host_memory_mib, read_host_memory

MEMINFO = "MemTotal:       16384000 kB\nMemFree:        1024000 kB\n"


def test_slots_draw_on_one_memory() -> None:
    """Each CPU slot is a device of its own in a common bank."""
    assert cpu_slots(2, 4096.0) == [
        Device("cpu:0", "cpu", 4096.0, "cpu"),
        Device("cpu:1", "cpu", 4096.0, "cpu"),
    ]
    assert cpu_slots(0) == []


@pytest.mark.parametrize(
    ("limit", "mib"),
    [("max\n", 16000.0), ("1073741824\n", 1024.0), ("9223372036854771712\n", 16000.0)],
)
def test_the_smaller_of_machine_and_control_group_counts(
    tmp_path: Path, limit: str, mib: float
) -> None:
    """The memory is the smaller of the machine's and the control group's limit."""
    meminfo, group = tmp_path / "meminfo", tmp_path / "memory.max"
    meminfo.write_text(MEMINFO)
    group.write_text(limit)

    assert host_memory_mib(meminfo, (group, tmp_path / "missing")) == mib


def test_memory_that_cannot_be_read_is_not_accounted(tmp_path: Path) -> None:
    """Unreadable memory sizes are not accounted."""
    assert host_memory_mib(tmp_path / "missing", ()) == 0.0


def test_this_machine_has_memory() -> None:
    """The real files can be read."""
    assert host_memory_mib() > 100.0


@pytest.mark.parametrize(("mib", "left"), [(16_000.0, 14_000.0), (2_000.0, 1_488.0), (0.0, 0.0)])
def test_a_part_of_the_memory_is_left_to_others(mib: float, left: float) -> None:
    """Idle replicas are kept until their memory is full, so the system must have some besides."""
    assert bank_mib(mib) == left


def test_what_this_machine_has_available_is_read(tmp_path: Path) -> None:
    """Total and available memory, nothing from a kernel that does not say what is available."""
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 4096 kB\nMemFree: 1024 kB\nMemAvailable: 2048 kB\n")
    assert read_host_memory(meminfo) == HostMemory(4.0, 2.0)
    meminfo.write_text("MemTotal: 4096 kB\n")
    assert read_host_memory(meminfo) is None
    now = read_host_memory()
    assert now is not None
    assert now.total_mib > now.available_mib > 0.0
