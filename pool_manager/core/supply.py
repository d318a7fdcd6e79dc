"""Supply: starts and stops replicas until each pool has its wanted number, also of standbys and of
builds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pool_manager.core import trial_room
from pool_manager.core.cluster import Cluster, StandbyPlace
from pool_manager.core.commands import Command, EndTrial, EndWarm, Launch, Note, WarmOutcome
from pool_manager.core.eviction import GIVEN_UP, Evictor
from pool_manager.core.ledger import Need
from pool_manager.core.park.parks import Parks
from pool_manager.core.placement import (
    EvictionPlan,
    devices_by_preference,
    find_devices,
    kept_devices,
    placement_obstacle,
)
from pool_manager.core.pool import JUST_USED_S, Pool
from pool_manager.core.replicas import ReplicaLifecycle
from pool_manager.core.scaling import wanted
from pool_manager.core.slots import Slots
from pool_manager.core.state import Replica, State
from registry.exchange import Load, place_of

KEEPERS_MAX = 16
"""Functions named as those that keep devices."""

PATIENCE: Final = 4.0
"""A wake is waited for this many times as long as a start takes. A start keeps devices from others
for as long: with 1 all wait a third longer; without a limit callers of a parked replica would wait
in vain while its devices are busy."""
REFILL_AFTER_S = 2.0
"""A used standby is replaced once no cold start is in progress, at the latest after this long."""

UNLOADED = "unloaded by a client"
"""Why replicas drain after `UnloadRequested`."""
FORCED = "put to sleep by force"
"""Why replicas drain after `SleepRequested` with `force`."""


class Builds:
    """Starts builds, and ends them for standbys; other pools end them by eviction.

    A build is the lowest in the ledger: it waits for a spare device (`_find`). It evicts nothing,
    uses no standby, counts for no `max`, and has one replica at most: however that ends, the build
    is over.
    """

    def __init__(
        self,
        cluster: Cluster,
        replicas: ReplicaLifecycle,
        evictor: Evictor,
        new_id: Callable[[], str],
    ) -> None:
        self._cluster = cluster
        self._replicas = replicas
        self._evictor = evictor
        self._new_id = new_id

    def settle(self, pool: Pool, now: float, commands: list[Command]) -> None:
        """Start the replica of a build if a device is spare, else wait."""
        if pool.replicas:
            return
        pool.wanted, pool.wanted_reason = 1, "its model is compiled"
        if closure := self._cluster.closure():
            self._evictor.block(pool, f"nothing can be started: {closure}", commands)
            return
        need = self._cluster.need(pool)
        device, reason = self._find(need)
        if not device:
            self._evictor.block(pool, f"a build uses only spare devices: {reason}", commands)
            return
        self._evictor.unblock(pool)
        host = self._cluster.ledger.devices[device].host
        replica = Replica(self._new_id(), pool.key, (device,), "build", now, host=host)
        self._replicas.add(replica, now)
        commands.append(Launch(replica.id, pool.key, replica.devices, "build", {}, host))
        commands.append(Note(pool.key, f"starts {replica.id} on {device}: {pool.wanted_reason}"))

    def _find(self, need: Need) -> tuple[str, str]:
        """Return the best spare device, or "" and why there is none: no replica is on it, its bank
        has room (`Ledger.fits`), and nothing else is to have it (`_claim`)."""
        ledger, claim = self._cluster.ledger, ""
        for device in devices_by_preference(need, ledger):
            if ledger.fits(device, need):
                this_claim = self._claim(device, need)
                if not this_claim:
                    return device, ""
                claim = claim or this_claim
        return "", claim or placement_obstacle(need, ledger)

    def _claim(self, device: str, need: Need) -> str:
        """Return what else is to have a device that has room, "" if nothing.

        (1) The memory is for standbys that are yet to be started.
        (2) A pool waits that could be placed there. It would end the build as soon as it may start,
            for instance after a back-off.
        """
        ledger, blocked = self._cluster.ledger, self._cluster.blocked
        bank = ledger.devices[device].bank
        if need.memory_mib > ledger.free_mib(bank, need.pool) - self._missing_mib(bank):  # (1)
            return "the memory is for standbys that are yet to be started"
        for key in sorted(blocked - self._cluster.build_pools.keys()):  # (2)
            other = self._cluster.need(self._cluster.pools[key])
            if ledger.fits_kind(device, other) and ledger.can_hold(device, other):
                return f"{key} waits for a device"
        return ""

    def _missing_mib(self, bank: str) -> float:
        """Return the MiB of a bank for standbys that are yet to be started."""
        missing_mib = 0.0
        for key, place in self._cluster.standby_places.items():
            pool = self._cluster.pools[key]
            there, each_mib = self._cluster.standby_charge(place.device, place.host)
            if there == bank:
                missing_mib += each_mib * max(0, pool.spec.max - pool.count())
        return missing_mib

    def end_for_standby(
        self, pool: Pool, place: StandbyPlace, now: float, commands: list[Command]
    ) -> None:
        """End builds whose memory keeps a standby from being started, the newest first; none if
        that would not make room, or if others are ending already that make it."""
        ledger = self._cluster.ledger
        bank, need_mib = self._cluster.standby_charge(place.device, place.host)
        gone = [one.id for one in self._cluster.builds() if one.is_leaving]
        victims: list[Replica] = []
        running = [one for one in self._cluster.builds() if one.is_coming]
        running.sort(key=lambda one: one.since_s)
        while ledger.free_mib(bank, pool.key, gone) < need_mib:
            if not running:
                return
            victims.append(running.pop())
            gone.append(victims[-1].id)
        for one in victims:
            self._replicas.drain(one, None, f"{GIVEN_UP} for a standby", now, commands)


class Standbys:
    """Keeps standbys ready for cold starts. `new_id` returns ids that no replica has."""

    def __init__(
        self,
        cluster: Cluster,
        replicas: ReplicaLifecycle,
        builds: Builds,
        new_id: Callable[[], str],
    ) -> None:
        self._cluster = cluster
        self._replicas = replicas
        self._new_id = new_id
        self._builds = builds
        self._missing_since_s: dict[str, float] = {}

    def settle(self, pool: Pool, now: float, commands: list[Command]) -> None:
        """Start one standby if any is missing; drain those above the pool's `max`."""
        place, there = self._cluster.standby_places[pool.key], self._cluster.standbys(pool.key)
        for replica in there[pool.spec.max :]:
            self._replicas.drain(replica, None, "surplus standby", now, commands)
        if pool.count() >= pool.spec.max:
            self._missing_since_s.pop(pool.key, None)
            return
        has_waited = now - self._missing_since_s.setdefault(pool.key, now) >= REFILL_AFTER_S
        if now < pool.retry_at_s or not self._is_open(place):
            return
        if not self._has_room(pool, place):
            self._builds.end_for_standby(pool, place, now, commands)
            return
        if has_waited or not self._is_cold_start_going_on():
            id = self._new_id()
            devices, host = place.devices, place.host
            replica = Replica(id, pool.key, devices, "standby", now, is_bound=False, host=host)
            self._replicas.add(replica, now)
            commands.append(Launch(replica.id, "", devices, "standby", {}, host))
            commands.append(Note(pool.key, f"starts {replica.id} for the next cold start"))

    def _is_open(self, place: StandbyPlace) -> bool:
        ledger = self._cluster.ledger
        bank, _ = self._cluster.standby_charge(place.device, place.host)
        is_claimed = ledger.claim is not None and place.device in ledger.claim.devices
        is_barred = is_claimed or place.device in (*ledger.cordons, *ledger.refusals)
        return bool(bank) and not (is_barred or place.host in ledger.closed)

    def _has_room(self, pool: Pool, place: StandbyPlace) -> bool:
        bank, memory_mib = self._cluster.standby_charge(place.device, place.host)
        return self._cluster.ledger.free_mib(bank, pool.key) >= memory_mib

    def _is_cold_start_going_on(self) -> bool:
        there = self._cluster.replicas()
        return any(one.is_coming for one in there if one.role not in ("standby", "build"))


class Supply:
    """Brings one pool at a time to its wanted number of replicas. `new_id` returns unused ids."""

    def __init__(
        self,
        cluster: Cluster,
        replicas: ReplicaLifecycle,
        parks: Parks,
        new_id: Callable[[], str],
    ) -> None:
        self._cluster = cluster
        self._replicas = replicas
        self._parks = parks
        self._new_id = new_id
        self.evictor = Evictor(cluster, replicas, parks)
        self._builds = Builds(cluster, replicas, self.evictor, new_id)
        self._standbys = Standbys(cluster, replicas, self._builds, new_id)
        self.slots = Slots(cluster, replicas, self.evictor)

    def forget(self) -> None:
        """Drop what was derived for one event."""
        self.evictor.candidates.forget()
        self.slots.forget()

    def settle(self, pool: Pool, now: float, commands: list[Command]) -> None:
        """Give CPU slots to ready replicas, start missing ones, answer a request for a warm pool,
        stop surplus replicas. While all ready ones wait for a slot, no more are started."""
        if pool.spec.role == "standby":
            self._standbys.settle(pool, now, commands)
            return
        if pool.spec.role == "build":
            self._builds.settle(pool, now, commands)
            return
        if self._cluster.parked:
            self._parks.settle(pool, now, commands)
        load = self._cluster.demand.load(pool.key)
        self._update_wanted(pool, load, now, commands)
        waits = self.slots.settle(pool, load, now, commands)
        while not waits and pool.count() < pool.wanted and self._place(pool, now, commands):
            pass
        if pool.warming is not None and self._answer_warming(pool, now, commands):
            self._update_wanted(pool, load, now, commands)
        if not waits and pool.count() >= pool.wanted:
            self._end_wait(pool, load, commands)
        self._stop_surplus(pool, load, now, commands)

    def _end_wait(self, pool: Pool, load: Load, commands: list[Command]) -> None:
        """The pool has the wanted number of replicas, or may not have more while one on another
        host may still run: then it waits without a reservation."""
        doubtful = pool.doubtful()
        is_needed = load.busy or pool.warming or pool.spec.min
        if doubtful is not None and is_needed and not pool.is_warm:
            self._cluster.unreserve(pool)
            self.evictor.block(pool, self._cluster.await_end(doubtful), commands)
        elif pool.reservation or pool.blocked:
            self.evictor.unblock(pool)

    def drain_all(self, pool: Pool, why: str, now: float, commands: list[Command]) -> None:
        """Drain every replica of a pool that was removed, or that the shutdown ends."""
        self.evictor.unblock(pool)
        if pool.warming is not None:
            self._end_warm(pool, "failed", why, commands)
        for replica in list(pool.replicas.values()):
            # A draining replica that might have served again may no longer do so.
            if replica.is_listed or replica.is_coming or replica.is_resting:
                self._replicas.drain(replica, None, why, now, commands)

    def sleep(self, pool: Pool, now: float, commands: list[Command], *, force: bool) -> None:
        """Drain the idle replicas above `min` now; each may refuse if it has just been used. With
        `force` they may not, and those with calls in flight drain as well. So do those that start,
        unless a deploy or an operator waits for one and there is no `force`. Parked ones end with
        `force` alone."""
        load = self._cluster.demand.load(pool.key)
        if load.busy and not force:
            return
        text, if_idle_s = pool.unloading or "put to sleep", None if force else JUST_USED_S
        for replica in list(pool.replicas.values()):
            # An adopted replica may be serving although it has not connected yet.
            is_new = replica.is_coming and not replica.adopted
            is_start = is_new and (pool.warming is None or force)
            is_able = (replica.is_ready or is_start) and pool.staying() > pool.spec.min
            if is_able or (force and replica.is_parked):
                self._replicas.drain(replica, if_idle_s, text, now, commands)

    def park(self, pool: Pool, now: float, commands: list[Command]) -> None:
        """Park the idle replicas above `min` now, as an operator asks for; each may refuse if it
        has just been used. Those that cannot be parked stay."""
        is_busy = self._cluster.demand.is_busy(pool.key)
        for replica in [one for one in pool.replicas.values() if one.is_ready]:
            why = "it is called" if is_busy else "its revision has no park"
            if pool.staying() <= pool.spec.min:
                why = "the min of its function keeps it"
            elif pool.spec.park is not None and not is_busy:
                self._parks.ask(replica, "asked for", now, commands)
                continue
            commands.append(Note(pool.key, f"{replica.id} is not parked: {why}"))

    def _update_wanted(self, pool: Pool, load: Load, now: float, commands: list[Command]) -> None:
        spec = pool.spec
        used = max([pool.last_used_s, *(r.last_used_s for r in pool.replicas.values())])
        is_coming = any(one.is_coming or one.is_expected for one in pool.replicas.values())
        is_kept = is_coming or (pool.count() > 0 and now - used < pool.keep_s)
        is_fresh = is_kept or pool.warming is not None
        if pool.unloading and pool.replicas and not pool.staying():
            # Calls in flight are answered by replicas that drain; only a new one is held.
            load = Load(load.queued, 0, load.oldest_wait_s)
        count, reason = wanted(spec, load, pool.scaler, pool.ready(), now, is_fresh=is_fresh)
        if count != pool.wanted:
            noun = "replica" if count == 1 else "replicas"
            commands.append(Note(pool.key, f"wants {count} {noun}: {reason}"))
        pool.wanted, pool.wanted_reason = count, reason

    def _place(self, pool: Pool, now: float, commands: list[Command]) -> bool:
        """Start one more replica of a pool or make room for it; True if one was started.

        (1) Nothing may be started: no host can take it or a back-off lasts. The pool's reservation
            is released, so that another pool can use the device in the meantime.
        (2) A device has room, or as many as are needed, and the function is below its `max`: start
            there. A parked replica wakes instead, on its own devices (`_way`); what follows makes
            room there.
        (3) The end of builds alone makes room: end them, whatever else leaves for the pool.
        (4) A server of the pool does not answer any more: end it, and wait for its place.
        (5) Victims of the pool's reservation are still leaving: wait for them. If they finish long
            exchanges first, ask others that may be gone sooner.
        (6) Other revisions take the function to its `max`, and one of their replicas is draining,
            or may run on an unreachable host: wait.
        (7) Idle replicas can make room: reserve the device and drain the cheapest set; each of
            them may refuse. At `max` that is the cheapest replica of the other revisions.
        (8) The pool may preempt (it has no replica, and has waited for PREEMPT_AFTER_S; a trial
            waits longer): pause those whose turn on a CPU slot is over (`Slots.plan`); else drain
            busy replicas that are past their residency; servers only if other replicas do not
            suffice, and softly.
        (9) As (8), but no sufficient set is past its residency at the same time: reserve the
            devices anyway; if it needs several, and too few can be, make the standing claim.
            Otherwise pools that need only one victim would keep replacing these replicas one by
            one, and this pool would wait for ever.
        (10) A trial has waited long enough: drain a replica of its own function, or end it.
        (11) Wait; `pool.blocked` is the reason.
        """
        evictor, candidates = self.evictor, self.evictor.candidates
        if obstacle := self._obstacle(pool, now):  # (1)
            evictor.replan(pool, now, may_claim=False)
            evictor.block(pool, obstacle, commands)
            evictor.wake_at(max(pool.retry_at_s, now), now)
            return False
        need, parked = self._way(pool, now)
        others, is_full = evictor.other_revisions(pool)
        devices = () if is_full else self._free(pool, need)
        if devices:  # (2)
            self._start(pool, devices, parked, now, commands)
            return True
        among = others if is_full else None
        if (
            not is_full and evictor.end_builds(pool, need, now, commands)  # (3)
        ) or evictor.end_condemned(pool, need, now, commands):  # (4)
            return False
        if evictor.is_evicting(pool):  # (5)
            evictor.hasten(pool, need, among, now, commands)
            return False
        evictor.replan(pool, now, may_claim=not is_full)
        if is_full and (text := self._awaited(others)):  # (6)
            evictor.block(pool, text, commands)
            return False
        plan = evictor.plan(pool, need, candidates.idle, among, now)  # (7)
        is_idle = plan is not None
        if plan is None and evictor.may_preempt(pool, now):
            plan = self._plan_turn(pool, need, among, now)  # (8)
            if plan is None and not is_full:
                self._reserve(pool, need, now)  # (9)
        if plan is not None:
            evictor.execute(pool, need, plan, JUST_USED_S if is_idle else None, now, commands)
        elif pool.spec.role == "trial" and trial_room.is_over(pool, now):  # (10)
            self._end_trial_wait(pool, need, now, commands)
        else:  # (11)
            self._block(pool, need, commands, is_full=is_full)
        return False

    def _way(self, pool: Pool, now: float) -> tuple[Need, Replica | None]:
        """Return what a pool needs, and its parked replica that is to wake, None if another one is
        to start.

        (1) The one whose devices are free soonest.
        (2) That takes PATIENCE times as long as a start, or calls have waited for as long, and
            another one can be started elsewhere, beside idle victims at most.
        """
        start = self._cluster.need(pool)
        if not self._cluster.parked:
            return start, None
        evictor = self.evictor
        there = [one for one in pool.replicas.values() if one.is_parked]
        if not there:
            return start, None
        free_s = {one.id: evictor.until_free_s(one, now) for one in there}
        parked = min(there, key=lambda one: (free_s[one.id], one.id))  # (1)
        need = self._cluster.wake_need(pool, parked)
        since_s = now if pool.unserved_since_s is None else pool.unserved_since_s
        late_s = max(free_s[parked.id], now - since_s)
        is_late = late_s >= PATIENCE * pool.start_s and not self._free(pool, need)
        idle = evictor.candidates.idle
        if is_late and (self._free(pool, start) or evictor.plan(pool, start, idle, None, now)):
            return start, None  # (2)
        return need, parked

    def _free(self, pool: Pool, need: Need) -> tuple[str, ...]:
        """Return the best devices that have room for a need now, none if there are too few."""
        return find_devices(need, self._cluster.ledger, self.evictor.reusable(pool, need))

    def _plan_turn(
        self, pool: Pool, need: Need, among: list[Replica] | None, now: float
    ) -> EvictionPlan | None:
        """Case 8 of `_place`; with `among`, only `max` is in the way."""
        plan = self.slots.plan(pool, need, now) if among is None else None
        return plan or self.evictor.plan_preemption(pool, need, among, now)

    def _reserve(self, pool: Pool, need: Need, now: float) -> None:
        """Case 9 of `_place`."""
        self.evictor.reserve(pool, need, now)
        if pool.reservation is None and need.count == 1:
            self.slots.reserve(pool, need, now)

    def _end_trial_wait(self, pool: Pool, need: Need, now: float, commands: list[Command]) -> None:
        """Drain a replica of the function that a trial is for, or end the trial."""
        plan = self.evictor.plan_own(pool, need)
        if plan is not None:
            pool.made_room = trial_room.made_room_text(self._cluster, pool, plan.victims, now)
            self.evictor.execute(pool, need, plan, None, now, commands)
            return
        text = trial_room.no_room_text(self._cluster, pool, need, now)
        commands.append(EndTrial(pool.key, {}, trial_room.STAGE, text))
        pool.removed = True

    def _block(self, pool: Pool, need: Need, commands: list[Command], *, is_full: bool) -> None:
        """Let a pool wait, for one of its own replicas if it `is_full`, else for a device."""
        if is_full:
            text = f"max is {pool.spec.max}, reached by replicas of other revisions"
            self.evictor.block(pool, text, commands)
            return
        ledger = self._cluster.ledger
        kept = kept_devices(need, ledger, self._cluster.keepers(pool))
        owners = sorted(set().union(*kept.values()))[:KEEPERS_MAX]
        text = placement_obstacle(need, ledger, len(kept))
        # Only deploys read the reason of a trial, and they may know the names of functions.
        if pool.spec.role == "trial" and (held := trial_room.holders(self._cluster, need)):
            text += f": {held}"
        elif tried := trial_room.trials(self._cluster, need):
            text += f"; on {tried} the trial of a deploy runs, which ends by itself"
        self.evictor.block(pool, text, commands, owners)

    def _obstacle(self, pool: Pool, now: float) -> str:
        """Return why the pool may start nothing, even on a free device; "" if it may."""
        if closure := self._cluster.closure():
            return f"nothing can be started: {closure}"
        if now >= pool.retry_at_s:
            return ""
        if pool.refusals:
            return f"refused {pool.refusals} times in a row, next try soon: {pool.last_error}"
        if pool.failures:
            return f"failed starts in a row: {pool.failures}, next try soon: {pool.last_error}"
        return f"the last replica was lost, next try soon: {pool.last_error}"

    def _awaited(self, others: list[Replica]) -> str:
        """Return which of these replicas ends by itself or may have ended, "" if none."""
        for one in others:
            if one.may_run or not one.is_reachable:
                return self._cluster.await_end(one)
            if one.state is State.DRAINING:
                return f"waits for {one.id} of {one.pool} to drain"
        return ""

    def _start(
        self,
        pool: Pool,
        devices: tuple[str, ...],
        parked: Replica | None,
        now: float,
        commands: list[Command],
    ) -> None:
        """Wake a parked replica if there is one to wake; else start one: assign a standby, a
        waiting one before a starting one, or launch a new process if there is none."""
        phases = _phases(pool, now)
        pool.unloading = ""
        self.evictor.unblock(pool)
        if parked is not None:
            self._parks.wake(parked, phases, now, commands)
            return
        is_able = pool.spec.uses_standbys
        replica = self._cluster.next_standby(devices[0]) if is_able else None
        if replica is not None:
            how = "wakes standby"
            replica.phases = dict(phases)
            commands += self._replicas.assign(replica, pool, devices, now)
        else:
            how = "starts"
            id, role = self._new_id(), pool.spec.role
            host = self._cluster.ledger.devices[devices[0]].host
            replica = Replica(id, pool.key, devices, role, now, phases=phases, host=host)
            self._replicas.add(replica, now)
            commands.append(Launch(id, pool.key, replica.devices, role, phases, host))
            self._parks.pass_over(pool, id)
        replica.waiting_since_s = pool.waiting_since_s
        replica.last_used_s = now
        text = f"{how} {replica.id} on {place_of(devices)}: {pool.wanted_reason}"
        commands.append(Note(pool.key, text))

    def _stop_surplus(self, pool: Pool, load: Load, now: float, commands: list[Command]) -> None:
        """Drain the ready replicas above the wanted number, the newest first, and those that have
        been idle for `keep_s`; the latter may refuse. They count as gone, since all may agree."""
        if pool.spec.role == "trial":
            return
        ready = [one for one in pool.replicas.values() if one.is_ready]
        is_idle = not load.busy
        ready.sort(key=lambda one: one.ready_s)
        for replica in reversed(ready):
            if pool.staying() <= pool.spec.min:
                return
            if is_idle and pool.idle_s(replica, now) >= pool.keep_s:
                idle = f"idle for {pool.idle_s(replica, now):.0f} s"
                text, keep_s = pool.unloading or idle, pool.keep_s
                if pool.unloading or not self._parks.rest(replica, keep_s, text, now, commands):
                    self._replicas.drain(replica, keep_s, text, now, commands)
            elif self._serving(pool) > max(1, pool.wanted):
                self._replicas.drain(replica, None, pool.wanted_reason, now, commands)

    @staticmethod
    def _serving(pool: Pool) -> int:
        return sum(one.is_ready for one in pool.replicas.values())

    def _answer_warming(self, pool: Pool, now: float, commands: list[Command]) -> bool:
        """Answer a request for a warm pool once a replica is ready, a start failed, or there is no
        room; True if answered. A draining replica does not count as ready. The pool counts as used
        now, since its replica might otherwise be stopped at once."""
        assert pool.warming is not None
        if self._serving(pool):
            pool.last_used_s = now
            self._end_warm(pool, "ready", pool.wanted_reason, commands)
        elif pool.failures > pool.warming.failures or pool.is_failing(now):
            self._end_warm(pool, "failed", pool.last_error, commands)
        elif pool.warming.beside and not pool.count() and pool.reservation is None:
            self._end_warm(pool, "no_room", pool.blocked, commands)
        return pool.warming is None

    @staticmethod
    def _end_warm(pool: Pool, outcome: WarmOutcome, reason: str, commands: list[Command]) -> None:
        pool.warming = None
        commands.append(EndWarm(pool.key, outcome, reason))


def _phases(pool: Pool, now: float) -> dict[str, float]:
    """Return the phases of a cold start so far, in milliseconds: `place` is the first caller's wait
    for a device, without `evict`, the time in which the reserved device was cleared."""
    phases = {}
    if pool.waiting_since_s is not None:
        phases["place"] = (now - pool.waiting_since_s) * 1e3
    if pool.reservation is not None:
        # The callers that caused the eviction may have left before this caller arrived.
        since_s = max(pool.reservation.since_s, pool.waiting_since_s or 0.0)
        phases["evict"] = (now - since_s) * 1e3
        phases["place"] = max(0.0, phases.get("place", 0.0) - phases["evict"])
    return phases
