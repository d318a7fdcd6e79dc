"""The devices of this host."""

from __future__ import annotations

from pool_manager.core.state import Device


def cpu_slots(count: int) -> list[Device]:
    """`count` equal shares of the CPU, each for one replica."""
    return [Device(f"cpu:{index}", "cpu") for index in range(count)]
