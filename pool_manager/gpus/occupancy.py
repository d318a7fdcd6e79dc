"""Measurement of replicas' GPU memory, and the proof that it was freed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pool_manager.core.events import Loaded
from pool_manager.driver import Driver
from pool_manager.gpus.absent import NoGpus
from pool_manager.ports import Charges, Gpus
from registry.errors import DriverError


def _no_charges(_device: str, _id: str) -> Charges:
    return Charges(0.0, 0, 0.0)


class GpuOccupancy:
    """The GPU and the processes of each replica, until its release is proved.

    `charges(device, id)` returns the ledger's charges. Only replicas on GPUs are covered.
    """

    def __init__(
        self,
        driver: Driver,
        gpus: Gpus | None = None,
        charges: Callable[[str, str], Charges] = _no_charges,
    ) -> None:
        self._driver = driver
        self._gpus = gpus or NoGpus()
        self._charges = charges
        self._devices: dict[str, str] = {}
        self._before_mib: dict[str, float | None] = {}
        self._pids: dict[str, frozenset[int]] = {}

    def covers(self, id: str) -> bool:
        """Whether a replica is on a GPU."""
        return id in self._devices

    def begin(self, id: str, device: str) -> None:
        """Register a replica before its launch on a device, or before it gets its model there. The
        memory that it took as a standby counts as its own."""
        if self._gpus.view(device) is not None:
            self._devices[id] = device
            used = [self._gpus.used_mib(device), self._before_mib.get(id)]
            self._before_mib[id] = min((mib for mib in used if mib is not None), default=None)

    def adopt(self, id: str, device: str) -> None:
        """Register a replica of an earlier manager on a device."""
        if self._gpus.view(device) is not None:
            self._devices[id] = device

    def used_mib(self, id: str) -> float | None:
        """Return the MiB in use on a replica's GPU as last polled, None without one."""
        device = self._devices.get(id)
        return self._gpus.used_mib(device) if device is not None else None

    async def measure(self, event: Loaded, emit: Callable[[Loaded], None]) -> None:
        """Emit the event with the replica's GPU memory in place of its host memory, which is not
        accounted. If the GPU memory is unknown, the charged memory is used."""
        device = self._devices[event.id]
        charges = self._charges(device, event.id)
        taken_mib = await self._gpus.taken_mib(
            device,
            await self._known_pids(event.id),
            self._before_mib.get(event.id),
            is_alone=not charges.others,
        )
        memory_mib = charges.own_mib if taken_mib is None else taken_mib
        report = event.report
        if report:
            report = {**report, "memory_mib": memory_mib}
        emit(replace(event, memory_mib=memory_mib, report=report))

    async def release(self, id: str) -> None:
        """End a replica; return once its GPU shows that it is gone. Raises DriverError.

        Its processes are listed first: after its end they cannot be distinguished from others, not
        even when the release is retried.
        """
        device = self._devices.get(id)
        pids = await self._known_pids(id) if device else None
        await self._driver.release(id)
        if device:
            await self._gpus.prove_free(device, pids, lambda: self._charges(device, id).others_mib)
        for known in (self._devices, self._before_mib, self._pids):
            known.pop(id, None)

    async def _known_pids(self, id: str) -> frozenset[int] | None:
        """Return all pids with which a replica was ever listed; None if it never was."""
        try:
            found = await self._driver.pids(id)
        except DriverError:
            found = None
        if found is not None:
            self._pids[id] = self._pids.get(id, frozenset()) | found
        return self._pids.get(id)
