"""Records of all hosts: pools, replicas, devices and demand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from math import inf
from typing import Any, NamedTuple

from pool_manager.core.demand import DemandTable
from pool_manager.core.health.guards import Guards
from pool_manager.core.hosts import HOST_LOST_S, HostRecord, HostState
from pool_manager.core.ledger import Ledger, Need
from pool_manager.core.pool import NOBODY_CALLS, Pool
from pool_manager.core.start_queue import SHORT_LOAD_S, Rank, StartPriority
from pool_manager.core.state import Device, PoolSpec, Replica, State
from registry.exchange import PoolEndpoints, ReplicaEndpoint
from registry.model.hosts import LOCAL_HOST, Ability, id_on

STANDBY_MIB = 80.0
"""Memory charged for a standby for the CPU slots."""
GPU_STANDBY_MIB = 600.0
"""Memory charged for a standby on a GPU: the device context and its libraries."""
STANDBY_KEY = "standby/cpu"
"""Key of the pool of standbys for the CPU slots of the local host; those of another host have
`standby/HOST/cpu`. Each GPU has its own pool: `standby/GPU-ID`."""
STANDBY_PREFIX = "standby/"

COLD = PoolEndpoints([], "cold", NOBODY_CALLS)
"""Endpoints of a cold pool, shared by all such pools: there may be very many."""


class StandbyPlace(NamedTuple):
    """Purpose of a pool of standbys: a GPU, or with `device` "" all CPU slots of a host."""

    host: str
    device: str

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of its standbys: the GPU, or none."""
        return (self.device,) if self.device else ()


class IdleShape(NamedTuple):
    """Part of the eviction costs of an idle pool that does not depend on time: how many it can
    spare, in how many seconds it returns, its ready replicas, and those that load, with the time
    until which each is kept; and those that are parked."""

    spare: int
    return_s: float
    ready: tuple[tuple[str, float], ...]
    loading: tuple[tuple[str, float], ...] = ()
    parked: tuple[str, ...] = ()


class Changes(set[str]):
    """Keys of changed pools; `log` has them in the order in which they changed, with repetitions.
    What is derived from a changed pool is dropped from `derived`."""

    def __init__(self, *derived: dict[str, Any]) -> None:
        super().__init__()
        self.log: list[str] = []
        self._derived = derived

    def add(self, key: str) -> None:
        """Record a change of a pool."""
        super().add(key)
        self.log.append(key)
        for known in self._derived:
            known.pop(key, None)

    def clear(self) -> None:
        """Drop all changes."""
        super().clear()
        self.log.clear()


class Cluster:
    """The records that every decision is based on, with indexes that make decisions cheap.

    `hosts` has the record of every host; the local one is always there. `live` holds the keys of
    pools that time alone may change, `blocked` of those that wait for a device, `changed` of those
    whose replicas changed since the last publication. `steady` has the number of ready replicas of
    pools with load whose last settling changed nothing, `shapes` what was derived from others for
    evictions; a change of a pool drops both. `quiesced` holds the ids of replicas that
    may be in a soft drain. `standby_places` has the pools of standbys that are kept, `build_pools`
    those of builds. `parked` holds the ids of PARKED replicas.
    `on_slots` has the pools with replicas on CPU slots, or that are paused,
    `yielding` those with a replica that may yield its slot.
    """

    def __init__(
        self,
        devices: Iterable[Device],
        abilities: frozenset[Ability] = frozenset(),
        host_lost_s: float = HOST_LOST_S,
    ) -> None:
        """`devices` and `abilities` are those of the local host. A host that is unreachable for
        `host_lost_s` is GONE."""
        self.ledger = Ledger(devices)
        self.hosts = self.ledger.hosts
        self.hosts[LOCAL_HOST] = HostRecord(
            LOCAL_HOST, HostState.UP, 0.0, abilities=abilities, bytes_per_s=inf, can_be_lost=False
        )
        self.pools: dict[str, Pool] = {}
        self.demand = DemandTable()
        self.guards = Guards()
        self.host_lost_s = host_lost_s
        self.live: dict[str, None] = {}
        self.blocked: set[str] = set()
        self.steady: dict[str, int] = {}
        self.shapes: dict[str, IdleShape] = {}
        self.changed = Changes(self.steady, self.shapes)
        self.quiesced: dict[str, None] = {}
        self.parked: dict[str, None] = {}
        self.standby_places: dict[str, StandbyPlace] = {}
        self.build_pools: dict[str, None] = {}
        self.on_slots: dict[str, None] = {}
        self.yielding: dict[str, None] = {}
        self._pool_of: dict[str, str] = {}
        self._on_host: dict[str, dict[str, None]] = {}
        self._functions: dict[str, set[str]] = {}

    @property
    def engine_down(self) -> str:
        """Why the engine of the local host is away, "" while it answers."""
        return self.hosts[LOCAL_HOST].engine_down

    def closure(self) -> str:
        """Return why nothing can be placed on any host, "" if something can."""
        closed = self.ledger.closed
        return "; ".join(closed.values()) if len(closed) >= len(self.hosts) else ""

    def host_of(self, id: str) -> str:
        """Return the host of a replica, "" if it is not known (any more)."""
        replica = self.find(id)
        return replica.host if replica is not None else ""

    def on_host(self, host: str) -> list[Replica]:
        """Return every replica on a host."""
        there = [self.find(id) for id in self._on_host.get(host, ())]
        return [one for one in there if one is not None]

    def define(self, spec: PoolSpec) -> Pool:
        """Store the settings of a pool; creates the pool if it is new."""
        pool = self.pools.get(spec.key)
        if pool is None:
            pool = self.pools[spec.key] = Pool(spec)
        pool.spec, pool.removed, pool.quiet_until_s = spec, False, 0.0
        self.shapes.pop(spec.key, None)
        if spec.role == "build":
            self.build_pools[spec.key] = None
        if spec.is_gang:
            self.ledger.gangs.add(spec.key)
        else:
            self.ledger.gangs.discard(spec.key)
        self._functions.setdefault(spec.function or spec.key, set()).add(spec.key)
        return pool

    def keep_standbys(self, device: str, count: int, host: str = LOCAL_HOST) -> None:
        """Keep `count` standbys ready on a GPU, or for the CPU slots of a host ("")."""
        key = self.standby_key(device, host)
        self.define(PoolSpec(key, max=count, role="standby"))
        self.live[key] = None
        self.standby_places[key] = StandbyPlace(host, device)

    def forget(self, pool: Pool) -> None:
        """Remove a pool, which must have no replicas."""
        function = pool.spec.function or pool.key
        del self.pools[pool.key]
        siblings = self._functions.get(function, set())
        siblings.discard(pool.key)
        if not siblings:
            self._functions.pop(function, None)
            self.guards.forget(function)
        self.live.pop(pool.key, None)
        self.blocked.discard(pool.key)
        self.steady.pop(pool.key, None)
        self.shapes.pop(pool.key, None)
        self.standby_places.pop(pool.key, None)
        self.build_pools.pop(pool.key, None)
        self.ledger.gangs.discard(pool.key)
        self.on_slots.pop(pool.key, None)
        self.yielding.pop(pool.key, None)

    def builds(self) -> list[Replica]:
        """Return the replicas of builds."""
        return [one for key in self.build_pools for one in self.pools[key].replicas.values()]

    def siblings(self, pool: Pool) -> Iterator[Pool]:
        """Yield the pools of the other revisions of the pool's function."""
        for key in sorted(self._functions.get(pool.spec.function or pool.key, ())):
            if key != pool.key:
                yield self.pools[key]

    def find(self, id: str) -> Replica | None:
        """Return the record of a replica that is not yet stopped, else None."""
        pool = self.pools.get(self._pool_of.get(id, ""))
        return pool.replicas.get(id) if pool else None

    def unused_id(self, new_id: Callable[[], str]) -> str:
        """Return the next id of `new_id` that no replica has."""
        id = new_id()
        while id in self._pool_of:
            id = new_id()
        return id

    def replicas(self) -> Iterator[Replica]:
        """Yield every replica that is not yet stopped."""
        for key in self.live:
            yield from self.pools[key].replicas.values()

    def add(self, replica: Replica) -> None:
        """Record a replica and charge its devices and memory."""
        pool = self.pools[replica.pool]
        pool.replicas[replica.id] = replica
        pool.quiet_until_s = 0.0
        self._pool_of[replica.id] = pool.key
        self._on_host.setdefault(replica.host, {})[replica.id] = None
        self.live[pool.key] = None
        if replica.role == "standby":
            charge = self.standby_charge(replica.first_device, replica.host)
            self.ledger.charge_bank(replica.id, *charge)
            return
        share, known = pool.spec.share, self.ledger.devices.keys() & replica.devices
        if replica.role == "trial" and known:
            share = max(0.0, min(map(self.ledger.free_share, known)))
        elif replica.role == "build" or pool.spec.is_gang:
            share = 1.0
        self.ledger.charge(replica.id, replica.devices, share, pool.memory_mib)
        # The devices of a host that has not answered yet are not known.
        if replica.role == "serve" and self._kind(replica.first_device) != "cuda":
            self.on_slots[pool.key] = None

    def may_have_slot(self, replica: Replica) -> bool:
        """Whether a replica has a CPU slot, or a device that is not known (yet)."""
        return self.ledger.has_slot(replica.id) and self._kind(replica.first_device) != "cuda"

    def is_on_cpu(self, replica: Replica) -> bool:
        """Whether a replica is on a CPU slot of its host, or was when it ran last."""
        return self._kind(replica.first_device) == "cpu"

    def assign(self, replica: Replica, pool: Pool, devices: tuple[str, ...]) -> None:
        """Move a standby to `pool`, as a replica on `devices`."""
        self.changed.add(replica.pool)
        self.changed.add(pool.key)
        del self.pools[replica.pool].replicas[replica.id]
        replica.pool, replica.devices, replica.role = pool.key, devices, pool.spec.role
        self.add(replica)

    def remove(self, replica: Replica) -> None:
        """Remove a STOPPED replica and its charge."""
        del self.pools[replica.pool].replicas[replica.id]
        del self._pool_of[replica.id]
        there = self._on_host[replica.host]
        del there[replica.id]
        if not there:
            del self._on_host[replica.host]
        self.parked.pop(replica.id, None)
        charge, host = self.ledger.charge_of(replica.id), self.hosts[replica.host]
        if charge.is_parked and host.memory is not None:
            # The last reading does not show it yet.
            freed_mib = host.memory.available_mib + charge.host_mib
            host.memory = host.memory._replace(available_mib=freed_mib)
        self.ledger.release(replica.id)

    def begin_upgrade(self, id: str) -> str:
        """Charge a ready replica for a second session beside the one that it serves with; return
        why that cannot be, "" if it is charged. The second one takes as much as the replica, at
        most: a build, which measures it, may have run on another device."""
        replica = self.find(id)
        if replica is None or not replica.is_ready:
            return "it is not ready"
        if replica.extra_mib is not None:
            return "another upgrade of it is in progress"
        charge = self.ledger.charge_of(id)
        free_mib = min(self.ledger.free_mib(bank, replica.pool) for bank in charge.banks)
        if charge.memory_mib > free_mib:
            return (
                f"both sessions at once need {charge.memory_mib:.0f} MiB more,"
                f" {max(0.0, free_mib):.0f} are free; it gets the compiled model at its next start"
            )
        replica.extra_mib = charge.memory_mib
        self.ledger.recharge(id, 2 * charge.memory_mib)
        return ""

    def end_upgrade(self, id: str) -> None:
        """Charge a replica for its remaining sessions."""
        replica = self.find(id)
        if replica is None or replica.extra_mib is None:
            return
        before_mib = self.ledger.charge_of(id).memory_mib - replica.extra_mib
        replica.extra_mib = None
        is_compiled = replica.session == "compiled"
        known_mib = self.pools[replica.pool].memory_mib if is_compiled else 0.0
        self.ledger.recharge(id, max(before_mib, known_mib))

    def standby_key(self, device: str, host: str = LOCAL_HOST) -> str:
        """Return the key of the pool of standbys for a device: one pool for all CPU slots of a host
        (and for "", of `host`), one for each GPU."""
        known = self.ledger.devices.get(device)
        if device and (known is None or known.kind != "cpu"):
            return f"{STANDBY_PREFIX}{device}"
        host = host if known is None else known.host
        return f"{STANDBY_PREFIX}{id_on(host, 'cpu')}"

    def standby_bank(self, host: str = LOCAL_HOST) -> str:
        """Return the bank to which standbys for the CPU slots of a host are charged, "" if it has
        none."""
        there = self.ledger.devices.values()
        return next((d.bank for d in there if d.kind == "cpu" and d.host == host), "")

    def standby_charge(self, device: str, host: str = LOCAL_HOST) -> tuple[str, float]:
        """Return the bank to which a standby is charged, and the MiB. It takes no share of its
        device, so it can coexist with a replica that has the whole device."""
        known = self.ledger.devices.get(device)
        if known is None:
            return (self.standby_bank(host), STANDBY_MIB) if not device else ("", 0.0)
        return known.bank, GPU_STANDBY_MIB

    def standbys(self, key: str = STANDBY_KEY) -> list[Replica]:
        """Return the known standbys of a pool that wait for a model or are starting."""
        pool = self.pools.get(key)
        return [one for one in pool.replicas.values() if one.is_coming] if pool else []

    def next_standby(self, device: str = "") -> Replica | None:
        """Return the standby to be used next on a device: a waiting one before a starting one."""
        return self._next_of(self.standby_key(device))

    def next_standbys(self) -> list[Replica]:
        """Return the standby to be used next of every pool of standbys that has one."""
        following = (self._next_of(key) for key in self.standby_places)
        return [one for one in following if one is not None]

    def _next_of(self, key: str) -> Replica | None:
        there = self.standbys(key)
        return min(there, key=lambda one: one.state is State.STARTING, default=None)

    def wakes_by_standby(self, pool: Pool) -> bool:
        """Whether the pool's starting replica was a standby; if none is starting, whether the next
        one would be. Servers and replicas on several devices never use standbys."""
        if not pool.spec.uses_standbys:
            return False
        coming = [one for one in pool.replicas.values() if one.is_coming]
        if coming:
            one = coming[0]
            is_new = one.is_bound if one.state is State.STARTING else "start" in one.phases
            return not is_new
        kind = pool.spec.device_kind
        return any(
            one.state is State.STANDBY
            for key, place in self.standby_places.items()
            if kind in ("any", self._kind(place.device)) and place.host not in self.ledger.closed
            for one in self.standbys(key)
        )

    def _kind(self, device: str) -> str:
        known = self.ledger.devices.get(device)
        return known.kind if known is not None else "" if device else "cpu"

    def start_priority(self, id: str) -> StartPriority:
        """Return the present priority of a replica's start. It may rise while the start is queued,
        when calls begin to wait for the replica."""
        replica = self.find(id)
        if replica is None:
            return StartPriority(Rank.STANDBY, 0.0)
        if replica.role == "standby":
            return StartPriority(Rank.STANDBY, replica.since_s)
        if replica.role == "build":
            return StartPriority(Rank.BUILD, replica.since_s)
        pool = self.pools[replica.pool]
        since_s, rank = replica.since_s, Rank.FLOOR
        if self.demand.load(pool.key).queued:
            rank = Rank.WAITER
            since_s = since_s if pool.waiting_since_s is None else pool.waiting_since_s
        if replica.state is State.LOADING and 0 < pool.spec.load_s < SHORT_LOAD_S:
            rank = Rank.SHORT
        return StartPriority(rank, since_s)

    def on(self, device: str) -> list[Replica]:
        """Return every replica on a device, including the standbys of a GPU and those that are
        parked there."""
        standbys = self.pools.get(self.standby_key(device))
        there = [self.find(id) for id in (*self.ledger.on(device), *self.parked)]
        waiting = standbys.replicas.values() if standbys else ()
        return [one for one in (*there, *waiting) if one is not None and device in one.devices]

    def is_awaited(self, replica: Replica) -> bool:
        """Whether calls of a function without a replica wait, which could have one on a device of
        this replica."""
        known = self.ledger.devices.keys() & replica.devices
        for key in self.blocked if known else ():
            pool = self.pools[key]
            if pool.spec.role == "serve" and pool.unserved_since_s is not None:
                need = self.need(pool)
                if any(self.ledger.fits_kind(device, need) for device in known):
                    return True
        return False

    def await_end(self, replica: Replica) -> str:
        """Return why a pool may not start another replica while this one may run (user-facing
        text)."""
        cause = self.hosts[replica.host].obstacle or replica.why
        wait = f"another one starts {self.host_lost_s:.0f} s after the loss at the latest"
        return f"{cause}; {replica.id} may still run on {replica.host}, {wait}"

    def unreserve(self, pool: Pool) -> None:
        """Release the pool's reservation, if it has one."""
        if pool.reservation is not None:
            self.ledger.unreserve(pool.reservation)
            pool.reservation = None

    def unreserve_device(self, device: str) -> None:
        """Release what is reserved or claimed on a known device, which may not be used for now."""
        reservation, claim = self.ledger.reservations.get(device), self.ledger.claim
        if reservation is not None:
            self.unreserve(self.pools[reservation.need.pool])
        if claim is not None and device in claim.devices:
            self.ledger.claim = None

    def unclaim(self, pool: Pool) -> None:
        """End the standing claim if it is the pool's."""
        claim = self.ledger.claim
        if claim is not None and claim.pool == pool.key:
            self.ledger.claim = None

    def endpoints(self, pool: Pool, now: float) -> PoolEndpoints:
        """Return the endpoints of a pool as gateways see them; data sockets are filled in later."""
        load = self.demand.load(pool.key)
        state, reason = pool.describe(load.busy, now)
        if (state, reason) == (COLD.state, COLD.reason) and not pool.ended:
            return COLD
        replicas = [
            ReplicaEndpoint(
                r.id,
                "",
                r.limit,
                r.marks_started,
                r.devices,
                _waited_phases(r),
                pool.spec.is_server,
                paused=r.is_paused,
            )
            for r in pool.replicas.values()
            if r.is_listed
        ]
        ended, hung = dict(pool.ended), list(pool.hung)
        if state != "failing":
            kept_by = list(pool.kept_by) if state == "waking" else []
            return PoolEndpoints(replicas, state, reason, ended=ended, kept_by=kept_by, hung=hung)
        tail = list(pool.log_tail)
        return PoolEndpoints(replicas, state, reason, pool.retry_at_s, tail, ended, hung=hung)

    def need(self, pool: Pool) -> Need:
        """Return the resources that one more replica of a pool needs."""
        spec, since_s = pool.spec, pool.unserved_since_s
        count = 1 if spec.role == "build" else spec.count
        return Need(
            pool.key,
            spec.device_kind,
            1.0 if spec.role == "build" or count > 1 else spec.share,
            pool.memory_mib,
            takes_rest=spec.role == "trial" and count == 1,
            labels=spec.labels,
            ability=spec.ability,
            files=spec.files,
            bundle_bytes=spec.bundle_bytes,
            image=spec.image,
            spread_from=self._spread_from(pool),
            device_type=spec.device_type,
            count=count,
            unserved_since_s=inf if since_s is None else since_s,
        )

    def wake_need(self, pool: Pool, replica: Replica) -> Need:
        """Return what a parked replica of a pool needs to wake: its own devices, in full."""
        return Need(
            pool.key,
            "cuda",
            1.0 if pool.spec.is_gang else pool.spec.share,
            pool.memory_mib,
            host=replica.host,
            count=len(replica.devices),
            unserved_since_s=self.need(pool).unserved_since_s,
            only=replica.devices,
        )

    def slot_need(self, pool: Pool, replica: Replica) -> Need:
        """Return what a kept replica of a pool needs to run: a share of a CPU slot of its host."""
        return Need(pool.key, "cpu", pool.spec.share, host=replica.host, has_memory=True)

    def keepers(self, pool: Pool) -> dict[str, dict[str, str]]:
        """Return by memory bank the replicas of other functions that make no room for a pool,
        because their function keeps as many (`min`), each with its function."""
        found: dict[str, dict[str, str]] = {}
        for key in self.live:
            other = self.pools[key]
            # Few have a `min`: the replicas of the others need not be counted.
            if other is not pool and other.spec.min and 0 < other.staying() <= other.spec.min:
                for id, one in other.replicas.items():
                    for bank in self.ledger.charge_of(id).all_banks if other.counts(one) else ():
                        found.setdefault(bank, {})[id] = key.partition("@")[0]
        return found

    def suitable(self, pool: Pool) -> list[Device]:
        """Return the devices that replicas of a pool may ever be on: of its kind, large enough, on
        a host with its labels and ability, which may be closed and has as many equal ones as a
        replica takes."""
        need, ledger = self.need(pool), self.ledger
        able = [
            one
            for one in ledger.devices.values()
            if need.takes(one) and ledger.suits(one.host, need) and ledger.can_hold(one.id, need)
        ]
        there = Counter(one.type for one in able)
        return [one for one in able if there[one.type] >= need.count]

    def _spread_from(self, pool: Pool) -> tuple[str, ...]:
        """Return the hosts of the function's replicas, once per replica, unless it does not prefer
        different hosts; and those that have refused the pool lately, once per refusal."""
        if self.ledger.has_one_host:
            return ()
        refused: tuple[str, ...] = ()
        if pool.refused:
            refused = tuple(host for host, times in pool.refused.items() for _ in range(times))
        is_only = len(self._functions[pool.spec.function or pool.key]) == 1
        is_first = is_only and not pool.replicas
        if is_first or not pool.spec.spread:
            return refused
        known = self.ledger.devices.keys()
        return refused + tuple(
            one.host
            for other in (pool, *self.siblings(pool))
            for one in other.replicas.values()
            if not known.isdisjoint(one.devices) and (one.is_coming or one.can_serve)
        )


def _waited_phases(replica: Replica) -> dict[str, float]:
    """Return the phases of the cold start, or of the wake, that the replica's first callers waited
    for; empty if it was adopted and has not slept since."""
    if replica.adopted and "wake" not in replica.phases:
        return {}
    return {phase: ms for phase, ms in replica.phases.items() if phase != "first_run"}
