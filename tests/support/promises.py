"""Invariants of the pool machine, checked after every event."""

from __future__ import annotations

from collections import Counter
from itertools import chain, combinations

from hypothesis.stateful import RuleBasedStateMachine, invariant

from pool_manager.core import events
from pool_manager.core.cluster import STANDBY_PREFIX
from pool_manager.core.commands import (
    Assign,
    Bind,
    Command,
    Drain,
    EndTrial,
    EndWarm,
    Launch,
    Note,
    Publish,
    Quiesce,
    RecordColdStart,
    Release,
    Resume,
    Terminate,
)
from pool_manager.core.eviction import (
    PREEMPT_AFTER_S,
    REFUSAL_S,
    RESIDENCY_S,
    TRIAL_PREEMPT_AFTER_S,
)
from pool_manager.core.ledger import RESERVE_MIB
from pool_manager.core.machine import Machine
from pool_manager.core.pool import Pool
from pool_manager.core.state import TRANSITIONS, PoolSpec, Replica, State
from registry.exchange import PoolEndpoints
from tests.support.book import Book


def after(state: State) -> set[State]:
    """Return the states reachable from `state` in any number of steps."""
    found, todo = {state}, [state]
    while todo:
        new = set(TRANSITIONS[todo.pop()].values()) - found
        found |= new
        todo += new
    return found


class Sleepless(Machine):
    """Machine that settles every pool that is not cold on every tick, and every pool with load on
    every report."""

    def _is_steady(self, key: str, now: float) -> bool:
        return False

    def _schedule(self, pool: Pool, busy: int, now: float) -> None:
        super()._schedule(pool, busy, now)
        pool.quiet_until_s = 0.0


class Promises(RuleBasedStateMachine):
    """A machine, its sleepless twin, and an independent book of events and commands.

    A subclass sets `machine`, `twin` and `book`, maintains `specs` (the wanted pools) and passes
    every event to `feed`.
    """

    machine: Machine
    twin: Sleepless
    book: Book

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.standbys = 0
        self.gpu_standbys = 0
        self.specs: dict[str, PoolSpec] = {}
        self.known: set[str] = set()
        self.cordoned: dict[str, bool] = {}
        self.shown: dict[str, PoolEndpoints] = {}
        self.asked: set[str] = set()
        self.unserved: dict[str, float] = {}
        self.refused: dict[str, float] = {}
        self.drained: dict[str, float] = {}
        self.is_list_read = False
        self.is_engine_down = False

    def spec(self, spec: PoolSpec) -> PoolSpec:
        """Declare a pool as wanted."""
        self.specs[spec.key] = spec
        self.known.add(spec.key)
        return spec

    def feed(self, event: events.Event) -> None:
        """Feed one event to the machine and its twin; check all invariants on the resulting
        commands."""
        self.event = event
        self.before = {r.id: r.state for r in self.machine.replicas()}
        self.late = {r.id for r in self.machine.replicas() if r.deadline_s <= self.now}
        self.reservations = {key: pool.reservation for key, pool in self.machine.pools.items()}
        failures = {key: pool.failures for key, pool in self.machine.pools.items()}
        self.write_down(event)
        commands = self.machine.handle(event, self.now)
        due = self.twin.handle(event, self.now)
        assert commands == due, f"slept through: {[one for one in due if one not in commands]}"
        self.placed: set[str] = set()
        # Assignments first: an assigned replica no longer counts as a standby.
        self.check_placements(commands)
        self.check_standbys(commands)
        for id in self.placed:
            device = self.book.devices[self.book.entries[id].device]
            assert not self.book.is_overcommitted(device), f"{id} was one too many"
        for command in commands:
            self.check(command, commands)
        self.check_starts(commands)
        self.check_stops(commands)
        self.check_steps()
        self.check_published(commands)
        self.check_blame(failures)
        self.note_waiters()

    def write_down(self, event: events.Event) -> None:
        """Record in the book what follows from an event alone."""
        match event:
            case events.Released(id) if self.before.get(id) == "releasing":
                del self.book.entries[id]
            case events.Loaded(id, memory_mib=memory) if self.before.get(id) == "loading":
                pool = self.machine.pools[self.replica(id).pool]
                if pool.spec.role == "serve":
                    self.book.measure(id, pool.spec, memory, self.now)
            case events.NotIdle(id):
                self.refused[id] = self.now
                if self.replica_or_none(id) and self.may_return(id):
                    self.drained.pop(id, None)
            case events.WarmRequested(key):
                self.asked.add(key)
            case events.WarmCancelled(key):
                self.asked.discard(key)
            case events.DeviceLost() | events.DeviceBack():
                self.write_cordon(event)

    def write_cordon(self, event: events.DeviceLost | events.DeviceBack) -> None:
        """Record cordons. A lost device stays lost until it is reported back."""
        if isinstance(event, events.DeviceBack):
            self.cordoned.pop(event.device, None)
        elif event.device in self.book.devices:
            self.cordoned[event.device] = event.is_gone or self.cordoned.get(event.device, False)

    def note_waiters(self) -> None:
        """Record since when a pool that cannot serve has queued calls."""
        for key, pool in self.machine.pools.items():
            waits = self.machine.cluster.demand.load(key).queued or pool.spec.role == "trial"
            if waits and not pool.is_warm:
                self.unserved.setdefault(key, self.now)
            else:
                self.unserved.pop(key, None)

    # Commands

    def check(self, command: Command, commands: list[Command]) -> None:
        match command:
            case Assign(id, pool, device):
                entry = self.book.entries[id]
                assert not entry.is_told, "a standby was given two models"
                assert (entry.pool, entry.device) == (pool, device)
                assert pool in self.specs
                assert not self.specs[pool].is_server, "a server from a standby"
                entry.is_told = True
            case Bind(id, pool):
                assert self.replica(id).pool == pool
                assert pool in self.specs
            case Drain(id):
                self.check_drain(command)
                assert self.has_reason(id, commands)
                self.drained.setdefault(id, self.now)
            case Quiesce(id):
                assert self.specs[self.replica(id).pool].is_server
                assert self.is_swap(id), "a busy server was stopped for nobody"
                assert self.has_reason(id, commands)
                self.drained[id] = self.now
            case Resume(id):
                self.check_resume(id, commands)
            case Terminate(id):
                assert self.before[id] == "draining"
                assert id in self.late
                assert self.has_reason(id, commands)
                self.check_cut(id)
            case Release(id):
                self.check_release(id)
            case _:
                self.check_told(command)

    def check_resume(self, id: str, commands: list[Command]) -> None:
        """A soft drain is revoked once nobody needs it; an adopted server is always told to
        serve."""
        replica = self.replica(id)
        if isinstance(self.event, events.Loaded) and self.event.id == id:
            assert replica.adopted
            return
        assert replica.is_returning
        assert not self.claims(id)
        assert self.has_reason(id, commands)

    def check_cut(self, id: str) -> None:
        """No exchange of a server is cut before `drain_s` is over."""
        replica = self.replica(id)
        spec = self.machine.pools[replica.pool].spec
        assert not spec.is_server or self.now - self.drained[id] >= spec.drain_s

    def claims(self, id: str) -> list[Pool]:
        """Return the pools whose reservation needs the end of a replica."""
        pools = self.machine.pools.values()
        return [one for one in pools if one.reservation and id in one.reservation.victims]

    def may_return(self, id: str) -> bool:
        """Whether the replica may serve again after it reports so."""
        replica = self.replica(id)
        return replica.state is State.DRAINING and (replica.if_idle or replica.is_returning)

    def replica_or_none(self, id: str) -> Replica | None:
        return self.machine.replica(id)

    def check_told(self, command: Command) -> None:
        """Notes, receipts and ends of waits refer to known pools only."""
        match command:
            case EndTrial(key):
                assert key in self.known
                self.specs.pop(key, None)
            case EndWarm(key, outcome):
                assert key in self.asked, "an answer that nobody waits for"
                self.asked.discard(key)
                assert outcome != "ready" or self.machine.pools[key].is_warm
            case Note(key) | RecordColdStart(key):
                assert key in self.known or key.startswith(STANDBY_PREFIX)

    @staticmethod
    def has_reason(id: str, commands: list[Command]) -> bool:
        return any(isinstance(one, Note) and id in one.text.split() for one in commands)

    def check_placements(self, commands: list[Command]) -> None:
        """Check launches and assignments in decision order. A standby belongs to a pool from its
        assignment on, even before the replica was told."""
        new = {c.id for c in commands if isinstance(c, Launch) and c.role != "standby"}
        assert not new & self.book.ever, "an id was given twice"
        there = {id: self.machine.replica(id) for id in self.book.standbys()}
        given = {id for id, one in there.items() if one and one.role != "standby"}
        named = [one.text.split() for one in commands if isinstance(one, Note)]
        for words in named:
            for id in (new | given) & set(words):
                replica = self.replica(id)
                if id in given:
                    device = self.book.devices[replica.device]
                    place = "" if device.kind == "cpu" else device.id
                    assert self.book.entries[id].device == place
                self.check_start()
                self.check_placed(id, replica.pool, replica.device)
                new.discard(id)
                given.discard(id)
        assert not new | given, "placed without a reason"

    def check_standbys(self, commands: list[Command]) -> None:
        """The number of standbys never exceeds the setting."""
        for command in commands:
            if isinstance(command, Launch) and command.role == "standby":
                assert command.id not in self.book.ever, "an id was given twice"
                assert self.has_reason(command.id, commands)
                self.check_start()
                assert command.device not in self.cordoned
                self.book.stand_by(command.id, command.device)
                there = [self.replica(id).state for id in self.book.standbys(command.device)]
                most = self.gpu_standbys if command.device else self.standbys
                assert len(there) - there.count(State.RELEASING) <= most
                bank = self.book.bank_of(self.book.entries[command.id])
                size_mib = max(d.memory_mib for d in self.book.devices.values() if d.bank == bank)
                assert not size_mib or self.book.used_mib(bank) + RESERVE_MIB <= size_mib + 1e-9

    def check_start(self) -> None:
        assert self.is_list_read, "started on a half-known world"
        assert not self.machine.stopping
        assert not self.is_engine_down

    def check_placed(self, id: str, key: str, device: str) -> None:
        """Each placement is for a wanted pool, on a device with room, within the function's
        `max`."""
        spec = self.specs[key]
        assert device not in self.cordoned, f"{id} was put on a cordoned device"
        if spec.device_kind == "any" and self.book.devices[device].kind == "cpu":
            assert not self.free_gpus(spec), f"{id} was put on a CPU slot"
        self.book.place(id, spec, device)
        assert spec.device_kind in ("any", self.book.devices[device].kind)
        self.placed.add(id)
        pool = self.machine.pools[key]
        if spec.role == "serve":
            # New settings reach the revisions of a function one after another.
            revisions = [pool, *self.machine.cluster.siblings(pool)]
            most = max(one.spec.max for one in revisions)
            most += sum(one.warming is not None and one.warming.beside for one in revisions)
            assert sum(one.count() for one in revisions) <= most

    def free_gpus(self, spec: PoolSpec) -> list[str]:
        """Return the GPUs that have room for a pool and are not reserved."""
        reservations = {*self.machine.cluster.ledger.reservations, *self.cordoned}
        reservations |= {
            reservation.device for reservation in self.reservations.values() if reservation
        }
        gpus = (one for one in self.book.devices.values() if one.kind != "cpu")
        return [
            one.id
            for one in gpus
            if one.id not in reservations and self.book.has_room(one, spec, frozenset())
        ]

    def check_drain(self, drain: Drain) -> None:
        """A conditional drain (if idle) needs a pool without load; an unconditional one needs a
        reason."""
        key = self.replica(drain.id).pool
        if drain.if_idle_s is not None:
            load = self.machine.cluster.demand.load(key)
            assert load.queued + load.in_flight == 0, "a busy replica was asked to go"
            return
        is_unwanted = key not in self.specs or self.machine.stopping
        is_left = self.replica(drain.id).device in self.cordoned and self.machine.is_open
        is_swap = self.is_swap(drain.id) and not self.specs[key].is_server
        assert is_unwanted or is_left or self.is_surplus(key) or is_swap

    def is_surplus(self, key: str) -> bool:
        pool = self.machine.pools[key]
        serving = sum(one.state is State.READY for one in pool.replicas.values())
        return serving >= max(1, pool.wanted)

    def is_swap(self, id: str) -> bool:
        """Return whether the replica is preempted for a pool that waited long enough, after it
        served long enough."""
        victim = self.machine.pools[self.replica(id).pool]
        for pool in self.machine.pools.values():
            if pool in self.claims(id) or (id in pool.asked and pool.reservation is not None):
                patience = TRIAL_PREEMPT_AFTER_S if pool.spec.role == "trial" else PREEMPT_AFTER_S
                has_waited = self.now - self.unserved[pool.key] >= patience
                stay_s = self.residency_s(victim) if victim.spec.is_server else RESIDENCY_S
                has_served = self.now - self.book.entries[id].ready_s >= stay_s
                return has_waited and has_served and victim.staying() >= victim.spec.min
        return False

    @staticmethod
    def residency_s(pool: Pool) -> float:
        """Return how long an idle replica is kept."""
        load_s = pool.reload_s or pool.spec.load_s
        if pool.spec.is_server:
            return sorted((10.0, load_s, 300.0))[1]
        return min(10.0, load_s)

    def check_release(self, id: str) -> None:
        """A release needs a reason: the replica ended, is overdue, is a trial or standby, lost its
        device, or is unwanted and has no model yet."""
        replica = self.replica(id)
        ended = isinstance(self.event, events.Lost) and self.event.id == id
        missing = isinstance(self.event, events.EngineBack) and (
            id not in self.event.running or self.before.get(id) == "releasing"
        )
        unwanted = replica.pool not in self.specs or self.machine.stopping
        # An adopted replica may be serving although it has not connected yet.
        is_cordoned = replica.device in self.cordoned and not replica.adopted
        has_begun = self.before.get(id, State.STARTING) != "starting"
        idle = (unwanted or is_cordoned) and not has_begun
        is_nowhere = replica.device not in ("", *self.book.devices)
        is_gone = self.cordoned.get(replica.device, False) or is_nowhere
        ended_itself = ended or missing or is_gone or id in self.late
        assert ended_itself or replica.role in ("trial", "standby") or idle

    # Invariants over all commands of an event

    def check_starts(self, commands: list[Command]) -> None:
        """One start at a time from zero, never more than `max`, never during a back-off."""
        starts = [c.pool for c in commands if isinstance(c, Launch) and c.role != "standby"]
        for key, count in Counter(starts).items():
            pool, spec = self.machine.pools[key], self.specs[key]
            assert pool.count() <= (1 if spec.role == "trial" else spec.max)
            assert pool.is_warm or count <= max(1, spec.min)
            assert self.now >= pool.retry_at_s

    def check_stops(self, commands: list[Command]) -> None:
        """If every conditional drain succeeds, each pool keeps its `min`. A pool warmed beside its
        siblings never evicts them."""
        for command in commands:
            if isinstance(command, Drain) and command.if_idle_s is not None:
                pool = self.machine.pools[self.replica(command.id).pool]
                assert pool.staying() >= pool.spec.min
        for pool in self.machine.pools.values():
            is_new = pool.reservation is not None and pool.reservation is not self.reservations.get(
                pool.key
            )
            if pool.reservation and is_new and pool.warming and pool.warming.beside:
                kept = {id for one in self.machine.cluster.siblings(pool) for id in one.replicas}
                assert not kept & set(pool.reservation.victims)

    def check_steps(self) -> None:
        """Every state change is in the transition table; a record disappears only by Released."""
        now = {r.id: r.state for r in self.machine.replicas()}
        for id, state in self.before.items():
            assert now.get(id, State.STOPPED) in after(state)
            assert id in now or self.event == events.Released(id)

    def check_published(self, commands: list[Command]) -> None:
        """The published endpoints of a pool equal its current ones. Only the end of a back-off,
        which no event marks, may be published by the next tick."""
        for command in commands:
            if isinstance(command, Publish):
                assert not any(key.startswith(STANDBY_PREFIX) for key in command.keys)
                for key in command.keys:
                    self.shown.pop(key, None)
                    if key in self.machine.pools:
                        self.shown[key] = self.machine.endpoints(key, self.now)
        pools = {k: p for k, p in self.machine.pools.items() if p.spec.role != "standby"}
        assert pools.keys() == self.shown.keys()
        for key, pool in pools.items():
            is_late = pool.failures and not isinstance(self.event, events.Tick)
            assert is_late or self.machine.endpoints(key, self.now) == self.shown[key]

    def check_blame(self, failures: dict[str, int]) -> None:
        """Failures count against a pool only if the pool caused them, and never while the engine is
        down."""
        event = self.event
        is_fault = not isinstance(event, events.DeviceLost | events.DeviceBack | events.Found)
        if isinstance(event, events.Lost):
            is_fault = event.is_its_fault
        if isinstance(event, events.Lost) and self.before.get(event.id) == "standby":
            is_fault = False
        if self.is_engine_down or not is_fault:
            for key, pool in self.machine.pools.items():
                assert pool.failures <= failures.get(key, 0)

    # Invariants after a tick

    def check_progress(self) -> None:
        """Every wanted replica exists, has a reservation, or its pool states what blocks it."""
        if self.machine.stopping or not self.machine.is_open:
            return
        for key, spec in self.specs.items():
            pool = self.machine.pools[key]
            if self.machine.cluster.demand.load(key).queued and not pool.is_warm:
                assert pool.wanted >= 1
            assert spec.role != "trial" or not self.is_unplaceable(spec)
            if pool.count() >= pool.wanted:
                assert pool.reservation is None
                assert key not in self.machine.cluster.blocked
            elif self.is_engine_down or self.now < pool.retry_at_s:
                assert pool.reservation is None
            elif pool.reservation is not None:
                victims = [self.machine.replica(id) for id in pool.reservation.victims]
                has_waited = self.now - self.unserved.get(key, self.now) >= PREEMPT_AFTER_S
                is_leaving = any(one and one.is_leaving for one in victims)
                assert is_leaving or (has_waited and all(victims)), "a stale claim"
            else:
                assert pool.blocked
                self.check_no_room(pool, spec)

    def is_unplaceable(self, spec: PoolSpec) -> bool:
        """Return whether every suitable device is cordoned."""
        able = [d for d in self.book.devices.values() if spec.device_kind in ("any", d.kind)]
        return bool(able) and all(device.id in self.cordoned for device in able)

    def check_no_room(self, pool: Pool, spec: PoolSpec) -> None:
        """No device has room for the pool, not even without the replicas that may be evicted. The
        memory of standbys is always available."""
        siblings = [r for one in self.machine.cluster.siblings(pool) for r in one.replicas.values()]
        siblings = [one for one in siblings if one.state is not State.RELEASING]
        reservations = sum(
            one.reservation is not None for one in self.machine.cluster.siblings(pool)
        )
        if spec.role == "serve" and len(siblings) + reservations + pool.count() >= spec.max:
            if pool.warming and pool.warming.beside:
                return
            is_leaving = any(one.state is State.DRAINING for one in siblings)
            assert is_leaving or not {one.id for one in siblings} & self.idle()
            return
        claimed = {self.book.devices[id].bank for id in self.machine.cluster.ledger.reservations}
        devices = [
            one
            for one in self.book.devices.values()
            if one.bank not in claimed and one.id not in self.cordoned
        ]
        standbys = {id for id in self.book.standbys() if self.replica(id).is_coming}
        idle = self.idle()
        for group in chain.from_iterable(combinations(idle, n) for n in range(len(idle) + 1)):
            taken = Counter(self.replica(id).pool for id in group)
            pools = self.machine.pools
            if all(n <= pools[k].staying() - pools[k].spec.min for k, n in taken.items()):
                gone = frozenset(group) | standbys
                fit = [one.id for one in devices if self.book.has_room(one, spec, gone)]
                assert not fit, f"{pool.key}: {pool.blocked}; without {group} it fits on {fit}"

    def idle(self) -> set[str]:
        """Return the replicas that may be asked to drain."""
        found = set()
        for replica in self.machine.replicas():
            pool = self.machine.pools[replica.pool]
            load = self.machine.cluster.demand.load(pool.key)
            is_idle = replica.state is State.READY and not load.queued + load.in_flight
            has_refused = self.now - self.refused.get(replica.id, -1.0) < REFUSAL_S
            stayed_s = self.now - self.book.entries[replica.id].ready_s
            if stayed_s < self.residency_s(pool):
                continue
            if is_idle and not has_refused and pool.staying() > pool.spec.min:
                found.add(replica.id)
        return found

    def replica(self, id: str) -> Replica:
        replica = self.machine.replica(id)
        assert replica is not None, f"a command for the unknown replica {id}"
        return replica

    # Permanent invariants

    @invariant()
    def records_agree(self) -> None:
        """A device is occupied from the launch until the replica is released."""
        assert {r.id: r.device for r in self.machine.replicas()} == self.book.where()

    @invariant()
    def refuted_pools_never_batch(self) -> None:
        """No ready replica of a pool that must not batch has batching on."""
        for replica in self.machine.replicas():
            pool = self.machine.pools[replica.pool]
            if replica.state is State.READY and replica.role == "serve" and not pool.batches:
                assert not replica.batches

    @invariant()
    def assigned_standbys_are_bound(self) -> None:
        """A standby assigned while it was starting receives its model once it connects."""
        for replica in self.machine.replicas():
            entry = self.book.entries[replica.id]
            is_early = replica.state in (State.STARTING, State.RELEASING)
            assert entry.is_standby or entry.is_told or is_early

    @invariant()
    def cordoned_devices_are_evacuated(self) -> None:
        """Replicas on a removed device are being released; replicas on a cordoned device are
        drained, unless they were adopted and have not reported yet."""
        for replica in self.machine.replicas():
            is_here = replica.device in ("", *self.book.devices)
            assert is_here or replica.state is State.RELEASING
            if replica.device not in self.cordoned or replica.state is State.RELEASING:
                continue
            assert not self.cordoned[replica.device]
            is_found = replica.adopted and replica.is_coming
            is_going = replica.state is State.DRAINING and not replica.is_listed
            assert is_going or is_found or not self.machine.is_open
        assert self.machine.cordons().keys() == self.cordoned.keys()
        assert not self.machine.cluster.ledger.reservations.keys() & self.cordoned.keys()

    @invariant()
    def reservations_agree(self) -> None:
        """A device is reserved exactly as long as a pool's reservation names it."""
        pools = self.machine.pools
        reservations = [
            pool.reservation
            for pool in pools.values()
            if pool.reservation and pool.reservation.device
        ]
        assert self.machine.cluster.ledger.reservations == {
            reservation.device: reservation for reservation in reservations
        }
        assert all(key in self.specs for key, pool in pools.items() if pool.reservation)

    @invariant()
    def soft_drains_are_claimed(self) -> None:
        """A server finishes its exchanges only for a pool that still needs its room."""
        for replica in self.machine.replicas():
            if replica.is_quiesced:
                assert self.claims(replica.id), f"{replica.id} makes room for nobody"

    @invariant()
    def wanted_is_within_bounds(self) -> None:
        """After a decision every pool wants at least `min` and at most `max` replicas."""
        if self.machine.stopping or not self.machine.is_open:
            return
        for key, spec in self.specs.items():
            least, most = (1, 1) if spec.role == "trial" else (spec.min, spec.max)
            assert least <= self.machine.pools[key].wanted <= most
