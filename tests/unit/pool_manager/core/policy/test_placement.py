"""Where a replica is put."""

from __future__ import annotations

from pool_manager.core.placement import Evict, Place, Wait, place

from pool_manager.core.state import Device, Replica, State

CPU = [Device("cpu0", "cpu"), Device("cpu1", "cpu")]
GPU = Device("GPU-1", "cuda", 80_000)


def ready(id: str, device: str, last_used_s: float = 0.0) -> Replica:
    return Replica(id, "default/b@1", device, "serve", 0.0, State.READY, last_used_s=last_used_s)


def test_a_free_device_is_taken() -> None:
    """The first free device is used even where an idle replica could go."""
    idle = [ready("r1", "cpu0")]

    assert Place("cpu1") == place("cpu", CPU, frozenset({"cpu0"}), idle)


def test_only_devices_of_the_kind_fit() -> None:
    """A kind is met exactly, and "any" by every device."""
    assert Place("GPU-1") == place("cuda", [*CPU, GPU], frozenset(), [])
    assert Place("cpu0") == place("any", [*CPU, GPU], frozenset(), [])
    assert Wait("no device of kind cuda") == place("cuda", CPU, frozenset(), [])


def test_the_longest_idle_replica_goes() -> None:
    """Of the idle replicas the one used longest ago makes room; ties go to the smaller id."""
    taken = frozenset({"cpu0", "cpu1"})

    later_first = [ready("r1", "cpu0", 20.0), ready("r2", "cpu1", 10.0)]
    same_time = [ready("r2", "cpu1"), ready("r1", "cpu0")]

    assert Evict("r2") == place("cpu", CPU, taken, later_first)
    assert Evict("r1") == place("cpu", CPU, taken, same_time)


def test_a_replica_on_another_kind_of_device_is_left_alone() -> None:
    """Nobody goes whose device would be of no use."""
    idle = [ready("r1", "GPU-1")]

    assert Wait("all 2 devices are in use") == place("cpu", CPU, frozenset({"cpu0", "cpu1"}), idle)
