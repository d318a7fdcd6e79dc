"""The one decider: `handle(event, now)` changes the state and returns what is to be done.

Order of every call: 1. the event changes records, 2. overdue replicas are pressed, 3. every pool
it touched is settled: starts, idle stops, 4. what changed to the outside is published. Nothing
else changes a record, so no lock is needed and no read can be stale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pool_manager.core import events
from pool_manager.core.commands import Command, Launch, Note, Publish
from pool_manager.core.demand import DemandBook
from pool_manager.core.placement import Evict, Place, place
from pool_manager.core.pool import Pool
from pool_manager.core.replicas import ReplicaEvents
from pool_manager.core.scaling import Wanted, wanted
from pool_manager.core.state import Device, Replica, Role, State
from registry.exchange import Load, PoolEndpoints, ReplicaEndpoint

ADOPTION_S = 3.0
"""How long after a start a gateway's first demand is waited for before anything is decided."""


class Machine:
    """All pools and devices of one host. `new_id` gives ids never given before."""

    def __init__(self, devices: Iterable[Device], new_id: Callable[[], str]) -> None:
        self.devices = {device.id: device for device in devices}
        self.pools: dict[str, Pool] = {}
        self.demand = DemandBook()
        self._new_id = new_id
        self._replicas = ReplicaEvents(self.pools)
        self._list_read_s: float | None = None
        self.stopping = False
        self._shown: dict[str, PoolEndpoints] = {}

    def handle(self, event: events.Event, now: float) -> list[Command]:
        """What must be done because of `event` at `now` (monotonic seconds)."""
        commands: list[Command] = []
        touched = self._apply(event, now, commands)
        for key in sorted(touched, key=self._turn):
            pool = self.pools.get(key)
            if pool is not None:
                self._settle(pool, now, commands)
        self._publish(touched, now, commands)
        return commands

    def endpoints(self, key: str, now: float) -> PoolEndpoints:
        """What gateways may know of a pool."""
        pool = self.pools[key]
        load = self.demand.load(key)
        state, reason = pool.look(load.queued + load.in_flight, now)
        replicas = [
            ReplicaEndpoint(r.id, "", r.limit, r.marks_started, r.device, _waited_phases(r))
            for r in pool.replicas.values()
            if r.can_serve
        ]
        if state != "failing":
            return PoolEndpoints(replicas, state, reason)
        return PoolEndpoints(replicas, state, reason, pool.retry_at_s, list(pool.log_tail))

    def wanted(self, key: str) -> Wanted:
        """How many replicas a pool should have now, and why."""
        pool = self.pools[key]
        return wanted(pool.spec, self.demand.load(key), pool.is_warm)

    def replica(self, id: str) -> Replica | None:
        """The record of a replica that is not yet stopped."""
        return self._replicas.find(id)

    def replicas(self) -> list[Replica]:
        """Every replica that is not yet stopped."""
        return [r for pool in self.pools.values() for r in pool.replicas.values()]

    def _apply(self, event: events.Event, now: float, commands: list[Command]) -> set[str]:
        """Change the records; the pools that may need a decision now."""
        match event:
            case events.PoolDefined(spec):
                pool = self.pools.setdefault(spec.key, Pool(spec))
                pool.spec, pool.removed = spec, False
                return {spec.key}
            case events.PoolRemoved(key):
                return self._remove(key)
            case events.DemandCame(demand):
                return self.demand.hear(demand, now)
            case events.WorkerLost(worker):
                return self.demand.forget(worker)
            case events.ListRead():
                self._list_read_s = now
                return set(self.pools)
            case events.Shutdown():
                self.stopping = True
                return set(self.pools)
            case events.Tick():
                return self._tick(now, commands)
            case _:
                return self._replicas.apply(event, now, commands)

    def _remove(self, key: str) -> set[str]:
        if key in self.pools:
            self.pools[key].removed = True
        return {key}

    def _tick(self, now: float, commands: list[Command]) -> set[str]:
        """Only pools with replicas, load, a floor or a trial to do are looked at."""
        touched = self.demand.active()
        for worker in self.demand.silent(now):
            touched |= self.demand.forget(worker)
        for key, pool in self.pools.items():
            if pool.replicas or pool.spec.min or pool.failures or pool.spec.trial:
                touched.add(key)
            for replica in list(pool.replicas.values()):
                self._replicas.press(replica, now, commands)
        return touched

    def _may_decide(self, now: float) -> bool:
        """After a start nothing is started or stopped on a half-known state of the world."""
        if self._list_read_s is None:
            return False
        return not self.demand.is_empty or now - self._list_read_s >= ADOPTION_S

    def _turn(self, key: str) -> tuple[float, str]:
        """Who waits for longest is settled first and gets the device that became free."""
        pool = self.pools.get(key)
        if pool is None or pool.waiting_since_s is None:
            return float("inf"), key
        return pool.waiting_since_s, key

    def _settle(self, pool: Pool, now: float, commands: list[Command]) -> None:
        """Bring one pool nearer to what is wanted."""
        load = self.demand.load(pool.spec.key)
        self._mark_use(pool, load, now)
        if self.stopping or pool.removed:
            self._empty(pool, now, commands)
            return
        if not self._may_decide(now):
            return
        count, reason = wanted(pool.spec, load, pool.is_warm)
        if count != pool.wanted:
            commands.append(Note(pool.spec.key, f"wants {count} replicas: {reason}"))
        pool.wanted = count
        pool.wanted_reason = reason
        while pool.count() < count and self._start_one(pool, now, commands):
            pass
        self._stop_idle(pool, load, now, commands)

    def _mark_use(self, pool: Pool, load: Load, now: float) -> None:
        if load.queued or load.in_flight:
            for replica in pool.replicas.values():
                replica.last_used_s = now
        if not load.queued:
            pool.waiting_since_s = None
        elif pool.waiting_since_s is None:
            pool.waiting_since_s = now - load.oldest_wait_s

    def _empty(self, pool: Pool, now: float, commands: list[Command]) -> None:
        """Let every replica finish and go; forget the pool when the last one has gone."""
        why = "the server stops" if self.stopping else "it was removed"
        for replica in list(pool.replicas.values()):
            if replica.can_serve or replica.is_coming:
                self._replicas.drain(replica, None, why, now, commands)
        if pool.removed and not pool.replicas:
            del self.pools[pool.spec.key]

    def _start_one(self, pool: Pool, now: float, commands: list[Command]) -> bool:
        """Record a replica and have it launched; False when there is no place or patience."""
        if now < pool.retry_at_s:
            pool.blocked = f"load failed {pool.failures} times, next try soon: {pool.last_error}"
            return False
        taken = frozenset(r.device for r in self.replicas())
        where = place(pool.spec.device_kind, self.devices.values(), taken, self._idle())
        if isinstance(where, Place):
            self._launch(pool, where.device, now, commands)
            return True
        if isinstance(where, Evict):
            self._evict(where.replica, pool, now, commands)
        else:
            pool.blocked = where.reason
        return False

    def _idle(self) -> list[Replica]:
        """Ready replicas that nobody needs and no floor keeps."""
        return [
            replica
            for key, pool in self.pools.items()
            if pool.staying() > pool.spec.min and not self._is_busy(key)
            for replica in pool.replicas.values()
            if replica.state is State.READY and replica.role == "serve"
        ]

    def _is_busy(self, key: str) -> bool:
        load = self.demand.load(key)
        return load.queued + load.in_flight > 0

    def _evict(self, id: str, pool: Pool, now: float, commands: list[Command]) -> None:
        """Ask an idle replica to make room; it refuses if it was called in the meantime.

        Only one at a time; one that refused is READY again and stands in nobody's way.
        """
        leaving = self.replica(pool.evicting)
        if leaving is not None and leaving.state is not State.READY:
            return
        replica = self._replicas.find(id)
        assert replica is not None
        pool.evicting, pool.evicting_since_s = id, now
        pool.blocked = f"waits for {replica.pool} to make room on {replica.device}"
        commands.append(Note(replica.pool, f"{id} makes room for {pool.spec.key}"))
        self._replicas.drain(replica, 0.001, f"evicted for {pool.spec.key}", now, commands)

    def _launch(self, pool: Pool, device: str, now: float, commands: list[Command]) -> None:
        key = pool.spec.key
        phases = {}
        if pool.waiting_since_s is not None:
            phases["place"] = (now - pool.waiting_since_s) * 1e3
        if pool.evicting:
            # Whoever the eviction was for may have left before this waiter came.
            since_s = max(pool.evicting_since_s, pool.waiting_since_s or 0.0)
            phases["evict"] = (now - since_s) * 1e3
            phases["place"] = max(0.0, phases.get("place", 0.0) - phases["evict"])
            pool.evicting = ""
        pool.blocked = ""
        role: Role = "trial" if pool.spec.trial else "serve"
        replica = Replica(self._new_id(), key, device, role, now, phases=phases)
        replica.waiting_since_s = pool.waiting_since_s
        replica.last_used_s = now
        self._replicas.add(replica, now)
        commands.append(Launch(replica.id, key, device, replica.role, phases))
        commands.append(Note(key, f"starts {replica.id} on {device}: {pool.wanted_reason}"))

    def _stop_idle(self, pool: Pool, load: Load, now: float, commands: list[Command]) -> None:
        """An idle replica is asked whether it may go, as it alone knows for sure. Those asked
        are counted as gone: all of them may say yes."""
        if load.queued or load.in_flight:
            return
        for replica in list(pool.replicas.values()):
            idle_s = now - replica.last_used_s
            if pool.staying() <= pool.spec.min or pool.spec.trial:
                return
            if replica.state is State.READY and idle_s >= pool.spec.idle_s:
                text = f"idle for {idle_s:.0f} s"
                self._replicas.drain(replica, pool.spec.idle_s, text, now, commands)

    def _publish(self, touched: set[str], now: float, commands: list[Command]) -> None:
        changed = set()
        for key in touched:
            shown = self.endpoints(key, now) if key in self.pools else None
            if shown != self._shown.get(key):
                changed.add(key)
            if shown is None:
                self._shown.pop(key, None)
            else:
                self._shown[key] = shown
        if changed:
            commands.append(Publish(frozenset(changed)))


def _waited_phases(replica: Replica) -> dict[str, float]:
    """What its first callers waited for. An adopted replica's cold start is long over."""
    if replica.adopted:
        return {}
    return {phase: ms for phase, ms in replica.phases.items() if phase != "first_run"}
