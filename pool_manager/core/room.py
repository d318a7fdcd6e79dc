"""Makes room: who has to go for whom, at least cost and in fair turns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pool_manager.core.commands import Command, Note
from pool_manager.core.host import Host
from pool_manager.core.policy.ledger import Need
from pool_manager.core.policy.placement import Clearing, clear, find, why_not
from pool_manager.core.policy.value import cost
from pool_manager.core.pool import Claim, Pool
from pool_manager.core.replicas import ReplicaEvents
from pool_manager.core.state import Replica, State

SWAP_AFTER_S = 5.0
"""A waiter that nobody serves for so long may have a busy replica drained."""
TRIAL_SWAP_AFTER_S = 30.0
"""A deploy is in less of a hurry than a caller."""
RESIDENCY_S = 10.0
"""A replica that has just become ready may serve so long before it gives way."""
REFUSAL_S = 1.0
"""A replica that was asked to go and was busy is not asked again for so long."""
JUST_USED_S = 0.001
"""An evicted replica refuses if it was used since: its gateways know more than the ledger."""
SURPLUS_DISCOUNT = 1e-3
"""Taking one of several replicas slows a pool; taking the only one stops it."""


class Room:
    """Finds a device for a pool, or begins to clear one.

    Who may go is worked out once per event (`forget_costs`), since many pools may ask.
    """

    def __init__(self, host: Host, replicas: ReplicaEvents) -> None:
        self._host = host
        self._replicas = replicas
        self._idle: dict[str, float] | None = None
        self._busy: dict[str, float] | None = None

    def forget_costs(self) -> None:
        """Time went by or something happened: look again at who may go."""
        self._idle = self._busy = None

    def find(self, pool: Pool, now: float, commands: list[Command]) -> str | None:
        """A device to start a replica of `pool` on now. None: `pool.blocked` says why."""
        if pool.claim is not None and self._is_clearing(pool):
            return None
        need = self._host.need(pool)
        self._let_go(pool)
        crowd = self._crowd(pool)
        if crowd:
            self._make_room(pool, need, crowd, now, commands)
            return None
        device = find(need, self._host.ledger)
        if device is None:
            self._make_room(pool, need, None, now, commands)
        return device

    def drop_claim(self, pool: Pool) -> None:
        """The pool wants nothing any more: what was cleared for it is anybody's."""
        self._let_go(pool)
        self.unblock(pool)

    def unblock(self, pool: Pool) -> None:
        """Nothing keeps the pool from starting."""
        pool.blocked = ""
        self._host.blocked.discard(pool.key)

    def block(self, pool: Pool, reason: str, commands: list[Command]) -> None:
        """The pool waits for room, or for something else, for this reason."""
        if pool.blocked != reason:
            commands.append(Note(pool.key, f"waits: {reason}"))
        pool.blocked = reason
        self._host.blocked.add(pool.key)

    def _is_clearing(self, pool: Pool) -> bool:
        """Whether victims are still on their way out. One that refused clears nothing."""
        assert pool.claim is not None
        leaving = [self._host.find(id) for id in pool.claim.victims]
        return any(one is not None and one.state is not State.READY for one in leaving)

    def _let_go(self, pool: Pool) -> None:
        if pool.claim is not None:
            self._host.ledger.claims.pop(pool.claim.device, None)
            pool.claim = None

    def _crowd(self, pool: Pool) -> list[Replica]:
        """Replicas of sibling revisions, where the function has as many as it may."""
        if pool.spec.role != "serve" or (pool.warming and pool.warming.beside):
            return []
        others = [r for other in self._host.siblings(pool) for r in other.replicas.values()]
        others = [r for r in others if r.role == "serve"]
        is_full = len(others) + pool.count() >= pool.spec.max
        return others if is_full else []

    def _make_room(
        self,
        pool: Pool,
        need: Need,
        crowd: list[Replica] | None,
        now: float,
        commands: list[Command],
    ) -> None:
        """Ask idle replicas to go; after a while have busy ones drained. `crowd`: only of these,
        and each of them leaves room."""
        clearing = self._clearing(need, crowd, self._idle_costs(pool, now))
        if clearing is not None:
            self._begin(pool, clearing, JUST_USED_S, now, commands)
            return
        if self._may_swap(pool, now):
            clearing = self._clearing(need, crowd, self._busy_costs(now))
        if clearing is not None:
            self._begin(pool, clearing, None, now, commands)
            return
        reason = why_not(need, self._host.ledger)
        if crowd:
            reason = f"max is {pool.spec.max}, older revisions have as many replicas"
        self.block(pool, reason, commands)

    def _clearing(
        self, need: Need, crowd: list[Replica] | None, costs: Mapping[str, float]
    ) -> Clearing | None:
        if crowd is None:
            return clear(need, self._host.ledger, costs)
        there = [one for one in crowd if one.id in costs]
        if not there:
            return None
        victim = min(there, key=lambda one: (costs[one.id], one.id))
        return Clearing(victim.device, (victim.id,))

    def _begin(
        self,
        pool: Pool,
        clearing: Clearing,
        if_idle_s: float | None,
        now: float,
        commands: list[Command],
    ) -> None:
        """Reserve the device and ask its victims to go."""
        pool.claim = Claim(clearing.device, clearing.victims, now)
        self._host.ledger.claims[clearing.device] = pool.key
        names = []
        for id in clearing.victims:
            victim = self._host.find(id)
            assert victim is not None
            names.append(victim.pool)
            how = "evicted" if if_idle_s is not None else "gives way: drained"
            why = f"{how} for {pool.key}"
            commands.append(Note(victim.pool, f"{id} makes room for {pool.key}"))
            self._replicas.drain(victim, if_idle_s, why, now, commands)
            for costs in (self._idle, self._busy):
                if costs is not None:
                    costs.pop(id, None)
        who = " and ".join(sorted(set(names)))
        self.block(pool, f"waits for {who} to make room on {clearing.device}", commands)

    def _may_swap(self, pool: Pool, now: float) -> bool:
        """Only a pool that nobody serves may stop another one, and only after a wait."""
        if pool.count() or pool.unserved_since_s is None:
            return False
        patience = TRIAL_SWAP_AFTER_S if pool.spec.role == "trial" else SWAP_AFTER_S
        return now - pool.unserved_since_s >= patience

    def _idle_costs(self, pool: Pool, now: float) -> Mapping[str, float]:
        """What it would cost to let each idle replica go. A standby costs nothing."""
        if self._idle is None:
            self._idle = {one.id: 0.0 for one in self._host.standbys()}
            for other in self._pools():
                self._idle |= self._idle_of(other, now)
        if pool.warming and pool.warming.beside:
            kept = {id for other in self._host.siblings(pool) for id in other.replicas}
            return {id: value for id, value in self._idle.items() if id not in kept}
        return self._idle

    def _idle_of(self, pool: Pool, now: float) -> dict[str, float]:
        if self._has_load(pool):
            return {}
        value = cost(pool.uses, pool.reload_s or pool.spec.load_s, now)
        ready = [
            one
            for one in pool.replicas.values()
            if one.state is State.READY and now - one.refused_s >= REFUSAL_S
        ]
        return dict.fromkeys((one.id for one in ready[: self._spare(pool)]), value)

    def _busy_costs(self, now: float) -> Mapping[str, float]:
        """Idle or not, whoever has served longest past its residency goes first."""
        if self._busy is None:
            self._busy = {one.id: 0.0 for one in self._host.standbys()}
            for other in self._pools():
                self._busy |= self._busy_of(other, now)
        return self._busy

    def _busy_of(self, pool: Pool, now: float) -> dict[str, float]:
        spare = self._spare(pool)
        resident = [
            one
            for one in pool.replicas.values()
            if one.state is State.READY and now - one.since_s >= RESIDENCY_S
        ]
        resident.sort(key=lambda one: one.since_s)
        discount = SURPLUS_DISCOUNT if pool.staying() > 1 else 1.0
        return {one.id: discount / (now - one.since_s) for one in resident[:spare]}

    def _pools(self) -> Iterable[Pool]:
        """Pools whose replicas may be asked to go."""
        for key in self._host.live:
            pool = self._host.pools[key]
            if pool.spec.role == "serve" and pool.replicas:
                yield pool

    def _has_load(self, pool: Pool) -> bool:
        load = self._host.demand.load(pool.key)
        return load.queued + load.in_flight > 0

    @staticmethod
    def _spare(pool: Pool) -> int:
        """How many replicas it may lose before its floor is reached."""
        return max(0, pool.staying() - pool.spec.min)
