"""What replicas take on the GPUs they are on, and the proof that they have given it back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pool_manager.core.events import Loaded
from pool_manager.driver import Driver
from pool_manager.ports import Account, Gpus
from registry.errors import DriverError


class Tenancy:
    """Knows each replica's processes as long as they may be on a GPU.

    `account(device, id)` is the ledger's. Replicas on other devices pass through unchanged.
    """

    def __init__(self, driver: Driver, gpus: Gpus, account: Callable[[str, str], Account]) -> None:
        self._driver = driver
        self._gpus = gpus
        self._account = account
        self._pids: dict[str, frozenset[int]] = {}
        self._before_mib: dict[str, float | None] = {}

    def concerns(self, device: str) -> bool:
        """Whether a device is a GPU that is watched here."""
        return self._gpus.view(device) is not None

    def move_in(self, id: str, device: str) -> None:
        """A replica is about to be launched on a device, or to be given its model there."""
        self._before_mib[id] = self._gpus.used_mib(device)

    async def measure(self, event: Loaded, device: str) -> Loaded:
        """The same event of a replica on a GPU, with what it has of that instead of host memory,
        which is not accounted for it; with what it is charged where that cannot be told."""
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
        return replace(event, memory_mib=memory_mib, report=report)

    async def release(self, id: str, device: str) -> None:
        """End a replica, and return once its GPU shows it. Raises DriverError.

        Its processes are asked for before: afterwards nobody could tell them from others, not
        even when the release is tried again.
        """
        is_on_gpu = self.concerns(device)
        pids = await self._know(id) if is_on_gpu else None
        await self._driver.release(id)
        if is_on_gpu:
            await self._gpus.prove_free(device, pids, lambda: self._account(device, id).others_mib)
        self._pids.pop(id, None)
        self._before_mib.pop(id, None)

    async def _know(self, id: str) -> frozenset[int] | None:
        """All processes a replica is known to have had; None where none could be told."""
        try:
            found = await self._driver.pids(id)
        except DriverError:
            found = None
        if found is not None:
            self._pids[id] = self._pids.get(id, frozenset()) | found
        return self._pids.get(id)
