"""The GPUs of all hosts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pool_manager.core.state import Device
from pool_manager.devices import cpu_slots
from pool_manager.fleet import Fleet
from pool_manager.ports import Gpus, GpuView


class FleetGpus:
    """`GpuReadings` of all hosts of a fleet. Devices of any but the first are named HOST/ID."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def _of(self, device: str) -> tuple[Gpus, str]:
        """Return the GPUs that a device belongs to, and its name there."""
        name, slash, there = device.partition("/")
        host = self._fleet.find(name) if slash else None
        return (host.gpus, there) if host is not None else (self._fleet.first.gpus, device)

    def view(self, device: str) -> GpuView | None:
        """Return a GPU as last polled, None for any other device."""
        gpus, name = self._of(device)
        return gpus.view(name)

    def used_mib(self, device: str) -> float | None:
        """Return the MiB in use on a device as last polled, None if unknown."""
        gpus, name = self._of(device)
        return gpus.used_mib(name)

    async def taken_mib(
        self, device: str, pids: frozenset[int] | None, before_mib: float | None, *, is_alone: bool
    ) -> float | None:
        """Return the MiB that a replica with these processes takes of a device, None if unknown."""
        gpus, name = self._of(device)
        return await gpus.taken_mib(name, pids, before_mib, is_alone=is_alone)

    async def held_mib(self, device: str, pids: frozenset[int]) -> float | None:
        """Return the MiB that the driver reports of these processes on a device, None if it does
        not report them."""
        gpus, name = self._of(device)
        return await gpus.held_mib(name, pids)

    async def prove_free(
        self, device: str, pids: frozenset[int] | None, others_mib: Callable[[], float]
    ) -> None:
        """Return once a device shows no memory of these processes. Raises DriverError."""
        gpus, name = self._of(device)
        await gpus.prove_free(name, pids, others_mib)


def of_host(device: Device, host: str) -> Device:
    """Return a device as one of another host: its id, its bank and the ids in its links begin with
    the host's name."""
    return replace(
        device,
        id=f"{host}/{device.id}",
        bank=f"{host}/{device.bank}",
        host=host,
        links=tuple(
            replace(one, first=f"{host}/{one.first}", second=f"{host}/{one.second}")
            for one in device.links
        ),
    )


def slots_of(host: str, count: int, memory_mib: float) -> list[Device]:
    """Return the CPU slots of another host."""
    return [of_host(slot, host) for slot in cpu_slots(count, memory_mib)]
