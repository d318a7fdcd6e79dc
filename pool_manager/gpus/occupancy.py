"""What replicas take on the GPUs they are on, and the proof that they have given it back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pool_manager.core.events import Loaded
from pool_manager.driver import Driver
from pool_manager.gpus.absent import NoGpus
from pool_manager.ports import Account, Gpus
from registry.errors import DriverError


def _nothing(_device: str, _id: str) -> Account:
    return Account(0.0, 0, 0.0)


class Tenancy:
    """Knows each replica's GPU and processes as long as something of it may be there.

    `account(device, id)` is the ledger's. Replicas on other devices pass through unchanged.
    """

    def __init__(
        self,
        driver: Driver,
        gpus: Gpus | None = None,
        account: Callable[[str, str], Account] = _nothing,
    ) -> None:
        self._driver = driver
        self._gpus = gpus or NoGpus()
        self._account = account
        self._devices: dict[str, str] = {}
        self._before_mib: dict[str, float | None] = {}
        self._pids: dict[str, frozenset[int]] = {}

    def concerns(self, id: str) -> bool:
        """Whether a replica is on a GPU that is watched here."""
        return id in self._devices

    def move_in(self, id: str, device: str) -> None:
        """A replica is about to be launched on a device, or to be given its model there: what a
        standby has by then is its own, too."""
        if self._gpus.view(device) is not None:
            self._devices[id] = device
            used = [self._gpus.used_mib(device), self._before_mib.get(id)]
            self._before_mib[id] = min((mib for mib in used if mib is not None), default=None)

    def stay(self, id: str, device: str) -> None:
        """A replica of an earlier manager is on a device."""
        if self._gpus.view(device) is not None:
            self._devices[id] = device

    async def measure(self, event: Loaded, feed: Callable[[Loaded], None]) -> None:
        """Feed the event of a replica on a GPU with what it has of that instead of host memory,
        which is not accounted for it; with what it is charged where that cannot be told."""
        device = self._devices[event.id]
        account = self._account(device, event.id)
        taken_mib = await self._gpus.taken_mib(
            device,
            await self._know(event.id),
            self._before_mib.get(event.id),
            is_alone=not account.others,
        )
        memory_mib = account.own_mib if taken_mib is None else taken_mib
        report = event.report
        if report:
            report = {**report, "memory_mib": memory_mib}
        feed(replace(event, memory_mib=memory_mib, report=report))

    async def release(self, id: str) -> None:
        """End a replica, and return once its GPU shows it. Raises DriverError.

        Its processes are asked for before: afterwards nobody could tell them from others, not
        even when the release is tried again.
        """
        device = self._devices.get(id)
        pids = await self._know(id) if device else None
        await self._driver.release(id)
        if device:
            await self._gpus.prove_free(device, pids, lambda: self._account(device, id).others_mib)
        for known in (self._devices, self._before_mib, self._pids):
            known.pop(id, None)

    async def _know(self, id: str) -> frozenset[int] | None:
        """All processes a replica is known to have had; None where none could be told."""
        try:
            found = await self._driver.pids(id)
        except DriverError:
            found = None
        if found is not None:
            self._pids[id] = self._pids.get(id, frozenset()) | found
        return self._pids.get(id)
