"""The state machine of all hosts: `handle(event, now)` changes the records and returns commands.

`handle` finishes one event before the next one begins. Only the machine changes a record, so it
needs no lock and never reads a stale record. The steps of `handle` are numbered in its docstring
and in its code.

The table lists what each event changes and the commands that it causes directly. Every event also
settles the pools that it touched, which causes Launch, Assign, Drain, Quiesce, Resume, EndWarm and
Note. Changed endpoints are then published to gateways.

    event             changes                                  direct commands
    ----------------  ---------------------------------------  -----------------------------------
    PoolDefined       the pool's settings                      StopBatching
    PoolRemoved       marks the pool; its replicas drain
    WarmRequested     marks the pool as to be warmed           EndWarm, if the pool is unknown
    WarmCancelled     removes that mark
    ParkRequested     parks idle replicas above `min`          Park
    UnparkRequested   as WarmRequested
    SleepRequested    drains idle replicas above `min`         Drain
    UnloadRequested   as Sleep-, and marks the pool's others   Drain
    CauseRemoved      failures and back-off of a pool
    DemandReported    a worker's load, load windows, uses
    WorkerLost        removes the worker's load
    Found             records an adopted replica               Release, if it cannot be kept
    ReplicasListed    nothing; decisions may begin
    Begun             the replica's deadline
    Starting          the same, and what its host does
    Greeted           STARTING -> STANDBY -> LOADING; a        Bind, or Assign for a bound standby;
                      replica of another host is known again   what `_restore_link` sends
    Probed            what the probes of a start meet          EndTrial, for one without progress
    FetchReported     how far a start's fetch of files is
    Loaded            LOADING -> READY; a trial ends           EndTrial + Release; RecordRefutation;
                                                               Resume, if it is an adopted server;
                                                               a build ends: EndBuild + Release
    Upgraded          the session of a replica                 RecordNotCompiled, if it failed
    BatchingRefuted   the pool stops batching                  RecordRefutation, StopBatching
    FirstRun          the cold start is complete               RecordColdStart
    NotIdle           DRAINING or PARKING -> READY
    ParkAnswered      PARKING: the engine sleeps, or it ends   ProvePark, or Release
    ParkProven        PARKING -> PARKED; frees the device      Release, if it keeps too much
    ParkRefuted       PARKING or PARKED -> RELEASING           Release
    UnparkAnswered    UNPARKING -> VERIFYING, or it ends       Verify, or Release + RecordWake
    Verified          VERIFYING -> READY, or it ends           RecordWake, Release
    Observed          READY -> DRAINING, if it must be replaced  Quiesce, RecordReplacement,
                                                               AskSample, KeepLearnt
    SampleAnswered    as Observed, if an idle server is wrong  Quiesce
    Lost              any state -> RELEASING; back-off         Release, EndTrial, EndBuild,
                                                               RecordColdStart
                      refused: the pool is placed anew, the
                      devices take nothing for a while         EndTrial
    Released          RELEASING -> STOPPED; frees the device
    NotReleased       keeps the device charged                 Release, after RELEASE_RETRY_S
    EngineLost        suspends starts on the host              WatchEngine
    EngineBack        ends replicas that are missing           Release
    HostDefined       the host's settings; begins or ends
                      its drain
    HostUp            the host -> UP; its devices; replicas    Release; what `_restore_link` sends
                      that are missing end
    MemoryRead        what the host can spare for parks
    HostUnreachable   the host -> UNREACHABLE; its replicas
                      are unknown; its trials end
    HostRemoved       the host drains, then it is forgotten    Abandon, if forced
    HostStocked       what the host has already
    DeviceLost        cordons the device, then step (3)        Drain or Release, EndTrial
    DeviceBack        uncordons the device
    Tick              removes silent workers; deadlines; ends  Terminate, Release
                      refusals;
                      hosts that are away become GONE
    Shutdown          suspends starts; all replicas drain
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf

from pool_manager.core import events
from pool_manager.core.cluster import Cluster
from pool_manager.core.commands import Command, EndWarm, Publish
from pool_manager.core.contacts import Contacts
from pool_manager.core.cordons import Cordons, Refusals
from pool_manager.core.host_lifecycle import HostLifecycle
from pool_manager.core.hosts import HOST_LOST_S
from pool_manager.core.park.parks import Parks
from pool_manager.core.pool import Pool, Warming
from pool_manager.core.replacement import Replacements
from pool_manager.core.replicas import ReplicaLifecycle
from pool_manager.core.scaling import wanted
from pool_manager.core.state import Device, Replica, State
from pool_manager.core.supply import FORCED, UNLOADED, Supply
from registry.exchange import PoolEndpoints
from registry.model.hosts import Ability

ADOPTION_S = 3.0
"""After a start, decisions begin with the first gateway's report or after this many seconds."""


PARK_EVENTS = (
    events.ParkAnswered,
    events.ParkProven,
    events.ParkRefuted,
    events.UnparkAnswered,
    events.Verified,
)
LOAD_EVENTS = (events.Tick, events.DemandReported, events.WorkerLost)
"""Events that change no setting and no replica of a pool, but its load and the time."""


class Machine:
    """State machine for all pools and devices of all hosts.

    `devices` and `abilities` are those of the local host. `new_id` generates replica ids; ids in
    use are skipped. The machine keeps `standbys` replicas without a model ready for the CPU slots
    of each host, and `gpu_standbys` on each GPU. A host that is unreachable for `host_lost_s` is
    GONE.
    """

    def __init__(
        self,
        devices: Iterable[Device],
        new_id: Callable[[], str],
        standbys: int = 0,
        gpu_standbys: int = 0,
        *,
        host_lost_s: float = HOST_LOST_S,
        abilities: frozenset[Ability] = frozenset(),
    ) -> None:
        self.cluster = Cluster(devices, abilities, host_lost_s)
        self.stopping = False
        self._replicas = ReplicaLifecycle(self.cluster)
        self._refusals = Refusals(self.cluster)
        self._parks = Parks(self.cluster, self._replicas)
        self._replacements = Replacements(self.cluster, self._replicas)
        self._contacts = Contacts(self.cluster, self._replicas, self._parks)
        self._hosts = HostLifecycle(self.cluster, self._contacts, standbys, gpu_standbys)
        self._cordons = Cordons(self.cluster, self._replicas)
        self._supply = Supply(
            self.cluster, self._replicas, self._parks, lambda: self.cluster.unused_id(new_id)
        )
        self._list_read_s: float | None = None
        self.is_open = False
        self._published: dict[str, PoolEndpoints] = {}

    @property
    def pools(self) -> dict[str, Pool]:
        """Every pool by its key, including the pools of standbys."""
        return self.cluster.pools

    @property
    def devices(self) -> dict[str, Device]:
        """Every device of every host."""
        return self.cluster.ledger.devices

    def first_device(self, devices: Iterable[str]) -> Device | None:
        """Return the first of these devices that is known, None if none is. All devices of a
        replica are of one kind and type."""
        return next((self.devices[one] for one in devices if one in self.devices), None)

    def handle(
        self, event: events.Event, now: float, commands: list[Command] | None = None
    ) -> list[Command]:
        """Apply `event` to the records at `now` (monotonic seconds); return the commands.

        (1) The event changes records. A Tick also terminates or releases overdue replicas. CPU
            slots of replicas that run nothing any more are free.
        (2) Decisions begin, for all pools, the first time that enough is known after a start.
        (3) Cordoned devices and draining hosts are evacuated; removed hosts are forgotten.
        (4) Every touched pool is settled; the pool that has waited longest comes first. After each,
            soft drains that no reservation needs any more are revoked. If one gives up its claim on
            a device, those before it are settled again: otherwise the claim would always go to one
            of those after it.
        (5) Changed endpoints are published.

        Commands are appended to `commands`, if that is passed. An exception in the event or in one
        pool does not prevent the other pools from being settled: all exceptions are raised at the
        end as one ExceptionGroup, and `commands` then holds everything that is still to be done.
        """
        commands = [] if commands is None else commands
        self._supply.forget()
        defects: list[Exception] = []
        try:
            touched = self._supply.slots.free(self._apply(event, now, commands))  # (1)
            if not self.is_open and self._may_open(now):  # (2)
                self.is_open = True
                touched |= self.pools.keys()
            if self.cluster.ledger.cordons or self.cluster.ledger.closed:  # (3)
                touched |= self._cordons.evacuate(now, commands, is_open=self.is_open)
                self._cordons.end_unplaceable(touched if self.is_open else set(), commands)
                touched |= self._hosts.forget_removed(now, commands)
        except Exception as error:  # noqa: BLE001 - raised below
            defects.append(error)
            touched = set(self.cluster.live) | self.cluster.blocked
        settled: list[str] = []
        ledger, is_load = self.cluster.ledger, isinstance(event, LOAD_EVENTS)
        for key in self._settling_order(touched):  # (4)
            if is_load and self._is_steady(key, now):
                touched.discard(key)
                continue
            ledger.take_given_up()
            self._settle_safely(key, now, commands, defects)
            if settled and ledger.take_given_up():
                for earlier in settled:
                    self._settle_safely(earlier, now, commands, defects)
            if key in self.cluster.blocked:
                settled.append(key)
        self._publish(touched, now, commands, defects)  # (5)
        if defects:
            raise ExceptionGroup(f"defects in handling {type(event).__name__}", defects)
        return commands

    def _settle_safely(
        self, key: str, now: float, commands: list[Command], defects: list[Exception]
    ) -> None:
        try:
            if pool := self.pools.get(key):
                self._settle(pool, now, commands)
                if not self.stopping:  # who finishes for another pool is to end now
                    self._replicas.revoke_unclaimed(now, commands)
        except Exception as error:  # noqa: BLE001 - raised at the end of `handle`
            defects.append(error)

    def endpoints(self, key: str, now: float) -> PoolEndpoints:
        """Return the endpoints of a pool as gateways see them."""
        return self.cluster.endpoints(self.pools[key], now)

    def due_s(self, now: float) -> float:
        """Return when a blocked pool needs a Tick; infinite if the regular Ticks suffice."""
        due_s = self._supply.evictor.due_s
        return due_s if due_s > now and self.cluster.blocked else inf

    def replica(self, id: str) -> Replica | None:
        """Return the record of a replica that is not yet stopped, else None."""
        return self.cluster.find(id)

    def replicas(self) -> list[Replica]:
        """Return every replica that is not yet stopped."""
        return list(self.cluster.replicas())

    @property
    def is_stopped(self) -> bool:
        """Whether the shutdown is complete: no replica is left that can be ended. Those on hosts
        that are unreachable end by themselves, without a manager, or are adopted by a later one."""
        return self.stopping and not any(one.is_reachable for one in self.cluster.replicas())

    def _apply(self, event: events.Event, now: float, commands: list[Command]) -> set[str]:
        """Apply an event to the records; return the keys of the pools to be settled."""
        match event:
            case events.PoolDefined() | events.PoolRemoved():
                return self._on_definition(event, commands)
            case events.DemandReported() | events.WorkerLost():
                return self._on_demand(event, now)
            case events.Tick():
                return self._on_tick(now, commands)
            case (
                events.WarmRequested()
                | events.WarmCancelled()
                | events.SleepRequested()
                | events.ParkRequested()
                | events.UnparkRequested()
                | events.UnloadRequested()
                | events.CauseRemoved()
            ):
                return self._on_request(event, now, commands)
            case events.ReplicasListed() | events.Shutdown():
                return self._on_start_or_stop(event, now)
            case (
                events.EngineLost()
                | events.EngineBack()
                | events.HostDefined()
                | events.HostUp()
                | events.MemoryRead()
                | events.HostUnreachable()
                | events.HostRemoved()
                | events.HostStocked()
            ):
                return self._hosts.apply(event, now, commands)
            case events.DeviceLost() | events.DeviceBack():
                return self._cordons.apply(event)
            case events.Found() | events.Greeted():
                return self._on_contact(event, now, commands)
            case _:
                return self._on_replica(event, now, commands)

    def _on_contact(
        self, event: events.Found | events.Greeted, now: float, commands: list[Command]
    ) -> set[str]:
        if isinstance(event, events.Greeted):
            return self._contacts.greet(event, now, commands)
        self._hosts.expect(event.host, now)
        return self._contacts.adopt(event, now, commands)

    def _on_replica(self, event: events.Event, now: float, commands: list[Command]) -> set[str]:
        """Apply an event about one replica. A new one may have taken the place of a server that
        does not work any more."""
        if isinstance(event, events.Observed):
            return self._replacements.observe(event, now, commands)
        if isinstance(event, events.SampleAnswered):
            return self._replacements.sampled(event, now, commands)
        if isinstance(event, PARK_EVENTS):
            return self._parks.apply(event, now, commands)
        if isinstance(event, events.Lost) and event.refused_s:
            refused = self._refusals.apply(event, now, commands)
            return refused | self._replicas.apply(event, now, commands)
        touched = self._replicas.apply(event, now, commands)
        if isinstance(event, events.Loaded):
            if event.life is not State.READY:
                self._parks.take_over(event, now, commands)
            for key in touched & self.pools.keys():
                self._replacements.finish(self.pools[key], now, commands)
        return touched

    def _on_start_or_stop(
        self, event: events.ReplicasListed | events.Shutdown, now: float
    ) -> set[str]:
        if isinstance(event, events.ReplicasListed):
            self._list_read_s = now
            return set()
        self.stopping = True
        return set(self.pools)

    def _on_definition(
        self, event: events.PoolDefined | events.PoolRemoved, commands: list[Command]
    ) -> set[str]:
        if isinstance(event, events.PoolDefined):
            pool = self.cluster.define(event.spec)
            self._replicas.stop_batching(pool, commands)
            return {pool.key}
        if event.key in self.pools:
            self.pools[event.key].removed = True
        return {event.key}

    def _on_demand(self, event: events.DemandReported | events.WorkerLost, now: float) -> set[str]:
        """Record a worker's load; return the pools to be settled.

        Only full reports are samples for the load windows; partial reports only wake pools. When a
        pool becomes idle, the blocked pools are settled too, since they may evict its replicas.
        """
        is_sample = False
        if isinstance(event, events.WorkerLost):
            named = self.cluster.demand.remove(event.worker)
        else:
            named = self.cluster.demand.update(event.demand, now)
            is_sample = event.demand.full
            for key in self.pools.keys() & set(event.demand.called):
                self.pools[key].record_call(now)
        self._measure(named, now, is_sample=is_sample)
        is_room = not all(self.cluster.demand.is_busy(key) for key in named)
        return named | self.cluster.blocked if is_room else named

    def _measure(self, keys: set[str], now: float, *, is_sample: bool) -> None:
        """Record the load of these pools in their load windows."""
        for key in keys & self.pools.keys():
            load, scaler = self.cluster.demand.load(key), self.pools[key].scaler
            note = scaler.observe if is_sample else scaler.hold
            note(load.busy, now)

    def _on_request(
        self,
        event: events.WarmRequested
        | events.WarmCancelled
        | events.SleepRequested
        | events.ParkRequested
        | events.UnparkRequested
        | events.UnloadRequested
        | events.CauseRemoved,
        now: float,
        commands: list[Command],
    ) -> set[str]:
        """Apply an operator's, a deploy's or a client's request to warm a pool, put it to sleep or
        try it again."""
        pool = self.pools.get(event.key)
        if pool is None:
            if isinstance(event, events.WarmRequested | events.UnparkRequested):
                commands.append(EndWarm(event.key, "failed", "no such pool"))
            return set()
        if isinstance(event, events.WarmRequested | events.UnparkRequested):
            is_beside = isinstance(event, events.WarmRequested) and event.beside
            pool.warming = Warming(is_beside, pool.failures)
            pool.unloading = ""
        elif isinstance(event, events.WarmCancelled):
            pool.warming = None
        elif isinstance(event, events.CauseRemoved):
            pool.forget_failures()
        else:
            self._on_rest(pool, event, now, commands)
        return {event.key}

    def _on_rest(
        self,
        pool: Pool,
        event: events.SleepRequested | events.ParkRequested | events.UnloadRequested,
        now: float,
        commands: list[Command],
    ) -> None:
        """Apply a request to stop or park a pool's idle replicas."""
        force = isinstance(event, events.SleepRequested) and event.force
        if pool.replicas and isinstance(event, events.UnloadRequested):
            pool.unloading = UNLOADED
        elif pool.replicas and force:
            pool.unloading = FORCED
        if not self.is_open:
            return
        if isinstance(event, events.ParkRequested):
            self._supply.park(pool, now, commands)
        else:
            self._supply.sleep(pool, now, commands, force=force)

    def _on_tick(self, now: float, commands: list[Command]) -> set[str]:
        """Enforce deadlines; return the pools that have load or that time alone may change."""
        touched = self.cluster.demand.active() | self.cluster.blocked
        touched |= self._refusals.expire(now)
        self._supply.slots.resume()
        if self.cluster.parked and self.is_open:
            self._parks.fit(now, commands)
        for key in self._hosts.tick(now, commands):
            touched.add(key)
            self.cluster.steady.pop(key, None)
        for worker in self.cluster.demand.silent_workers(now):
            held = self.cluster.demand.remove(worker)
            self._measure(held, now, is_sample=False)
            touched |= held
        pools = self.cluster.pools
        for key in list(self.cluster.live):
            pool = pools[key]
            if now < pool.quiet_until_s:
                continue
            touched.add(key)
            for replica in list(pool.replicas.values()):
                self._replicas.enforce_deadline(replica, now, commands)
        return touched

    def _may_open(self, now: float) -> bool:
        """Whether enough is known after a start to decide: the driver's list has been read, and a
        gateway has reported or ADOPTION_S has passed."""
        if self._list_read_s is None:
            return False
        return not self.cluster.demand.is_empty or now - self._list_read_s >= ADOPTION_S

    def _settling_order(self, keys: set[str]) -> list[str]:
        """Return pools in the order of settling: the one that has waited longest gets a freed
        device first; those that do not wait follow, by key; builds come last."""
        waiting, others = [], []
        builds = sorted(keys & self.cluster.build_pools.keys())
        for key in keys.difference(builds):
            pool = self.pools.get(key)
            if pool is None or pool.unserved_since_s is None:
                others.append(key)
            else:
                waiting.append((pool.unserved_since_s, key))
        return [*(key for _, key in sorted(waiting)), *sorted(others), *builds]

    def _is_steady(self, key: str, now: float) -> bool:
        """Whether settling a pool would change nothing: it had load and needed no command when it
        was settled last, its replicas have not changed since (`Cluster.steady`), it still has load,
        and it still wants as many replicas for the same reason. Records the load, as settling
        would."""
        ready = self.cluster.steady.get(key)
        if ready is None or self.stopping:
            return False
        pool, load = self.pools[key], self.cluster.demand.load(key)
        if not load.busy:
            return False
        is_same = (pool.wanted, pool.wanted_reason) == wanted(
            pool.spec, load, pool.scaler, ready, now, is_fresh=True
        )
        if is_same:
            pool.last_used_s = now
            pool.warm_s = now if ready else pool.warm_s
        return is_same

    def _settle(self, pool: Pool, now: float, commands: list[Command]) -> None:
        """Start, stop or drain replicas of one pool."""
        load = self.cluster.demand.load(pool.key)
        pool.observe_load(load.queued, load.in_flight, load.oldest_wait_s, now)
        if self.stopping or pool.removed:
            why = "the server is shutting down" if self.stopping else "the pool was removed"
            self._supply.drain_all(pool, why, now, commands)
            if pool.removed and not pool.replicas:
                self.cluster.forget(pool)
                return
        elif self.is_open:
            count = len(commands)
            self._supply.settle(pool, now, commands)
            self._mark_steady(pool, load.busy, has_changed=len(commands) > count)
        self._schedule(pool, load.busy, now)

    def _mark_steady(self, pool: Pool, busy: int, *, has_changed: bool) -> None:
        """Mark a pool with load as steady if no time matters to it: it waits for no room, and it
        has a ready replica, or one that starts after no failure."""
        waits = pool.blocked or pool.warming or pool.reservation or pool.has_paused
        ready = pool.ready()
        is_coming = any(one.is_coming for one in pool.replicas.values())
        is_served = ready or (is_coming and not pool.failures)
        if busy and is_served and pool.spec.role == "serve" and not (has_changed or waits):
            self.cluster.steady[pool.key] = ready
        else:
            self.cluster.steady.pop(pool.key, None)

    def _schedule(self, pool: Pool, busy: int, now: float) -> None:
        """Set `quiet_until_s`, until which no Tick can change the pool; drop it from `live` if no
        Tick can ever change it."""
        spec = pool.spec
        retries = now < pool.retry_at_s
        is_live = pool.replicas or spec.min or retries or pool.warming
        if not (is_live or spec.role != "serve"):
            self.cluster.live.pop(pool.key, None)
            if not busy:
                pool.scaler.forget()
            return
        self.cluster.live[pool.key] = None
        pool.quiet_until_s = 0.0
        is_coming = any(one.is_coming or one.is_expected for one in pool.replicas.values())
        is_moving = busy or is_coming or pool.blocked or pool.warming or spec.role != "serve"
        if is_moving or pool.count() < spec.min or len(pool.replicas) > max(1, spec.min):
            return
        due_s = [pool.retry_at_s] if retries else []
        if spec.park is not None and pool.parks.retry_s > now:
            due_s.append(pool.parks.retry_s)
        for one in pool.replicas.values():
            due_s.append(one.deadline_s)
            idle_s = pool.idle_s(one, now)
            if pool.counts(one) and idle_s < pool.keep_s:
                due_s.append(now + pool.keep_s - idle_s)
        pool.quiet_until_s = min(due_s, default=float("inf"))

    def _publish(
        self, touched: set[str], now: float, commands: list[Command], defects: list[Exception]
    ) -> None:
        changed = set()
        for key in touched | self.cluster.changed:
            try:
                if self._has_changed(key, now):
                    changed.add(key)
            except Exception as error:  # noqa: BLE001 - the caller raises it
                defects.append(error)
        self.cluster.changed.clear()
        if changed:
            commands.append(Publish(frozenset(changed)))

    def _has_changed(self, key: str, now: float) -> bool:
        """Record a pool's endpoints as published; True if they differ from the last ones."""
        pool = self.pools.get(key)
        if pool is not None and pool.spec.role == "standby":
            return False
        shown = self.endpoints(key, now) if pool is not None else None
        before = self._published.pop(key, None)
        if shown is not None:
            self._published[key] = shown
        return shown != before
