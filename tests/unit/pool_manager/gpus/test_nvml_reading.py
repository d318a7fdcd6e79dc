"""Snapshots of GPUs."""

from __future__ import annotations

from pool_manager.gpus.nvml import Reading, Snapshot


def test_a_device_is_found_by_its_uuid() -> None:
    """A slice is found like a GPU; what does not answer is not."""
    slice_ = Reading("MIG-1", "0:0", parent="GPU-a")
    seen = Snapshot("580", (slice_, Reading("GPU-b", "1")), {"GPU-c": "GPU is lost"})

    assert seen.find("MIG-1") is slice_
    assert seen.find("GPU-a") is None
    assert seen.find("GPU-c") is None
