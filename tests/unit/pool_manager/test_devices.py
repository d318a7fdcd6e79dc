"""The devices of this host."""

from __future__ import annotations

from pool_manager.core.state import Device
from pool_manager.devices import cpu_slots


def test_a_slot_takes_one_replica() -> None:
    """Each slot of the CPU is a device of its own."""
    assert cpu_slots(2) == [Device("cpu:0", "cpu"), Device("cpu:1", "cpu")]
    assert cpu_slots(0) == []
