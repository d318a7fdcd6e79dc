"""What can be seen of a pool manager."""

from __future__ import annotations

from collections.abc import Callable

from pool_manager.core.machine import Machine
from pool_manager.core.pool import AT_REST, Outlook, outlook
from pool_manager.core.state import Device, Replica
from pool_manager.ports import Gpus
from pool_manager.telling.journal import Decision, Journal
from pool_manager.telling.occupancy import Occupancy, occupancies
from pool_manager.telling.publisher import Publisher
from pool_manager.usage.watching import UseWatch
from registry.exchange import PoolEndpoints


class Sight:
    """The looking half of the manager: nothing here changes anything. The other half makes what is
    looked at."""

    _machine: Machine
    _publisher: Publisher
    _journal: Journal
    _gpus: Gpus
    _use: UseWatch
    _clock: Callable[[], float]

    def replicas(self) -> list[Replica]:
        """Every replica not yet stopped."""
        return self._machine.replicas()

    def devices(self) -> list[Device]:
        """Every device of this host."""
        return list(self._machine.devices.values())

    def occupancies(self) -> list[Occupancy]:
        """Every device of this host with what is on it and what is wrong with it."""
        return occupancies(self._machine, self._gpus)

    def busy(self, device: str) -> float | None:
        """Part of the last seconds in which a model ran on a device, 0 to 1; None while nobody
        can tell."""
        return self._use.busy(device)

    @property
    def gpu_silence(self) -> str:
        """Why GPUs that should be there cannot be asked, "" where all is well."""
        return self._gpus.silence

    @property
    def engine_down(self) -> str:
        """Why nothing can be started or stopped, "" while the engine answers."""
        return self._machine.host.engine_down

    def pool(self, key: str) -> tuple[PoolEndpoints, int, float] | None:
        """How a pool looks, how many replicas are wanted, and since when (Unix seconds)."""
        if key not in self._machine.pools:
            return None
        shown = self._publisher.endpoints(key)
        return shown, self._machine.pools[key].wanted, self._journal.since_s(key)

    def outlook(self, key: str) -> Outlook:
        """What is about to happen to a pool."""
        pool = self._machine.pools.get(key)
        if pool is None:
            return AT_REST
        return outlook(pool, self._machine.host.demand.load(key).busy, self._clock())

    def wakes_by_standby(self, key: str) -> bool:
        """Whether the replica that is coming for a pool was a standby, or the next one would be."""
        pool = self._machine.pools.get(key)
        return pool is not None and self._machine.host.wakes_by_standby(pool)

    def blocked(self, key: str) -> str:
        """Why a pool cannot have the replicas it wants, "" where nothing stands in the way."""
        pool = self._machine.pools.get(key)
        return pool.blocked if pool is not None else ""

    def decisions(self, key: str) -> list[Decision]:
        """What was decided for a pool, oldest first."""
        return self._journal.decisions(key)

    def watch_decisions(self, receiver: Callable[[str, Decision], None]) -> None:
        """Have every decision as it is made, with the pool it is about."""
        self._journal.on_decision = receiver
