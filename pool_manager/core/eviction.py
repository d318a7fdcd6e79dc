"""Eviction: frees a device for a pool by stopping the cheapest replicas, in fair turns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from math import inf
from typing import Final

from pool_manager.core.candidates import Candidate, CandidateTable
from pool_manager.core.cluster import Cluster, IdleShape
from pool_manager.core.commands import Command, Note
from pool_manager.core.ledger import Need, Reservation, StandingClaim
from pool_manager.core.park.parks import Parks
from pool_manager.core.placement import (
    EvictionPlan,
    claimed_devices,
    plan_eviction,
)
from pool_manager.core.pool import JUST_USED_S, Pool, eviction_cost
from pool_manager.core.replicas import GAVE_WAY, ReplicaLifecycle
from pool_manager.core.state import Replica, State
from pool_manager.core.trial_room import called, own_candidates
from registry.exchange import place_of

RESIDENCY_S = 10.0
"""A busy replica is not drained for another pool until it has been ready for this long. An idle
replica is kept for as long as it took to load, at most this long."""
SERVER_RESIDENCY_MAX_S = 300.0
"""A server, idle or busy, is kept for as long as it took to start, from RESIDENCY_S to this long:
functions that take minutes to start would otherwise replace each other before they serve."""
REFUSAL_S = 1.0
"""A replica that refused a drain is not asked again for this long."""
NOT_ONLY_DISCOUNT = 1e-3
"""Cost factor of replicas that are not their pool's only one: losing one of several slows the pool,
losing the only one stops it."""
PREEMPT_AFTER_S = 5.0
"""A pool whose calls have waited unserved for this long may have busy replicas drained."""
TRIAL_PREEMPT_AFTER_S = 30.0
"""The same for a trial that evicts: a deploy is less urgent than a call. Any other trial drains no
busy replica but, at the end of its wait, that of its own function (`trial_room`)."""
EVICTED: Final = "evicted"
MAKES_ROOM = "finishes its open streams before it makes room"
GIVEN_UP = "its place is needed"
"""Prefix of the reason of an eviction: of an idle replica, of a busy server, of a build; that of a
busy replica is GAVE_WAY. Metrics match all but the last."""

Costs = Callable[[Pool, float], dict[str, float]]


class CandidateSet:
    """The replicas that one rule allows to stop. Computed once per event, since many pools may need
    them; recomputed for pools whose replicas have changed since."""

    def __init__(
        self,
        cluster: Cluster,
        of: Callable[[Pool, float], dict[str, Candidate]],
        *,
        is_idle: bool = False,
    ) -> None:
        """With `is_idle`, pools with load have none; `of` is not called for them."""
        self._cluster = cluster
        self._of = of
        self._is_idle = is_idle
        self._known: CandidateTable | None = None
        self._seen = 0

    def forget(self) -> None:
        """Drop the cached result; the next use computes it again."""
        self._known = None

    def all(self, now: float) -> CandidateTable:
        """Return every such replica."""
        cluster = self._cluster
        if self._known is None:
            self._known = CandidateTable(cluster.ledger)
            keys = list(cluster.live)
        else:
            keys = sorted(set(cluster.changed.log[self._seen :]) & cluster.live.keys())
            for key in keys:
                for id in cluster.pools[key].replicas:
                    self._known.discard(id)
        self._seen = len(cluster.changed.log)
        busy = cluster.demand.active() if self._is_idle else ()
        for key in keys:
            if key not in busy:
                for id, candidate in self._of(cluster.pools[key], now).items():
                    self._known.put(id, candidate)
        return self._known


class Candidates:
    """Which replicas of a pool may be stopped for another pool, and at what cost.

    (1) A trial: none.
    (2) Standbys and builds: all, at no cost.
    (3) A pool at its `min`: none. Any other pool: at most the number above `min`.
    (4) `idle`: the pool has no load. Replicas that have been ready for as long as they took to
        load (at most RESIDENCY_S) and have not refused within REFUSAL_S. One of them, which would
        be the last one left, costs the expected cold starts, each other one a thousandth of it. So
        does one that has loaded for longer than `Pool.overdue_s`: whoever called it has left, and
        it may never be ready.
    (5) `resident`: with or without load. Replicas that have been ready for RESIDENCY_S. The one
        that has served longest is the cheapest. All cost a thousandth if the pool has several.
        Of those that are paused, whose turn is still to come, the last to have run is the cheapest.
        `brief` are those without servers, whose exchanges may be long.
    (6) `eventual`: replicas that will be past RESIDENCY_S at some time; the sooner, the cheaper.
    (7) Parked ones: always, whatever the `min`. In (4) at what they save, else at a thousandth,
        unless calls wait for them.
    In (4) to (6), the residency of servers is that of `server_stay_s`.

    `wake_at(at_s, now)` is called with the time from which (4) allows a replica to be stopped.
    """

    def __init__(
        self, cluster: Cluster, parks: Parks, wake_at: Callable[[float, float], None]
    ) -> None:
        self._cluster = cluster
        self._parks = parks
        self._wake_at = wake_at
        self.idle = CandidateSet(cluster, self._idle, is_idle=True)
        self.resident = CandidateSet(cluster, partial(self._of, self._resident))
        self.brief = CandidateSet(cluster, partial(self._of, self._brief))
        self.eventual = CandidateSet(cluster, partial(self._of, self._eventual))

    def forget(self) -> None:
        """Drop the cached candidates: time has passed or an event occurred."""
        self.idle.forget()
        self.resident.forget()
        self.brief.forget()
        self.eventual.forget()

    def _of(self, costs: Costs, pool: Pool, now: float) -> dict[str, Candidate]:
        if pool.spec.role == "trial":  # (1)
            return {}
        if pool.spec.role == "standby":  # (2)
            standbys = self._cluster.standbys(pool.key)
            return {one.id: Candidate(pool.key, 0.0, len(standbys)) for one in standbys}
        if pool.spec.role == "build":  # (2)
            there = pool.replicas.values()
            return {one.id: Candidate(pool.key, 0.0, 1) for one in there if one.is_coming}
        spare = pool.staying() - pool.spec.min
        parked = _parked(pool) if self._cluster.parked else {}  # (7)
        if spare <= 0:  # (3)
            return parked
        found = {id: Candidate(pool.key, cost, spare) for id, cost in costs(pool, now).items()}
        return found | parked

    def _idle(self, pool: Pool, now: float) -> dict[str, Candidate]:  # (4)
        shape = self._cluster.shapes.get(pool.key)
        if shape is None:
            if pool.spec.role != "serve":
                return self._of(lambda _pool, _now: {}, pool, now)
            shape = self._cluster.shapes[pool.key] = _idle_shape(pool)
        found: dict[str, Candidate] = {}
        for id in shape.parked:  # (7)
            found[id] = Candidate(pool.key, self._parks.worth(pool, now), len(pool.replicas))
        if shape.spare <= 0 or not (shape.ready or shape.loading):  # (3)
            return found
        is_last = not pool.spec.min
        value = eviction_cost(pool.call_rate, shape.return_s, now)
        for id, free_s in shape.ready:
            if now < free_s:
                self._wake_at(free_s, now)
                continue
            cost = value if is_last else value * NOT_ONLY_DISCOUNT
            is_last = False
            found[id] = Candidate(pool.key, cost, shape.spare)
        for id, overdue_s in shape.loading:
            if now >= overdue_s:
                found[id] = Candidate(pool.key, value * NOT_ONLY_DISCOUNT, shape.spare)
            else:
                self._wake_at(overdue_s, now)
        return found

    def _resident(self, pool: Pool, now: float) -> dict[str, float]:  # (5)
        discount = NOT_ONLY_DISCOUNT if pool.staying() > 1 else 1.0
        stay_s = busy_residency_s(pool, self._parks)
        return {
            one.id: 1.0 - 1.0 / (now - served_since_s(one))
            if one.is_paused
            else discount / (now - served_since_s(one))
            for one in pool.replicas.values()
            if one.is_ready and now - served_since_s(one) >= stay_s
        }

    def _brief(self, pool: Pool, now: float) -> dict[str, float]:  # (5)
        return {} if pool.spec.is_server else self._resident(pool, now)

    def _eventual(self, pool: Pool, now: float) -> dict[str, float]:  # (6)
        # Of a residency above RESIDENCY_S, only the last RESIDENCY_S count.
        more_s = busy_residency_s(pool, self._parks) - RESIDENCY_S
        served_s = {
            one.id: max(0.0, now - served_since_s(one) - more_s) if one.is_ready else 0.0
            for one in pool.replicas.values()
            if one.is_coming or one.is_ready
        }
        return {id: 1.0 / (1.0 + s) for id, s in served_s.items()}


def _parked(pool: Pool) -> dict[str, Candidate]:
    cost = NOT_ONLY_DISCOUNT if pool.unserved_since_s is None else 1.0
    there = pool.replicas.values()
    return {one.id: Candidate(pool.key, cost, len(there)) for one in there if one.is_parked}


def _idle_shape(pool: Pool) -> IdleShape:
    stay_s = _idle_residency_s(pool)
    ready = [
        (one.id, max(one.ready_s + stay_s, one.refused_s + REFUSAL_S))
        for one in pool.replicas.values()
        if one.is_ready
    ]
    loading = [
        (one.id, one.since_s + pool.overdue_s)
        for one in pool.replicas.values()
        if one.is_coming and one.state is State.LOADING
    ]
    spare = pool.staying() - pool.spec.min
    parked = tuple(one.id for one in pool.replicas.values() if one.is_parked)
    return IdleShape(spare, pool.return_s, tuple(ready), tuple(loading), parked)


def served_since_s(replica: Replica) -> float:
    """Return since when a replica serves: since its load, or since it got its CPU slot; infinite
    for one that is not ready."""
    return max(replica.ready_s, replica.slot_s) if replica.is_ready else inf


def server_stay_s(load_s: float) -> float:
    """Return how long a server that takes `load_s` to start is kept for."""
    return min(SERVER_RESIDENCY_MAX_S, max(RESIDENCY_S, load_s))


def _idle_residency_s(pool: Pool) -> float:
    """Return how long an idle replica is kept. A server is parked, where it may be: it is kept for
    as long as it takes to return."""
    if pool.spec.is_server:
        return server_stay_s(pool.return_s)
    return min(RESIDENCY_S, pool.start_s)


def _is_draining(pool: Pool, replica: Replica) -> bool:
    """Whether a replica drains, or may do so on an unreachable host if the pool is exclusive."""
    is_there = replica.is_reachable or pool.is_exclusive
    return replica.state is State.DRAINING and is_there


def busy_residency_s(pool: Pool, parks: Parks) -> float:
    """Return how long a busy replica is kept before it makes room for another pool: a server for
    as long as it takes to return."""
    if not pool.spec.is_server:
        return RESIDENCY_S
    return server_stay_s(pool.return_s if parks.has_room(pool) else pool.start_s)


class Evictor:
    """Frees devices for pools: plans evictions, reserves devices, drains victims."""

    def __init__(self, cluster: Cluster, replicas: ReplicaLifecycle, parks: Parks) -> None:
        self._cluster = cluster
        self._replicas = replicas
        self._parks = parks
        self.due_s = inf
        self.candidates = Candidates(cluster, parks, self.wake_at)

    def wake_at(self, at_s: float, now: float) -> None:
        """Record that a blocked pool may be placed at `at_s`; `due_s` is the earliest such
        time."""
        if self.due_s <= now or at_s < self.due_s:
            self.due_s = at_s

    def unblock(self, pool: Pool) -> None:
        """Cancel the pool's reservation, claim and wait: it needs no device any more, or has
        one."""
        self._cluster.unreserve(pool)
        self._cluster.unclaim(pool)
        pool.blocked = ""
        pool.kept_by = ()
        pool.asked = ()
        self._cluster.blocked.discard(pool.key)

    def replan(self, pool: Pool, now: float, *, may_claim: bool) -> None:
        """Cancel the pool's reservation, so that what makes room is planned anew. Its standing
        claim stays as long as it may preempt, if `may_claim`."""
        self._cluster.unreserve(pool)
        if self._cluster.ledger.claim is not None and not (
            may_claim and self.may_preempt(pool, now)
        ):
            self._cluster.unclaim(pool)

    def block(
        self, pool: Pool, reason: str, commands: list[Command], kept_by: Iterable[str] = ()
    ) -> None:
        """Mark the pool as waiting, for a device or anything else, with the reason; `kept_by` as of
        `Pool`."""
        if pool.blocked != reason:
            commands.append(Note(pool.key, f"cannot start yet: {reason}"))
        pool.blocked = reason
        pool.kept_by = tuple(kept_by)
        self._cluster.blocked.add(pool.key)

    def is_evicting(self, pool: Pool) -> bool:
        """Whether victims of the pool's reservation are still leaving. Victims that refused or that
        cannot be released do not count."""
        victims = pool.reservation.victims if pool.reservation is not None else ()
        return any(one.is_leaving or one.is_yielding for one in self._found(victims))

    def _found(self, ids: Iterable[str]) -> list[Replica]:
        """Return those of these replicas that are not yet stopped."""
        return [one for id in ids if (one := self._cluster.find(id)) is not None]

    def reusable(self, pool: Pool, need: Need) -> tuple[str, ...]:
        """Return the replicas whose memory is available to a need, because they would fulfil it:
        the parked one that would wake, else the standbys that would become the new replica, one
        per device; none if it uses no standbys."""
        if need.only:
            there = pool.replicas.values()
            return tuple(one.id for one in there if one.is_parked and one.devices == need.only)
        if not pool.spec.uses_standbys:
            return ()
        return tuple(standby.id for standby in self._cluster.next_standbys())

    def other_revisions(self, pool: Pool) -> tuple[list[Replica], bool]:
        """Return the replicas of the function's other revisions, and whether it is at its `max`.

        A reservation of another revision counts as a replica; otherwise the victim's own pool would
        take the place back first. A replica in RELEASING does not count: it serves no calls, and
        one that cannot be released would block the function for ever. Nor does one on an
        unreachable host, unless the function must not run twice (`Pool.counts`).
        """
        if pool.spec.role != "serve" or (self._is_beside(pool) and not pool.count()):
            return [], False
        reservations = sum(other.reservation is not None for other in self._cluster.siblings(pool))
        others = [
            one
            for other in self._cluster.siblings(pool)
            for one in other.replicas.values()
            if one.role == "serve" and (other.counts(one) or _is_draining(other, one))
        ]
        is_full = len(others) + reservations + pool.count() >= pool.spec.max
        return others, is_full and bool(others or reservations)

    def plan(
        self,
        pool: Pool,
        need: Need,
        candidates: CandidateSet,
        among: list[Replica] | None,
        now: float,
    ) -> EvictionPlan | None:
        """Return the cheapest candidates to stop, None if there is no such set. With `among` (only
        `max` is in the way) that is one of those, otherwise a set that makes room on one
        device."""
        there = self.allowed(pool, candidates.all(now), now)
        if among is None:
            return plan_eviction(need, self._cluster.ledger, there, self.reusable(pool, need))
        ids = [one.id for one in among if one.id in there]
        if not ids:
            return None
        victim = min(ids, key=lambda id: (there[id].cost, id))
        devices = self._cluster.ledger.charge_of(victim).devices
        return EvictionPlan(self._fitting(devices, need), (victim,))

    def plan_preemption(
        self, pool: Pool, need: Need, among: list[Replica] | None, now: float
    ) -> EvictionPlan | None:
        """Return the busy replicas to drain, None if there is no such set: preferably no servers,
        because their exchanges may be long."""
        plan = self.plan(pool, need, self.candidates.resident, among, now)
        victims = self._found(plan.victims) if plan is not None else []
        if any(self._cluster.pools[one.pool].spec.is_server for one in victims):
            return self.plan(pool, need, self.candidates.brief, among, now) or plan
        return plan

    def end_builds(self, pool: Pool, need: Need, now: float, commands: list[Command]) -> bool:
        """End builds if that alone makes room for the pool; whether it did. Nothing is ended while
        a build is ending for it already."""
        builds = [one for one in self._cluster.builds() if one.is_coming]
        victims = pool.reservation.victims if pool.reservation is not None else ()
        is_ending = any(one.is_leaving and one.role == "build" for one in self._found(victims))
        if not builds or is_ending:
            return False
        there = {one.id: Candidate(one.pool, 0.0, 1) for one in builds}
        table = CandidateTable.of(self._cluster.ledger, there)
        plan = plan_eviction(need, self._cluster.ledger, table, self.reusable(pool, need))
        if plan is None:
            return False
        self._cluster.unreserve(pool)
        self.execute(pool, need, plan, None, now, commands)
        return True

    def end_condemned(self, pool: Pool, need: Need, now: float, commands: list[Command]) -> bool:
        """End a server of the pool that does not answer, so that another one starts in its place;
        whether there is one. One that still moves what is open on it is waited for."""
        condemned = [one for one in pool.replicas.values() if one.condemned is not None]
        if not condemned:
            return False
        victim = condemned[0]
        if victim.is_hung(now):
            devices = self._fitting(victim.devices, need)
            self._cluster.unreserve(pool)
            self._hold(pool, need, devices, (victim.id,), now)
            self._replicas.end_condemned(victim, now, commands)
        self.block(pool, f"waits for the place of {victim.id}, which {victim.why}", commands)
        return True

    def reserve(self, pool: Pool, need: Need, now: float) -> None:
        """Reserve the devices whose replicas will be past their residency first. If there are too
        few for a need of several, make the standing claim."""
        plan = self.plan(pool, need, self.candidates.eventual, None, now)
        if plan is not None:
            self._hold(pool, need, plan.devices, plan.victims, now)
        elif need.count > 1:
            self._claim(pool, need)

    def _hold(
        self,
        pool: Pool,
        need: Need,
        devices: tuple[str, ...],
        victims: tuple[str, ...],
        now: float,
    ) -> None:
        """Reserve devices for a pool. Its standing claim is on the same ones from now on."""
        ledger = self._cluster.ledger
        pool.reservation = Reservation(need, devices, victims, now)
        ledger.reserve(pool.reservation)
        if devices and ledger.claim is not None and ledger.claim.pool == pool.key:
            ledger.claim = replace(ledger.claim, devices=devices)

    def _claim(self, pool: Pool, need: Need) -> None:
        """Make the standing claim for a pool whose replicas take several devices.

        (1) There is one in the cluster: that of the pool that has waited longest.
        (2) It stays on its devices while they can be cleared: no release fails there, and each
            other pool has its `min` without its replicas there.
        (3) Else it is made anew.
        """
        cluster, ledger, claim = self._cluster, self._cluster.ledger, self._cluster.ledger.claim
        turn = need.unserved_since_s, pool.key
        if claim is not None and (claim.since_s, claim.pool) < turn:  # (1)
            return
        stuck = (one for one in cluster.replicas() if one.is_stuck)
        avoided = {device for one in (*stuck, *self._kept(pool)) for device in one.devices}
        avoided.update(ledger.refusals)
        if claim is None or claim.pool != pool.key or not avoided.isdisjoint(claim.devices):  # (2)
            devices = claimed_devices(need, ledger, avoided)  # (3)
            ledger.claim = StandingClaim(pool.key, devices, turn[0]) if devices else None

    def _kept(self, pool: Pool) -> Iterator[Replica]:
        """Yield as many replicas of each other pool as its `min` keeps, the oldest ones."""
        for key in self._cluster.live:
            other = self._cluster.pools[key]
            if other is not pool and other.spec.min:
                there = (one for one in other.replicas.values() if other.counts(one))
                yield from islice(there, other.spec.min)

    def _fitting(self, devices: tuple[str, ...], need: Need) -> tuple[str, ...]:
        """Return as many of these devices as the need takes, if it may have each of them, else
        none."""
        chosen = devices[: need.count]
        is_able = all(self._cluster.ledger.fits_kind(one, need) for one in chosen)
        return chosen if is_able and len(chosen) == need.count else ()

    def execute(
        self,
        pool: Pool,
        need: Need,
        plan: EvictionPlan,
        if_idle_s: float | None,
        now: float,
        commands: list[Command],
    ) -> None:
        """Carry out a plan: reserve its devices, drain its victims, and pause those that only have
        to yield a CPU slot. With `if_idle_s` they may refuse; otherwise busy servers are drained
        softly."""
        victims = (*plan.victims, *plan.paused)
        self._hold(pool, need, plan.devices, victims, now)
        names = {one.pool for one in self._found(plan.victims)}
        softly_s = self._clear(pool, need, plan, if_idle_s, now, commands)
        for one in self._found(plan.paused):
            names.add(one.pool)
            self._replicas.pause(one, pool.key, now, commands)
        where = f" on {place_of(plan.devices)}" if plan.devices else ""
        text = f"waits for {' and '.join(sorted(names))} to make room{where}"
        if softly_s:
            text += f": open streams may take up to {softly_s:.0f} s to end"
        self.block(pool, text, commands)

    def _clear(
        self,
        pool: Pool,
        need: Need,
        plan: EvictionPlan,
        if_idle_s: float | None,
        now: float,
        commands: list[Command],
    ) -> float:
        """Park the victims of a plan, or stop them; return the seconds that exchanges of those that
        are drained softly may take. One that waits for host memory stays: the pool plans anew.

        (1) Idle servers, and busy ones after their exchanges, are parked if the need fits beside
            what they keep.
        (2) Other busy servers are drained softly.
        (3) All others are drained, or end.
        """
        softly_s, resting = 0.0, set[str]()
        if plan.devices:
            resting = self._parks.may_rest(need, plan, self.reusable(pool, need))
        for victim in self._found(plan.victims):
            spec = self._cluster.pools[victim.pool].spec
            is_soft = if_idle_s is None and spec.is_server and not victim.is_parked
            softly_s = max(softly_s, spec.drain_s) if is_soft else softly_s
            why = f"{MAKES_ROOM if is_soft else EVICTED} for {pool.key}"
            rests = victim.id in resting
            if is_soft:
                if not (rests and self._parks.rest_softly(victim, pool.key, why, now, commands)):
                    self._replicas.quiesce(victim, pool.key, why, now, commands)  # (2)
            elif (
                if_idle_s is None
                or not rests
                or not self._parks.rest(victim, if_idle_s, why, now, commands)
            ):
                self._drain(victim, pool, if_idle_s, now, commands)  # (3)
        return softly_s

    def _drain(
        self,
        victim: Replica,
        pool: Pool,
        if_idle_s: float | None,
        now: float,
        commands: list[Command],
    ) -> None:
        how = EVICTED if if_idle_s is not None else GAVE_WAY
        how = GIVEN_UP if victim.role == "build" else how
        self._replicas.drain(victim, if_idle_s, f"{how} for {pool.key}", now, commands)

    def until_free_s(self, parked: Replica, now: float) -> float:
        """Return the seconds until the devices of a parked replica may be free for it, at least: of
        the replica there that stays for longest, until it is ready and as long as it is kept then.
        How long it takes to finish what it runs is not known."""
        ledger = self._cluster.ledger
        there = [id for device in parked.devices for id in ledger.on(device)]
        return max((self._leaves_in_s(one, now) for one in self._found(there)), default=0.0)

    def _leaves_in_s(self, replica: Replica, now: float) -> float:
        if replica.is_leaving:
            return 0.0
        pool = self._cluster.pools[replica.pool]
        if replica.is_stuck or pool.staying() <= pool.spec.min:
            return inf
        is_busy = self._cluster.demand.is_busy(pool.key)
        stay_s = busy_residency_s(pool, self._parks) if is_busy else _idle_residency_s(pool)
        if replica.is_ready:
            return max(0.0, stay_s - (now - served_since_s(replica)))
        return stay_s + max(0.0, pool.start_s - (now - replica.since_s))

    def hasten(
        self,
        pool: Pool,
        need: Need,
        among: list[Replica] | None,
        now: float,
        commands: list[Command],
    ) -> None:
        """While a victim finishes long exchanges, drain other replicas that can make room sooner:
        idle ones, then busy ones that are no servers. They are not reserved: the pool has waited
        longest of those that may take their place, and the victims stay claimed until then."""
        victims = pool.reservation.victims if pool.reservation is not None else ()
        is_long = any(one.is_quiesced for one in self._found(victims))
        if not is_long or any(one.is_leaving for one in self._found(pool.asked)):
            return
        if_idle_s: float | None = JUST_USED_S
        plan = self.plan(pool, need, self.candidates.idle, among, now)
        if plan is None and self.may_preempt(pool, now):
            if_idle_s = None
            plan = self.plan(pool, need, self.candidates.brief, among, now)
        if plan is not None:
            pool.asked = plan.victims
            self._clear(pool, need, plan, if_idle_s, now, commands)

    def may_preempt(self, pool: Pool, now: float) -> bool:
        """Whether busy replicas may be drained or paused for the pool: it has no replica but paused
        ones, and its calls have waited long enough. A pool whose own replica makes room for another
        one has its turn after that: otherwise one claim would make every busy server of the host
        stop in turn."""
        has_other = any(pool.counts(one) and not one.is_paused for one in pool.replicas.values())
        if has_other or pool.unserved_since_s is None or pool.is_making_room:
            return False
        is_trial = pool.spec.role == "trial"
        if is_trial and not pool.spec.evicts:
            return False
        wait_s = TRIAL_PREEMPT_AFTER_S if is_trial else PREEMPT_AFTER_S
        return now - pool.unserved_since_s >= wait_s

    @staticmethod
    def _is_beside(pool: Pool) -> bool:
        return pool.warming is not None and pool.warming.beside

    def plan_own(self, trial: Pool, need: Need) -> EvictionPlan | None:
        """Return the replicas of a trial's own function to drain, None if that makes no room."""
        there = own_candidates(self._cluster, trial)
        return plan_eviction(need, self._cluster.ledger, there, self.reusable(trial, need))

    def barred(self, pool: Pool) -> set[str]:
        """Return the pools that make no room for a pool: the other revisions of a function of which
        it is warmed beside them."""
        is_beside = self._is_beside(pool)
        return {other.key for other in self._cluster.siblings(pool)} if is_beside else set()

    def allowed(self, pool: Pool, candidates: CandidateTable, now: float) -> CandidateTable:
        """Return the candidates that may be stopped for a pool: (1) one that is warmed beside the
        function's other revisions stops none of these; (2) a trial stops nobody who is being
        called, unless it evicts."""
        if self._is_beside(pool):  # (1)
            return candidates.without(self.barred(pool))
        if pool.spec.role == "trial" and not pool.spec.evicts:  # (2)
            return candidates.without(called(self._cluster, now))
        return candidates
