"""What is known of one host: its pools, replicas, devices, and who asks for what."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pool_manager.core.demand import DemandBook
from pool_manager.core.policy.ledger import Ledger, Need
from pool_manager.core.pool import Pool
from pool_manager.core.state import Device, PoolSpec, Replica, State

STANDBY_MIB = 80.0
"""What a standby is charged until it is measured."""
STANDBY_KEY = "standby/cpu"


class Host:
    """The records that every decision is made on, with the indexes that keep a look cheap.

    `live` are the pools that time alone may change, `blocked` those that wait for room, `changed`
    those whose replicas changed since the last publication.
    """

    def __init__(self, devices: Iterable[Device]) -> None:
        self.ledger = Ledger(devices)
        self.pools: dict[str, Pool] = {}
        self.demand = DemandBook()
        self.live: dict[str, None] = {}
        self.blocked: set[str] = set()
        self.changed: set[str] = set()
        self.engine_down = ""
        # The memory that standbys take: that of the CPU slots.
        self.standby_bank = next(
            (d.bank for d in self.ledger.devices.values() if d.kind == "cpu"), ""
        )
        self._where: dict[str, str] = {}
        self._functions: dict[str, set[str]] = {}

    def define(self, spec: PoolSpec) -> Pool:
        """The pool of a revision, made if it is new."""
        pool = self.pools.get(spec.key)
        if pool is None:
            pool = self.pools[spec.key] = Pool(spec)
        pool.spec, pool.removed, pool.quiet_until_s = spec, False, 0.0
        self._functions.setdefault(spec.function or spec.key, set()).add(spec.key)
        return pool

    def forget(self, pool: Pool) -> None:
        """A pool without replicas is gone."""
        function = pool.spec.function or pool.key
        del self.pools[pool.key]
        siblings = self._functions.get(function, set())
        siblings.discard(pool.key)
        if not siblings:
            self._functions.pop(function, None)
        self.live.pop(pool.key, None)
        self.blocked.discard(pool.key)

    def siblings(self, pool: Pool) -> Iterator[Pool]:
        """The pools of the other revisions of its function."""
        for key in sorted(self._functions.get(pool.spec.function or pool.key, ())):
            if key != pool.key:
                yield self.pools[key]

    def find(self, id: str) -> Replica | None:
        """The record of a replica that is not yet stopped."""
        pool = self.pools.get(self._where.get(id, ""))
        return pool.replicas.get(id) if pool else None

    def replicas(self) -> Iterator[Replica]:
        """Every replica that is not yet stopped."""
        for key in self.live:
            yield from self.pools[key].replicas.values()

    def add(self, replica: Replica) -> None:
        """Record a replica; from now on what it takes is taken."""
        pool = self.pools[replica.pool]
        pool.replicas[replica.id] = replica
        pool.quiet_until_s = 0.0
        self._where[replica.id] = pool.key
        self.live[pool.key] = None
        if replica.device:
            self.ledger.charge(replica.id, replica.device, pool.spec.share, pool.memory_mib)
        else:
            self.ledger.charge_bank(replica.id, self.standby_bank, STANDBY_MIB)

    def assign(self, replica: Replica, pool: Pool, device: str) -> None:
        """A standby becomes a replica of `pool`."""
        self.changed |= {replica.pool, pool.key}
        del self.pools[replica.pool].replicas[replica.id]
        replica.pool, replica.device, replica.role = pool.key, device, pool.spec.role
        self.add(replica)

    def drop(self, replica: Replica) -> None:
        """A replica is STOPPED: what it took is free."""
        del self.pools[replica.pool].replicas[replica.id]
        del self._where[replica.id]
        self.ledger.release(replica.id)

    def standbys(self) -> list[Replica]:
        """Those that wait for a model, or will."""
        pool = self.pools.get(STANDBY_KEY)
        return [one for one in pool.replicas.values() if one.is_coming] if pool else []

    def next_standby(self) -> Replica | None:
        """The one to be used next: one that waits rather than one that is still starting."""
        return min(self.standbys(), key=lambda one: one.state is State.STARTING, default=None)

    def need(self, pool: Pool) -> Need:
        """What one more replica of a pool takes."""
        spec = pool.spec
        return Need(pool.key, spec.device_kind, spec.share, pool.memory_mib)
