"""Tests of devices on the page."""

from __future__ import annotations

from admin.metrics import MIB, DeviceFamilies
from pool_manager.core.state import Device
from pool_manager.ports import GpuView
from pool_manager.reports import Occupancy

GPU = Occupancy(
    Device("GPU-a", "cuda", 23_000.0),
    "quarantined",
    "r1: still there",
    ("r1",),
    700.0,
    GpuView("NVIDIA A", "0", "9.0", "580", 24_000.0, 900.0, 100.0, 0.25),
    650.0,
)
SLOT = Occupancy(Device("cpu:0", "cpu", 8_000.0, "cpu"), "free", "", (), 0.0, None)
BARE = Occupancy(
    Device("GPU-b", "cuda"),
    "free",
    "",
    (),
    0.0,
    GpuView(None, "1", None, None, None, None, 0.0),
)


def samples(*devices: Occupancy) -> dict[tuple[str, str], float]:
    """Every sample by its name and device."""
    families = DeviceFamilies(lambda: list(devices), lambda: {"GPU-a": 2.0, "gone": 1.0})
    families.snapshot()
    return {
        (sample.name, sample.labels["device"]): sample.value
        for family in families.collect()
        for sample in family.samples
    }


def test_memory_is_in_bytes() -> None:
    """Of a GPU as its driver sees it."""
    found = samples(GPU, SLOT)

    assert found["fngate_device_memory_bytes", "GPU-a"] == 24_000 * MIB
    assert found["fngate_device_memory_used_bytes", "GPU-a"] == 900 * MIB
    assert found["fngate_device_memory_charged_bytes", "GPU-a"] == 700 * MIB
    assert found["fngate_device_memory_leaked_bytes", "GPU-a"] == 650 * MIB
    assert found["fngate_device_memory_reclaimed_bytes_total", "GPU-a"] == 2 * MIB
    assert found["fngate_device_utilization_ratio", "GPU-a"] == 0.25
    assert found["fngate_device_memory_bytes", "cpu:0"] == 8_000 * MIB
    assert found["fngate_device_state", "GPU-a"] == 1


def test_what_is_not_known_has_no_sample() -> None:
    """Nothing is guessed of a slot, nor of a GPU whose driver says nothing."""
    found = samples(SLOT, BARE)
    names = {name for name, _ in found}

    assert "fngate_device_memory_used_bytes" not in names
    assert "fngate_device_utilization_ratio" not in names
    assert ("fngate_device_memory_bytes", "GPU-b") not in found
    assert found["fngate_device_memory_reclaimed_bytes_total", "cpu:0"] == 0
