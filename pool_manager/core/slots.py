"""CPU slots: which of the replicas that a host keeps in its memory run."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from pool_manager.core.cluster import Cluster
from pool_manager.core.commands import Command
from pool_manager.core.eviction import RESIDENCY_S, Evictor, served_since_s
from pool_manager.core.ledger import Need, Reservation
from pool_manager.core.placement import EvictionPlan, find_device, victims_on
from pool_manager.core.pool import Pool
from pool_manager.core.replicas import ReplicaLifecycle
from pool_manager.core.state import Replica, State
from registry.exchange import Load
from registry.model.hosts import other_host


class Slots:
    """Gives CPU slots to the replicas that run, and takes them from those that do not.

    A start holds a slot until its replica is READY, and a replica that drains until it is STOPPED.
    A READY one holds a slot while its pool has calls, as far as gateways have reported; without, it
    is *kept*: charged its memory alone, and listed. A kept replica is *paused* if its pool is
    called while all slots are taken, or if it leaves the slot that another pool waits for: gateways
    hold its calls until it has a slot. Otherwise calls that are shorter than the time between two
    reports would run beside those on the slots.
    """

    def __init__(self, cluster: Cluster, replicas: ReplicaLifecycle, evictor: Evictor) -> None:
        self._cluster = cluster
        self._replicas = replicas
        self._evictor = evictor
        self._by_turn: list[str] | None = None

    def forget(self) -> None:
        """Drop what was derived for one event: time has passed, or an event occurred."""
        self._by_turn = None

    def free(self, keys: set[str]) -> set[str]:
        """Take the slots of ready replicas that run nothing any more. `keys` are the pools whose
        load or replicas may have changed; returned with those that wait for room, if there is more.

        (1) A pool without calls: its replicas are kept. Those that leave a slot are paused if other
            pools wait for one of their host's.
        (2) A replica that yields its slot, and no call of the pool is in flight: it is kept, and
            stays paused until it has a slot again.
        """
        cluster, is_more = self._cluster, False
        is_full: dict[str, bool] = {}
        # Most pools on slots run something: set operations pass over them.
        idle = cluster.demand.idle(keys) & cluster.on_slots.keys()
        yielding = keys & cluster.yielding.keys() & cluster.on_slots.keys()
        for key in sorted(idle | yielding):  # in this order devices are free for longest
            pool, load = cluster.pools[key], cluster.demand.load(key)
            if load.in_flight or (load.queued and not pool.is_making_room):
                continue
            is_idle = not load.busy
            for one in pool.replicas.values():
                # One whose host is away has run nothing either that a gateway knows of.
                if one.state is not State.READY or not cluster.is_on_cpu(one):
                    continue
                if not cluster.ledger.has_slot(one.id) or not (is_idle or one.is_yielding):
                    continue
                is_more = True
                if one.host not in is_full:
                    is_full[one.host] = self._is_full(one.host)
                if one.is_yielding:
                    one.claimant, one.deadline_s = "", float("inf")
                cluster.ledger.leave_slot(one.id)
                cluster.yielding.pop(key, None)
                if not one.is_paused and is_full[one.host] and self._is_waited_for():
                    one.is_paused = True
                    self._replicas.touch(one)
            if not any(map(self._is_on_slot, pool.replicas.values())):
                del cluster.on_slots[key]
        return keys | cluster.blocked if is_more else keys

    def resume(self) -> None:
        """Let paused replicas of pools without calls take calls again where a slot is free."""
        cluster = self._cluster
        for key in cluster.demand.idle(set(cluster.on_slots)):
            replicas = cluster.pools[key].replicas.values()
            for one in replicas:
                if one.is_paused and not one.is_yielding and not self._is_full(one.host):
                    self._replicas.unpause(one)
            if not any(map(self._is_on_slot, replicas)):
                del cluster.on_slots[key]

    def _is_full(self, host: str) -> bool:
        return not self._cluster.ledger.has_empty(host, "cpu")

    def _is_waited_for(self) -> bool:
        pools = self._cluster.pools
        return any(pools[key].spec.device_kind != "cuda" for key in self._cluster.blocked)

    def settle(self, pool: Pool, load: Load, now: float, commands: list[Command]) -> bool:
        """Give slots to the ready replicas of a called pool; whether all of them wait for one.

        (1) A replica yields its slot as long as the pool waits that is to get it.
        (2) A kept replica gets a slot of its host with room, the one that it had before all others.
            On a host where nothing may be started it runs without: turns cannot be taken there.
        (3) There is none: it is paused.
        (4) Another replica of the pool serves: the pool does not wait.
        (5) The end of builds makes room: end them.
        (6) Others are yielding a slot to the pool: wait for them.
        (7) The pool may preempt: it gets the slot whose turn is over.
        (8) No turn is over: it gets the next one, and nobody else takes that slot before.
        """
        if not load.busy:
            return False
        ready = [one for one in pool.replicas.values() if self._is_ready(one)]
        for replica in ready:
            self._give(pool, replica, now)  # (1) to (3)
        waiting = [one for one in ready if one.is_paused]
        if not waiting or pool.is_warm:  # (4)
            return False
        replica, evictor = waiting[0], self._evictor
        need = self._cluster.slot_need(pool, replica)
        if replica.is_yielding:
            evictor.block(pool, f"its CPU slot goes to {replica.claimant}", commands)
            return True
        if evictor.end_builds(pool, need, now, commands) or evictor.is_evicting(pool):  # (5), (6)
            return True
        self._cluster.unreserve(pool)
        if evictor.may_preempt(pool, now):
            plan = self.plan(pool, need, now)
            if plan is not None:  # (7)
                evictor.execute(pool, need, plan, None, now, commands)
                return True
            self.reserve(pool, need, now)  # (8)
        where = f" of {host}" if (host := other_host(replica.host)) else ""
        evictor.block(pool, f"all CPU slots{where} run other functions", commands)
        return True

    def _give(self, pool: Pool, replica: Replica, now: float) -> None:
        """Cases 1 to 3 of `settle`."""
        ledger = self._cluster.ledger
        if ledger.has_slot(replica.id):
            if replica.is_paused and not self._is_claimed(replica):  # (1)
                self._replicas.unpause(replica)
            return
        need, device = self._cluster.slot_need(pool, replica), replica.first_device
        if replica.host not in ledger.closed:
            found = device if ledger.fits(device, need) else find_device(need, ledger)
            if found is None:  # (3)
                if not replica.is_paused:
                    replica.is_paused = True
                    self._cluster.on_slots[pool.key] = None
                    self._replicas.touch(replica)
                return
            ledger.take_slot(replica.id, found, pool.spec.share)  # (2)
            self._cluster.on_slots[pool.key] = None
            replica.devices, replica.slot_s = (found,), now
        if replica.is_paused or replica.first_device != device:
            self._replicas.unpause(replica)

    def _is_claimed(self, replica: Replica) -> bool:
        claimant = self._cluster.pools.get(replica.claimant)
        reservation = claimant.reservation if claimant is not None else None
        return reservation is not None and replica.id in reservation.victims

    def plan(self, pool: Pool, need: Need, now: float) -> EvictionPlan | None:
        """Return the replicas to pause or stop so that a pool gets a CPU slot; None if no turn is
        over.

        Slots are tried in the order of their turns. On the first with room for the need,
        (1) the replicas are paused that have been there for RESIDENCY_S, until its share fits;
        (2) memory that the need lacks is that of idle replicas, else of those that ran longest;
            replicas that end for their memory are not paused besides.
        The pool of a paused replica pauses all that it has on slots: reports tell its open calls
        together, so that only then it is known when they have ended.
        """
        ledger, candidates = self._cluster.ledger, self._evictor.candidates
        barred = self._evictor.barred(pool)
        for device in self._turns() if need.kind != "cuda" else ():
            if not ledger.fits_kind(device, need):
                continue
            paused = self._over(device, need, barred, now)  # (1)
            if paused is None:
                continue
            for rule in (candidates.idle, candidates.resident):  # (2)
                there = self._evictor.allowed(pool, rule.all(now), now)
                only_memory = replace(need, share=0.0, takes_rest=False)
                standbys = self._evictor.reusable(pool, need)
                victims = victims_on(device, only_memory, ledger, there, standbys)
                if victims is not None:
                    rest = tuple(id for id in paused if id not in victims)
                    return EvictionPlan((device,), victims, rest)
        return None

    def _over(
        self, device: str, need: Need, barred: Collection[str], now: float
    ) -> list[str] | None:
        """Return the replicas to pause so that a slot has the share of a need, with all others of
        their pools that have slots; None if their turns are not over."""
        cluster, gone = self._cluster, list[Replica]()
        for one in sorted(self._on(device), key=served_since_s):
            if cluster.ledger.fits_share(device, need, [each.id for each in gone]):
                break
            is_over = now - served_since_s(one) >= RESIDENCY_S
            if self._may_yield(one) and is_over and one.pool not in barred:
                gone.append(one)
        if not cluster.ledger.fits_share(device, need, [each.id for each in gone]):
            return None
        pools = dict.fromkeys(one.pool for one in gone)
        there = [each for key in pools for each in cluster.pools[key].replicas.values()]
        return [each.id for each in there if self._may_yield(each)]

    def _may_yield(self, replica: Replica) -> bool:
        is_running = self._is_ready(replica) and not replica.is_paused
        return is_running and self._cluster.ledger.has_slot(replica.id)

    def reserve(self, pool: Pool, need: Need, now: float) -> None:
        """Reserve the slot whose turn is over next, if the need has the memory. All that wait claim
        slots in the order of their waits: otherwise those that reserve would keep out others."""
        if self._evictor.barred(pool):
            return  # it is warmed beside another revision, if there is room at once
        ledger, standbys = self._cluster.ledger, self._evictor.reusable(pool, need)
        for device in self._turns() if need.kind != "cuda" else ():
            if ledger.fits_kind(device, need) and ledger.fits_memory(device, need, standbys):
                pool.reservation = Reservation(need, (device,), (), now)
                ledger.reserve(pool.reservation)
                return

    def _turns(self) -> list[str]:
        """Return the CPU slots, the one first whose replicas have all been there for longest."""
        if self._by_turn is None:
            devices = self._cluster.ledger.devices.values()
            latest = {
                one.id: max(map(served_since_s, self._on(one.id)), default=0.0)
                for one in devices
                if one.kind == "cpu"
            }
            self._by_turn = sorted(latest, key=lambda id: (latest[id], id))
        return self._by_turn

    def _on(self, device: str) -> list[Replica]:
        found = map(self._cluster.find, self._cluster.ledger.on(device))
        return [one for one in found if one is not None]

    def _is_ready(self, replica: Replica) -> bool:
        return replica.is_ready and self._cluster.is_on_cpu(replica)

    def _is_on_slot(self, replica: Replica) -> bool:
        return replica.is_paused or self._cluster.may_have_slot(replica)
