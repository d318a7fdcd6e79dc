"""The GPUs of all hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pool_manager.core.events import DeviceBack, DeviceLost
from pool_manager.core.state import Device
from pool_manager.devices import cpu_slots
from pool_manager.ports import Gpus, GpuView


class FleetGpus:
    """`Gpus` of this machine and of other hosts, whose devices are named HOST/UUID.

    `others` are the GPUs of each host that has some, by host; the owner changes the mapping.
    """

    def __init__(self, local: Gpus, others: Mapping[str, Gpus]) -> None:
        self._local = local
        self._others = others

    def _of(self, device: str) -> tuple[Gpus, str]:
        """Return the GPUs that a device belongs to, and its name there."""
        host, slash, name = device.partition("/")
        if slash and host in self._others:
            return self._others[host], name
        return self._local, device

    def devices(self) -> list[Device]:
        """Return the GPUs of this machine."""
        return self._local.devices()

    def view(self, device: str) -> GpuView | None:
        """Return a GPU as last polled, None for any other device."""
        gpus, name = self._of(device)
        return gpus.view(name)

    def visible(self, devices: Sequence[str]) -> str:
        """Return the value of CUDA_VISIBLE_DEVICES for a process of this machine on its devices."""
        return self._local.visible(devices)

    @property
    def silence(self) -> str:
        """Reason why this machine's driver does not answer, "" while it does."""
        return self._local.silence

    def start(self, emit: Callable[[DeviceLost | DeviceBack], None]) -> None:
        """Start to poll this machine's GPUs. Those of other hosts are polled once they are
        known."""
        self._local.start(emit)

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

    async def close(self) -> None:
        """Stop to poll this machine's GPUs."""
        await self._local.close()


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
