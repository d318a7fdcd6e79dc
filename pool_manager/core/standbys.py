"""Keeps replicas ready that have no model yet."""

from __future__ import annotations

from collections.abc import Callable

from pool_manager.core.commands import Command, Launch, Note
from pool_manager.core.host import Host
from pool_manager.core.life.replicas import ReplicaEvents
from pool_manager.core.pool import Pool
from pool_manager.core.state import Replica

REFILL_AFTER_S = 2.0
"""A spent standby is replaced when nobody wakes up, but after so long in any case."""


class Standbys:
    """Starts standbys for the cold starts to come. `new_id` gives ids that no replica has."""

    def __init__(self, host: Host, replicas: ReplicaEvents, new_id: Callable[[], str]) -> None:
        self._host = host
        self._replicas = replicas
        self._new_id = new_id
        self._missing_since_s: dict[str, float] = {}

    def settle(self, pool: Pool, now: float, commands: list[Command]) -> None:
        """Start ahead what the next cold start will use up; too many are let go."""
        device, there = self._host.standby_device(pool.key), self._host.standbys(pool.key)
        for replica in there[pool.spec.max :]:
            self._replicas.drain(replica, None, "one standby too many", now, commands)
        if len(there) >= pool.spec.max:
            self._missing_since_s.pop(pool.key, None)
            return
        has_waited = now - self._missing_since_s.setdefault(pool.key, now) >= REFILL_AFTER_S
        if now < pool.retry_at_s or self._host.engine_down or not self._has_room(pool, device):
            return
        if has_waited or not self._anybody_wakes():
            replica = Replica(self._new_id(), pool.key, device, "standby", now, is_bound=False)
            self._replicas.add(replica, now)
            commands.append(Launch(replica.id, "", device, "standby", {}))
            commands.append(Note(pool.key, f"starts {replica.id} for the next cold start"))

    def _has_room(self, pool: Pool, device: str) -> bool:
        if device in self._host.ledger.cordons:
            return False
        bank, memory_mib = self._host.standby_place(device)
        return bool(bank) and self._host.ledger.free_mib(bank, pool.key) >= memory_mib

    def _anybody_wakes(self) -> bool:
        return any(one.is_coming for one in self._host.replicas() if one.role != "standby")
