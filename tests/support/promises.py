"""Invariants of the pool machine, checked after every event."""

from __future__ import annotations

from collections import Counter
from itertools import chain, combinations

from hypothesis.stateful import RuleBasedStateMachine, invariant

from pool_manager.core import events
from pool_manager.core.cluster import STANDBY_PREFIX
from pool_manager.core.commands import (
    Abandon,
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
    StopBatching,
    Terminate,
)
from pool_manager.core.cordons import REFUSED_MAX_S
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
from pool_manager.core.trial_room import is_called
from registry.exchange import PoolEndpoints
from tests.support.book import Book, host_of
from tests.support.host_links import HostLinks


def after(state: State) -> set[State]:
    """Return the states reachable from `state` in any number of steps."""
    found, todo = {state}, [state]
    while todo:
        new = set(TRANSITIONS[todo.pop()].values()) - found
        found |= new
        todo += new
    return found


COMMANDED = (Assign, Bind, Drain, Quiesce, Resume, StopBatching, Terminate, Release)
RESTORING = (Drain, Quiesce, Resume, Terminate)
"""Commands that are repeated over a new link to a replica."""


def is_exclusive(spec: PoolSpec | None) -> bool:
    """Return whether replicas of a pool must not be doubled while they may run."""
    if spec is None or spec.role != "serve":
        return False
    return spec.is_server or not spec.may_rerun


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
        self.barred: dict[str, float] = {}
        """Until when refused devices take no new replica, at least."""
        self.shown: dict[str, PoolEndpoints] = {}
        self.asked: set[str] = set()
        self.unserved: dict[str, float] = {}
        self.refused: dict[str, float] = {}
        self.drained: dict[str, float] = {}
        self.is_list_read = False
        self.links = HostLinks()

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
        self.claim = self.machine.cluster.ledger.claim
        failures = {key: pool.failures for key, pool in self.machine.pools.items()}
        self.write_down(event)
        self.links.write_down(event, self.book, self.before, self.now)
        commands = self.machine.handle(event, self.now)
        due = self.twin.handle(event, self.now)
        assert commands == due, f"slept through: {[one for one in due if one not in commands]}"
        self.write_slots()
        self.placed: set[str] = set()
        # Assignments first: an assigned replica no longer counts as a standby.
        self.check_placements(commands)
        self.check_standbys(commands)
        self.write_abandoned(commands)
        for host in self.links.forget_hosts(self.book):
            for name in [one for one in self.book.devices if host_of(one) == host]:
                del self.book.devices[name]
                self.cordoned.pop(name, None)
                self.barred.pop(name, None)
        for id in self.placed:
            for device in self.book.entries[id].devices:
                is_full = self.book.is_overcommitted(self.book.devices[device])
                assert not is_full, f"{id} was one too many"
                assert self.barred.get(device, 0.0) <= self.now, f"{device} was refused"
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
            case events.Lost(id, refused_s=seconds) if seconds and self.before.get(id):
                self.write_refusal(id, seconds)

    def write_refusal(self, id: str, seconds: float) -> None:
        """Record that the devices of a replica take no new one for a while."""
        if self.before[id] is State.RELEASING:
            return
        for device in self.replica(id).devices:
            if device in self.book.devices:
                until_s = self.now + min(seconds, REFUSED_MAX_S)
                self.barred[device] = max(until_s, self.barred.get(device, 0.0))

    def write_slots(self) -> None:
        """Record which replicas on CPUs are kept without a slot. One that has a slot while it is
        ready is called; one without is called only while it is paused, or where no turns are taken.
        One that ends keeps the slot that it has; a single event may free its slot and end it."""
        cluster = self.machine.cluster
        for replica in self.machine.replicas():
            entry = self.book.entries.get(replica.id)
            has_ended = not replica.is_unready and self.before.get(replica.id) != replica.state
            may_change = replica.state is State.READY or has_ended
            if entry is None or not may_change or not cluster.is_on_cpu(replica):
                continue
            was_kept, entry.is_kept = entry.is_kept, not cluster.ledger.has_slot(replica.id)
            entry.devices = replica.devices
            is_called = cluster.demand.load(replica.pool).busy
            if not replica.is_ready:
                assert entry.is_kept == was_kept or not is_called
                continue
            assert entry.is_kept or is_called
            is_closed = replica.host in cluster.ledger.closed or not self.machine.is_open
            is_ending = self.machine.stopping or self.machine.pools[replica.pool].removed
            is_paused = replica.is_paused or is_closed or is_ending
            assert not entry.is_kept or not is_called or is_paused

    def write_abandoned(self, commands: list[Command]) -> None:
        """Only replicas of hosts that were removed by force are abandoned; those that must not be
        doubled, once nothing there takes calls."""
        for command in commands:
            if isinstance(command, Abandon):
                entry = self.book.entries.pop(command.id)
                link = self.links.hosts[entry.host]
                assert not link.is_up
                assert link.is_forced or (link.is_removed and not link.epoch)
                spec = self.specs.get(entry.pool)
                assert not is_exclusive(spec) or link.is_gone(self.now)
                self.links.forget(command.id)

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
        if isinstance(command, COMMANDED):
            host = self.replica(command.id).host
            assert self.links.is_up(host), f"{command} to a host that cannot be reached"
        if isinstance(command, RESTORING) and self.is_repeated(command):
            self.check_restored(command)
            return
        match command:
            case Assign(id, pool, devices):
                entry = self.book.entries[id]
                assert not entry.is_told, "a standby was given two models"
                assert (entry.pool, entry.devices) == (pool, devices)
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

    def check_restored(self, command: Drain | Quiesce | Resume | Terminate) -> None:
        """Over a new link, a replica gets again the commands that its record implies, and no
        others."""
        replica = self.replica(command.id)
        assert not replica.is_unknown
        match command:
            case Drain(_, if_idle_s):
                assert if_idle_s is None
                self.drained.setdefault(command.id, self.now)
            case Quiesce(id):
                assert self.claims(id)
            case Terminate():
                assert replica.terminated
            case Resume():
                assert replica.is_returning or self.before[command.id] == "ready"

    def is_repeated(self, command: Drain | Quiesce | Resume | Terminate) -> bool:
        """Whether a command only repeats an earlier one to the replica."""
        is_old = self.before[command.id] == "draining" or isinstance(command, Resume)
        return is_old and self.has_new_link(command.id)

    def has_new_link(self, id: str) -> bool:
        """Whether the event is a new link to the replica: what was sent over the last one may be
        lost."""
        is_greeting = isinstance(self.event, events.Greeted) and self.event.id == id
        is_up = isinstance(self.event, events.HostUp) and id in self.event.running
        return is_greeting or (is_up and self.replica(id).has_greeted)

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
                if outcome == "ready":  # one that waits for a CPU slot is, too
                    pool = self.machine.pools[key]
                    assert pool.is_warm or any(one.is_ready for one in pool.replicas.values())
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
        texts = [one.text for one in commands if isinstance(one, Note)]
        # Other notes name replicas, too: a standby may be connected again and then assigned.
        named = [text.split() for text in texts if text.startswith(("starts ", "wakes "))]
        for words in named:
            for id in (new | given) & set(words):
                replica = self.replica(id)
                if id in given:
                    (device,) = (self.book.devices[one] for one in replica.devices)
                    places = () if device.kind == "cpu" else (device.id,)
                    assert self.book.entries[id].devices == places
                    assert self.book.entries[id].host == device.host, "a standby changed its host"
                (host,) = {host_of(device) for device in replica.devices}
                self.check_start(host)
                self.check_placed(id, replica.pool, replica.devices)
                new.discard(id)
                given.discard(id)
        assert not new | given, "placed without a reason"

    def check_standbys(self, commands: list[Command]) -> None:
        """The number of standbys never exceeds the setting."""
        for command in commands:
            if isinstance(command, Launch) and command.role == "standby":
                assert command.id not in self.book.ever, "an id was given twice"
                assert self.has_reason(command.id, commands)
                self.check_start(command.host)
                assert self.cordoned.keys().isdisjoint(command.devices)
                self.book.stand_by(command.id, command.devices, command.host)
                ids = self.book.standbys(command.devices, command.host)
                there = [self.replica(id).state for id in ids]
                most = self.gpu_standbys if command.devices else self.standbys
                assert len(there) - there.count(State.RELEASING) <= most
                (bank,) = self.book.banks_of(self.book.entries[command.id])
                size_mib = max(d.memory_mib for d in self.book.devices.values() if d.bank == bank)
                assert not size_mib or self.book.used_mib(bank) + RESERVE_MIB <= size_mib + 1e-9

    def check_start(self, host: str) -> None:
        assert self.is_list_read, "started on a half-known world"
        assert not self.machine.stopping
        assert self.links.is_open(host), f"started on {host}, which is closed"

    def check_placed(self, id: str, key: str, devices: tuple[str, ...]) -> None:
        """Each placement is for a wanted pool, on devices with room, within the function's
        `max`."""
        spec = self.specs[key]
        assert self.cordoned.keys().isdisjoint(devices), f"{id} was put on a cordoned device"
        (kind,) = {self.book.devices[device].kind for device in devices}
        if spec.device_kind == "any" and kind == "cpu":
            assert not self.free_gpus(spec), f"{id} was put on a CPU slot"
        self.book.place(id, spec, devices)
        assert len({*devices}) == len(devices) == spec.count, f"{id} has a part of its devices"
        assert {host_of(device) for device in devices} == {self.replica(id).host}
        if spec.count > 1:
            assert kind == "cuda"
            assert list(devices) == sorted(devices)
        assert spec.device_kind in ("any", kind)
        self.placed.add(id)
        pool = self.machine.pools[key]
        if spec.role == "serve":
            # New settings reach the revisions of a function one after another.
            revisions = [pool, *self.machine.cluster.siblings(pool)]
            most = max(one.spec.max for one in revisions)
            most += sum(one.warming is not None and one.warming.beside for one in revisions)
            assert sum(one.count() for one in revisions) <= most
            if is_exclusive(spec):
                self.check_exclusive(revisions, most)

    def check_exclusive(self, revisions: list[Pool], most: int) -> None:
        """No replica is started while one that may still run would exceed `max`."""
        every = [one for pool in revisions for one in pool.replicas.values()]
        there = [one for one in every if one.role == "serve"]
        known = {one.id for one in there if not one.is_unknown and one.is_present}
        doubtful = {one.id for one in there} & self.links.in_doubt(self.now)
        assert len(known | doubtful) <= most, f"{doubtful} may still run"

    def free_gpus(self, spec: PoolSpec) -> list[str]:
        """Return the GPUs that have room for a pool and are neither reserved nor claimed, nor
        refused."""
        ledger = self.machine.cluster.ledger
        reservations = {*ledger.reservations, *self.cordoned, *ledger.refusals}
        for claim in (self.claim, self.machine.cluster.ledger.claim):
            reservations |= {*claim.devices} if claim is not None else set()
        reservations |= {
            device
            for reservation in self.reservations.values()
            if reservation
            for device in reservation.devices
        }
        gpus = [
            one
            for one in self.book.devices.values()
            if one.kind != "cpu" and self.links.is_open(one.host)
        ]
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
        replica = self.replica(drain.id)
        is_cordoned = not self.cordoned.keys().isdisjoint(replica.devices)
        is_cordoned = is_cordoned or self.links.is_leaving(replica.host)
        is_left = is_cordoned and self.machine.is_open
        asleep = isinstance(self.event, events.SleepRequested) and self.event.force
        is_left = is_left or (asleep and self.event.key == key)
        if not (is_unwanted or is_left or self.is_surplus(key) or self.is_ended_start(drain.id)):
            assert self.is_swap(drain.id)
            assert not self.specs[key].is_server

    def is_ended_start(self, id: str) -> bool:
        """Return whether a start may end without a failure: it was put to sleep, or it has loaded
        for far too long while nobody waits for it."""
        replica = self.replica(id)
        if replica.adopted or self.before.get(id) not in ("starting", "standby", "loading"):
            return False
        requests = events.SleepRequested, events.UnloadRequested
        if isinstance(self.event, requests) and self.event.key == replica.pool:
            return True
        load = self.machine.cluster.demand.load(replica.pool)
        return self.before[id] == "loading" and not load.busy

    def is_surplus(self, key: str) -> bool:
        pool = self.machine.pools[key]
        serving = sum(one.is_ready for one in pool.replicas.values())
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
        is_cordoned = not (replica.adopted or self.cordoned.keys().isdisjoint(replica.devices))
        is_cordoned = is_cordoned or self.links.is_leaving(replica.host)
        if isinstance(self.event, events.HostUp) and self.event.host == replica.host:
            missing = id not in self.event.running or self.before.get(id) == "releasing"
        has_begun = self.before.get(id, State.STARTING) != "starting"
        idle = (unwanted or is_cordoned) and not has_begun
        is_nowhere = not self.book.devices.keys() >= set(replica.devices)
        is_gone = any(self.cordoned.get(one, False) for one in replica.devices) or is_nowhere
        ended_itself = ended or missing or is_gone or id in self.late or self.is_ended_start(id)
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
            assert id in now or self.event == events.Released(id) or id not in self.book.entries

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
        is_fault = isinstance(event, events.Lost | events.Tick | events.Shutdown)
        if isinstance(event, events.Lost):
            is_fault = event.is_its_fault
        if isinstance(event, events.Lost) and self.before.get(event.id) == "standby":
            is_fault = False
        if isinstance(event, events.Lost) and (entry := self.book.entries.get(event.id)):
            is_fault = is_fault and self.links.is_well(entry.host)
        if not is_fault:
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
            if any(one.is_ready and one.is_paused for one in pool.replicas.values()):
                is_called = self.machine.cluster.demand.load(key).busy
                assert pool.is_warm or key in self.machine.cluster.blocked or not is_called
            elif pool.count() >= pool.wanted:
                assert pool.reservation is None
                assert key not in self.machine.cluster.blocked or pool.doubtful()
            elif not self.links.open_hosts() or self.now < pool.retry_at_s:
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
        kinds = ("any", "cpu") if spec.count == 1 else ()
        able = [d for d in self.book.devices.values() if spec.device_kind in ("any", d.kind)]
        able = [d for d in able if d.kind == "cuda" or spec.device_kind in kinds]
        return bool(able) and all(
            device.id in self.cordoned or self.links.is_lost(device.host, self.now)
            for device in able
        )

    def check_no_room(self, pool: Pool, spec: PoolSpec) -> None:
        """No device has room for the pool, not even without the replicas that may be evicted. The
        memory of standbys is always available."""
        siblings = [r for one in self.machine.cluster.siblings(pool) for r in one.replicas.values()]
        siblings = [one for one in siblings if self.takes_place(one)]
        reservations = sum(
            one.reservation is not None for one in self.machine.cluster.siblings(pool)
        )
        if spec.role == "serve" and len(siblings) + reservations + pool.count() >= spec.max:
            if pool.warming and pool.warming.beside:
                return
            is_leaving = any(one.state is State.DRAINING or one.is_unknown for one in siblings)
            assert is_leaving or not {one.id for one in siblings} & self.idle()
            return
        claimed = {self.book.devices[id].bank for id in self.machine.cluster.ledger.reservations}
        devices = [
            one
            for one in self.book.devices.values()
            if one.bank not in claimed
            and one.id not in self.cordoned
            and one.id not in self.machine.cluster.ledger.refusals
            and self.links.is_open(one.host)
        ]
        if claim := self.machine.cluster.ledger.claim:
            need = self.machine.cluster.need(pool)
            devices = [one for one in devices if not claim.bars(one.id, need)]
        standbys = {id for id in self.book.standbys() if self.replica(id).is_coming}
        idle = self.idle()
        if spec.role == "trial" and not spec.evicts:
            pools = self.machine.pools
            idle = {id for id in idle if not is_called(pools[self.replica(id).pool], self.now)}
        for group in chain.from_iterable(combinations(idle, n) for n in range(len(idle) + 1)):
            taken = Counter(self.replica(id).pool for id in group)
            pools = self.machine.pools
            if all(n <= pools[k].staying() - pools[k].spec.min for k, n in taken.items()):
                gone = frozenset(group) | standbys
                fit = [one for one in devices if self.book.has_room(one, spec, gone)]
                there = Counter(one.host for one in fit)
                assert max(there.values(), default=0) < spec.count, (
                    f"{pool.key}: {pool.blocked}; without {group} it fits on {fit}"
                )

    def takes_place(self, replica: Replica) -> bool:
        """Whether a replica counts against the `max` of its function."""
        pool = self.machine.pools[replica.pool]
        is_draining = replica.state is State.DRAINING
        return pool.counts(replica) or (is_draining and (replica.is_reachable or pool.is_exclusive))

    def idle(self) -> set[str]:
        """Return the replicas that may be asked to drain."""
        found = set()
        for replica in self.machine.replicas():
            pool = self.machine.pools[replica.pool]
            load = self.machine.cluster.demand.load(pool.key)
            is_idle = replica.is_ready and not load.queued + load.in_flight
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
        assert {r.id: r.devices for r in self.machine.replicas()} == self.book.where()

    @invariant()
    def refuted_pools_never_batch(self) -> None:
        """No ready replica of a pool that must not batch has batching on."""
        for replica in self.machine.replicas():
            pool = self.machine.pools[replica.pool]
            if replica.is_ready and replica.role == "serve" and not pool.batches:
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
            entry = self.book.entries.get(replica.id)
            if not replica.is_reachable or (entry is not None and entry.is_kept):
                continue
            is_here = self.book.devices.keys() >= set(replica.devices)
            assert is_here or replica.state is State.RELEASING
            cordoned = self.cordoned.keys() & replica.devices
            if not cordoned or replica.state is State.RELEASING:
                continue
            assert not any(self.cordoned[device] for device in cordoned)
            is_found = replica.is_unknown or (replica.adopted and replica.is_coming)
            is_going = replica.state is State.DRAINING and not replica.is_listed
            assert is_going or is_found or not self.machine.is_open
        assert self.machine.cluster.ledger.cordons.keys() == self.cordoned.keys()
        assert not self.machine.cluster.ledger.reservations.keys() & self.cordoned.keys()

    @invariant()
    def exclusive_devices_have_one_replica(self) -> None:
        """At most, whatever share each needs."""
        for device in self.book.devices.values():
            there = [one for one in self.book.entries.values() if device.id in one.devices]
            assert not device.is_exclusive or len(there) <= 1

    @invariant()
    def refusals_end(self) -> None:
        """Each within REFUSED_MAX_S, on a device that is known, where nothing is reserved."""
        ledger = self.machine.cluster.ledger
        assert ledger.refusals.keys() <= self.book.devices.keys()
        assert not ledger.refusals.keys() & ledger.reservations.keys()
        assert all(one.until_s - self.now <= REFUSED_MAX_S for one in ledger.refusals.values())

    @invariant()
    def unknown_replicas_are_left_alone(self) -> None:
        """Only what is known is listed; what cannot be reached has no time limit; nothing on a
        host that drains is kept; nothing on a closed host is reserved."""
        for replica in self.machine.replicas():
            is_up = self.links.is_up(replica.host)
            assert replica.is_reachable == is_up, (replica.host, replica.contact)
            assert is_up or replica.deadline_s == float("inf")
            assert not replica.is_listed or not replica.is_unknown
            is_found = replica.is_unknown or (replica.adopted and replica.is_unready)
            is_kept = replica.is_listed or replica.is_coming
            if self.links.is_leaving(replica.host) and not is_found and self.machine.is_open:
                assert not is_kept or replica.state in (State.DRAINING, State.LOADING)
        for device in self.machine.cluster.ledger.reservations:
            assert self.links.is_open(host_of(device))
        assert self.machine.cluster.hosts.keys() == self.links.hosts.keys()

    @invariant()
    def reservations_agree(self) -> None:
        """A device is reserved exactly as long as a pool's reservation names it."""
        pools = self.machine.pools
        reservations = [
            pool.reservation
            for pool in pools.values()
            if pool.reservation and pool.reservation.devices
        ]
        assert self.machine.cluster.ledger.reservations == {
            device: reservation for reservation in reservations for device in reservation.devices
        }
        assert all(key in self.specs for key, pool in pools.items() if pool.reservation)

    @invariant()
    def the_standing_claim_has_an_owner(self) -> None:
        """The claim is that of a pool whose replicas take several devices and whose calls wait, on
        as many usable devices of one host as it needs."""
        ledger = self.machine.cluster.ledger
        if (claim := ledger.claim) is None:
            return
        pool = self.machine.pools[claim.pool]
        assert pool.blocked
        assert pool.unserved_since_s == claim.since_s
        assert len({*claim.devices}) == pool.spec.count == len(claim.devices)
        (host,) = {host_of(device) for device in claim.devices}
        assert self.links.is_open(host)
        assert self.cordoned.keys().isdisjoint(claim.devices)

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
