"""The lifecycle of single replicas: their events, their drains, their ends."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, Final

from pool_manager.core import events
from pool_manager.core.cluster import Cluster
from pool_manager.core.commands import (
    Assign,
    Command,
    Drain,
    EndBuild,
    EndTrial,
    Note,
    Park,
    Quiesce,
    RecordColdStart,
    RecordNotCompiled,
    RecordRefutation,
    RecordReplacement,
    RecordWake,
    Release,
    Resume,
    StopBatching,
    Terminate,
    WakeOutcome,
)
from pool_manager.core.health.liveness import Watch
from pool_manager.core.pool import Pool
from pool_manager.core.starts import (
    FETCH_STALL_S,
    TEXT_MAX,
    EngineStep,
    Fetching,
    Probing,
    folded,
    hopeless_text,
    is_hopeless,
)
from pool_manager.core.state import (
    DRAIN_S,
    RELEASE_RETRY_S,
    RESUME_S,
    START_S,
    STARTING_MAX_S,
    Contact,
    PoolSpec,
    Replica,
    State,
    Step,
    advance,
    drain_limit_s,
    state_limit_s,
    term_limit_s,
)
from runtime_image.contract.enrolment import FETCH_PROGRESS_MIN

OVERDUE = "lasted too long"
"""Suffix of the reason of a release after a time limit; `metrics.reason_in` looks for it."""
CONNECT_S = 0.5
"""Longest time between READY and the first run of a waiting call: publishing endpoints, connecting
gateways."""
GAVE_WAY: Final = "gives way: drained"
"""Prefix of the reason of a drain of a busy replica for another pool; metrics match it."""
PLACEMENT_PHASES = ("place", "evict")
"""The phases before a cold start has a device. They are not part of the reload time."""


class ReplicaLifecycle:
    """Applies the events of replicas, starts and ends them. No other class changes their states."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._receivers: dict[type, Callable[[Replica, Any, float, list[Command]], None]] = {
            events.Begun: self._begun,
            events.Starting: self._starting,
            events.Probed: self._probed,
            events.FetchReported: self._fetch_reported,
            events.Loaded: self._loaded,
            events.Upgraded: self._upgraded,
            events.BatchingRefuted: self._refuted,
            events.FirstRun: self._first_run,
            events.NotIdle: self._not_idle,
            events.Lost: self._lost,
            events.NotReleased: self._not_released,
        }

    def add(self, replica: Replica, now: float) -> None:
        """Record a replica; this charges its device."""
        self._cluster.add(replica)
        self._enter_state(replica, now)

    def drain(
        self,
        replica: Replica,
        if_idle_s: float | None,
        why: str,
        now: float,
        commands: list[Command],
    ) -> None:
        """Drain a replica. With `if_idle_s` it may refuse if it was used within that many seconds.
        A replica without a model has nothing to finish and is released at once, and so are a build
        and a server whose engine sleeps or wakes.
        One that loads may not refuse: it was never ready.
        A soft drain becomes a final one and keeps its time limit."""
        replica.why, was_quiesced = why, replica.is_quiesced
        replica.claimant, replica.is_revoked = "", False
        replica.condemned, replica.is_paused = None, False
        replica.sleeps_after = False
        commands.append(Note(replica.pool, f"{replica.id} is asked to stop: {why}"))
        if replica.has_nothing_open or replica.role == "build":
            self.release(replica, why, now, commands)
            return
        was_loading = replica.state is State.LOADING
        if was_loading:
            if_idle_s = None
        replica.if_idle = if_idle_s is not None
        if replica.state is not State.DRAINING:
            self.advance(replica, Step.DRAINED, now)
            spec = self._spec(replica)
            if was_loading and spec.is_server:  # nothing is open that could take `drain_s`
                replica.deadline_s = now + DRAIN_S + spec.stop_grace_s
        elif self._spec(replica).is_server and not was_quiesced:
            # It has served until now: exchanges that are open have `drain_s` from now on.
            replica.deadline_s = now + drain_limit_s(replica, self._spec(replica))
        self._cluster.changed.add(replica.pool)
        commands.append(Drain(replica.id, if_idle_s))

    def quiesce(
        self,
        replica: Replica,
        claimant: str,
        why: str,
        now: float,
        commands: list[Command],
        *,
        sleeps: bool = False,
    ) -> None:
        """Begin the soft drain of a ready server for the pool `claimant`, which ends with its sleep
        or with its end."""
        replica.why, replica.claimant, replica.if_idle = why, claimant, False
        replica.is_paused, replica.sleeps_after = False, sleeps
        self.advance(replica, Step.DRAINED, now)
        self._cluster.quiesced[replica.id] = None
        text = f"{replica.id} takes no new calls: it {why}"
        commands.append(Note(replica.pool, text))
        commands.append(soft_drain(replica))

    def pause(self, replica: Replica, claimant: str, now: float, commands: list[Command]) -> None:
        """Send a ready replica no new calls, so that the pool `claimant` gets its CPU slot once its
        open calls have ended. They have as long as in a drain."""
        replica.is_paused, replica.claimant = True, claimant
        self._cluster.yielding[replica.pool] = None
        replica.deadline_s = now + drain_limit_s(replica, self._spec(replica))
        self.touch(replica)
        text = f"{replica.id} is paused: {claimant} gets its CPU slot"
        commands.append(Note(replica.pool, text))

    def unpause(self, replica: Replica) -> None:
        """Send a paused replica calls again."""
        replica.is_paused, replica.claimant, replica.deadline_s = False, "", inf
        self._cluster.yielding.pop(replica.pool, None)
        self.touch(replica)

    def revoke_unclaimed(self, now: float, commands: list[Command]) -> None:
        """Revoke the soft drains whose claimant has no reservation that needs them any more."""
        for id in list(self._cluster.quiesced):
            replica = self._cluster.find(id)
            if replica is None or not replica.is_quiesced:
                del self._cluster.quiesced[id]
            elif not self._is_claimed(replica):
                replica.is_revoked = True
                replica.deadline_s = now + RESUME_S
                self._cluster.pools[replica.pool].quiet_until_s = 0.0
                self._cluster.changed.add(replica.pool)
                why = f"{replica.claimant} needs no room any more"
                if replica.claimant == replica.pool:
                    why = "it answers again"
                text = f"{id} is to take calls again: {why}"
                commands.append(Note(replica.pool, text))
                self.resume(replica, commands)

    @staticmethod
    def resume(replica: Replica, commands: list[Command]) -> None:
        """Command a server to take calls again, whether or not it was told to stop."""
        replica.resumes += 1
        commands.append(Resume(replica.id))

    def end_condemned(self, replica: Replica, now: float, commands: list[Command]) -> None:
        """End a server that is replaced."""
        pool = self._cluster.pools[replica.pool]
        self.end(replica, events.Lost(replica.id, replica.why, cause=replica.why), now, commands)
        pool.hung[replica.id] = None

    def _is_claimed(self, replica: Replica) -> bool:
        if replica.claimant == replica.pool:
            return replica.condemned is not None
        claimant = self._cluster.pools.get(replica.claimant)
        reservation = claimant.reservation if claimant is not None else None
        return reservation is not None and replica.id in reservation.victims

    def _spec(self, replica: Replica) -> PoolSpec:
        return self._cluster.pools[replica.pool].spec

    def enforce_deadline(self, replica: Replica, now: float, commands: list[Command]) -> None:
        """Act on a replica whose state has outlasted its limit: retry a release, end a pause whose
        open calls have not ended, terminate a drain, release a replica in any other state."""
        if now < replica.deadline_s:
            return
        if replica.state is State.RELEASING:
            replica.deadline_s = now + RELEASE_RETRY_S
            commands.append(Release(replica.id, "tried again"))
        elif replica.contact is Contact.EXPECTED:
            reason = f"it did not connect again after {replica.host} was back"
            lost = events.Lost(replica.id, reason, is_its_fault=False, cause=reason)
            self.end(replica, lost, now, commands)
        elif replica.is_yielding:
            self.drain(replica, None, f"{GAVE_WAY} for {replica.claimant}", now, commands)
            replica.deadline_s = now  # its calls have had their time
        elif replica.state is State.DRAINING and not replica.terminated:
            replica.terminated = True
            replica.if_idle = replica.is_revoked = replica.sleeps_after = False
            replica.claimant = ""
            replica.deadline_s = now + term_limit_s(self._spec(replica))
            self._cluster.changed.add(replica.pool)
            reason = f"did not drain: {replica.why}"
            commands.append(Note(replica.pool, f"{replica.id} is terminated: it {reason}"))
            commands.append(Terminate(replica.id, reason))
        elif replica.state is State.PARKED:
            why = f"parked for {now - replica.since_s:.0f} s"
            self.drain(replica, None, why, now, commands)
        else:
            reason = f"{replica.state} {OVERDUE}"
            self.end(replica, events.Lost(replica.id, reason), now, commands)

    def release(self, replica: Replica, why: str, now: float, commands: list[Command]) -> None:
        """Command the release of a replica in any state that can be lost. A build is over with it:
        it was given up, unless its end was reported before."""
        if replica.role == "build":
            self._end_build(replica, EndBuild(replica.pool, "given_up", reason=why), commands)
        if _is_unused(replica):
            # Its load is a sample for cold-start estimates, although it served no call.
            self._record_cold_start(
                replica, "ready", replica.ready_s, commands, ago_s=now - replica.ready_s
            )
        if replica.condemned is not None and replica.state is State.DRAINING:
            cause, replica.condemned = replica.condemned, None
            self._cluster.guards.replaced(self._cluster.pools[replica.pool].function, cause, now)
            commands.append(RecordReplacement(replica.pool, replica.id, cause, why))
            commands.append(Note(replica.pool, f"{replica.id} was replaced: it {why}"))
        replica.why, replica.sleeps_after = why, False
        self.advance(replica, Step.LOST, now)
        if replica.is_reachable:
            replica.contact = Contact.KNOWN
            commands.append(Release(replica.id, why))

    def _end_build(self, replica: Replica, end: EndBuild, commands: list[Command]) -> None:
        """Report the end of a build, once."""
        pool = self._cluster.pools[replica.pool]
        if not pool.removed:
            pool.removed = True
            commands.append(end)

    def touch(self, replica: Replica) -> None:
        self._cluster.pools[replica.pool].quiet_until_s = 0.0
        self._cluster.changed.add(replica.pool)

    def assign(
        self, standby: Replica, pool: Pool, devices: tuple[str, ...], now: float
    ) -> list[Command]:
        """Assign a standby to a pool; return the commands. A standby that is still STARTING gets
        its model after its HELLO."""
        self._cluster.assign(standby, pool, devices)
        standby.since_s = standby.last_used_s = now
        standby.adopted = False
        if standby.state is State.STARTING:
            return []
        return [self.bind_standby(standby, now)]

    def stop_batching(self, pool: Pool, commands: list[Command]) -> None:
        """If a pool must not batch, command its ready replicas to stop batching. A replica that is
        still loading gets the command when it has loaded."""
        if pool.batches or pool.spec.role != "serve":
            return
        for replica in pool.replicas.values():
            is_up = replica.state in (State.READY, State.DRAINING) and not replica.is_unknown
            if replica.batches and is_up:
                replica.batches = False
                commands.append(StopBatching(replica.id))

    def apply(self, event: events.Event, now: float, commands: list[Command]) -> set[str]:
        """Apply an event about one replica; return the pools it touches. Events with unknown ids
        are ignored: they crossed the replica's end."""
        replica = self._cluster.find(getattr(event, "id", ""))
        if replica is None:
            return set()
        if isinstance(event, events.Released):
            return self._released(replica)
        before = replica.state
        self._receivers[type(event)](replica, event, now, commands)
        touched = {replica.pool}
        if isinstance(event, events.FirstRun):
            # The cold start is complete: the standby that it used may be replaced.
            host = replica.host
            touched |= {
                self._cluster.standby_key("", host),
                *(self._cluster.standby_key(one, host) for one in replica.devices),
            }
        if before in (State.DRAINING, State.PARKING) and replica.state is State.READY:
            # Pools that waited for its device must be placed elsewhere.
            touched |= self._cluster.blocked
        return touched

    def _begun(
        self, replica: Replica, _event: events.Begun, now: float, _commands: list[Command]
    ) -> None:
        """Restart the time limit: the wait in the start queue does not count."""
        if replica.state is State.STARTING:
            replica.begun_s, replica.deadline_s = now, now + START_S
        elif replica.state is State.LOADING:
            replica.deadline_s = now + state_limit_s(replica, self._spec(replica))

    def _starting(
        self, replica: Replica, event: events.Starting, now: float, _commands: list[Command]
    ) -> None:
        """Record what the engine of the host does. That begins the time limit of a start anew; that
        of a server's load is the function's own. A model needs nothing of the engine any more once
        it loads."""
        is_starting = replica.state is State.STARTING
        is_server_load = replica.state is State.LOADING and self._spec(replica).is_server
        if not (is_starting or is_server_load):
            return
        text, known = event.text[:TEXT_MAX], replica.engine_step
        if known is None or known.text != text:
            replica.engine_step = EngineStep(text, now) if text else None
            self.touch(replica)
        if is_starting and replica.begun_s and replica.is_reachable:
            replica.deadline_s = min(now + START_S, replica.begun_s + STARTING_MAX_S)

    def _probed(
        self, replica: Replica, event: events.Probed, now: float, commands: list[Command]
    ) -> None:
        """Record what the probes of a starting server meet; end a trial that makes no progress. A
        start of a server that was ready in its trial goes on: its path is right."""
        if replica.state is not State.LOADING:
            return
        since_s = now - event.seconds
        report = Probing(event.path, event.status, event.answer, since_s, event.activity)
        probing = replica.probing = folded(replica.probing, report, now)
        is_wanted = self._cluster.is_awaited(replica)
        if replica.role == "trial" and is_hopeless(probing, now, is_wanted=is_wanted):
            tail = probing.activity.log_tail if probing.activity is not None else ()
            lost = events.Lost(replica.id, hopeless_text(probing, now), tail, stage="start")
            self.end(replica, lost, now, commands)

    def _fetch_reported(
        self, replica: Replica, event: events.FetchReported, now: float, _commands: list[Command]
    ) -> None:
        """Record how far a fetch is. Its begin and each progress begin the time limit anew: what
        has to be fetched is limited, and how long that takes is up to the network and to other
        replicas, behind which it waits for its turn."""
        if replica.state is not State.LOADING:
            return
        known, done = replica.fetching, event.done_bytes
        is_complete = done >= event.total_bytes
        counted = 0 if known is None else known.counted_bytes
        if known is None or is_complete or done - counted >= FETCH_PROGRESS_MIN:
            counted = done
            if replica.is_reachable:
                limit_s = state_limit_s(replica, self._spec(replica))
                replica.deadline_s = now + (limit_s if is_complete else max(limit_s, FETCH_STALL_S))
        reported = Fetching(done, event.total_bytes, event.seconds, counted)
        replica.fetching = None if is_complete else reported

    def bind_standby(self, standby: Replica, now: float) -> Command:
        standby.is_bound = True
        standby.batches = self._cluster.pools[standby.pool].spec.batches
        self.advance(standby, Step.BOUND, now)
        phases = dict(standby.phases)
        return Assign(standby.id, standby.pool, standby.devices, standby.role, phases)

    def _loaded(
        self, replica: Replica, event: events.Loaded, now: float, commands: list[Command]
    ) -> None:
        if replica.state is not State.LOADING:
            return
        pool = self._cluster.pools[replica.pool]
        replica.phases = dict(event.phases)
        replica.limit = event.limit
        replica.marks_started = event.marks_started
        replica.memory_mib = event.memory_mib
        replica.is_unparkable = event.is_unparkable
        replica.ready_s = replica.last_used_s = now
        replica.fetching = replica.probing = replica.engine_step = None
        pool.forget_failures()
        if replica.role in ("trial", "build"):
            self._report_end(replica, event, now, commands)
            return
        replica.session = event.session
        pool.measured_mib = max(pool.measured_mib, event.memory_mib)
        self._cluster.ledger.recharge(replica.id, pool.memory_mib)
        loading = [ms for phase, ms in event.phases.items() if phase not in PLACEMENT_PHASES]
        pool.reload_s = sum(loading) / 1e3
        pool.longest_load_s = max(pool.longest_load_s, pool.reload_s)
        if event.life is not State.READY:  # `Parks.take_over` follows
            found = {State.PARKING: Step.FOUND_PARKING, State.PARKED: Step.FOUND_ASLEEP}
            self.advance(replica, found.get(event.life, Step.FOUND_WAKING), now)
        else:
            self._serve(replica, event, now, commands)

    def _serve(
        self, replica: Replica, event: events.Loaded, now: float, commands: list[Command]
    ) -> None:
        """A replica is ready."""
        pool = self._cluster.pools[replica.pool]
        replica.has_slept = event.has_slept
        if replica.adopted and not event.has_slept:  # it was charged as if it slept
            self._cluster.ledger.leave_host_memory(replica.id)
        self.advance(replica, Step.LOADED, now)
        how = " with its compiled model" if replica.session == "compiled" else ""
        commands.append(Note(replica.pool, f"{replica.id} is ready{how}"))
        if replica.adopted and pool.spec.is_server:
            self._take_over(replica, event, now, commands)
        if event.refuted:
            self._refute(replica, event.refuted, commands)
        if event.not_compiled:
            self._note_not_compiled(replica, event.not_compiled, commands)
        self.stop_batching(pool, commands)

    def _take_over(
        self, replica: Replica, event: events.Loaded, now: float, commands: list[Command]
    ) -> None:
        """Go on with a server of an earlier manager: its age, and what that manager had learnt."""
        replica.watch = Watch(now - event.ready_for_s)
        if event.learnt is not None:
            self._cluster.pools[replica.pool].silences.restore(event.learnt)
        if replica.is_reachable:
            # The earlier manager may have drained it softly, for a pool that asks anew.
            self.resume(replica, commands)

    def _report_end(
        self, replica: Replica, event: events.Loaded, now: float, commands: list[Command]
    ) -> None:
        """Report the end of a trial or of a build that has done its work."""
        if replica.role == "build":
            end = EndBuild(replica.pool, "ended", replica.first_device, dict(event.report))
            self._end_build(replica, end, commands)
        else:
            device = self._cluster.ledger.devices[replica.first_device]
            pool = self._cluster.pools[replica.pool]
            placed = {"device_kind": device.kind, "device_type": device.type}
            made_room = {"made_room": pool.made_room} if pool.made_room else {}
            commands.append(EndTrial(replica.pool, {**event.report, **placed, **made_room}))
            pool.removed = True
        self.release(replica, f"the {replica.role} is over", now, commands)

    def _upgraded(
        self, replica: Replica, event: events.Upgraded, _now: float, commands: list[Command]
    ) -> None:
        """Record the session of a serving replica that was given a compiled model."""
        if replica.role != "serve" or replica.state not in (State.READY, State.DRAINING):
            return
        replica.session = event.session or replica.session
        if event.reason:
            self._note_not_compiled(replica, event.reason, commands)
        else:
            replica.not_compiled = ""
            commands.append(Note(replica.pool, f"{replica.id} serves with the compiled model"))

    @staticmethod
    def _note_not_compiled(replica: Replica, reason: str, commands: list[Command]) -> None:
        replica.not_compiled = reason
        text = f"{replica.id} does not use the compiled model: {reason}"
        commands.append(Note(replica.pool, text))
        commands.append(RecordNotCompiled(replica.pool, replica.first_device, reason))

    def _refuted(
        self,
        replica: Replica,
        event: events.BatchingRefuted,
        _now: float,
        commands: list[Command],
    ) -> None:
        if replica.role == "serve":
            self._refute(replica, event.reason, commands)

    def _refute(self, replica: Replica, reason: str, commands: list[Command]) -> None:
        """End the batching of a pool, once. A lying replica can only harm its own pool."""
        pool = self._cluster.pools[replica.pool]
        replica.batches = False
        if not pool.batches:
            return
        pool.refuted = reason
        commands.append(Note(pool.key, f"requests are no longer batched: {replica.id}: {reason}"))
        commands.append(RecordRefutation(pool.key, reason))
        self.stop_batching(pool, commands)

    def _first_run(
        self, replica: Replica, event: events.FirstRun, now: float, commands: list[Command]
    ) -> None:
        replica.phases["first_run"] = event.ms
        if "wake" not in replica.phases:  # a wake is no cold start
            self._record_cold_start(replica, "ready", now, commands)

    def _not_idle(
        self, replica: Replica, event: events.NotIdle, now: float, commands: list[Command]
    ) -> None:
        replica.resumes = max(0, replica.resumes - 1)
        is_leaving = replica.state in (State.PARKING, State.DRAINING)
        may_refuse = replica.if_idle or replica.is_revoked or replica.sleeps_after
        if not is_leaving or not may_refuse:
            return
        if not replica.has_slept:
            self._cluster.ledger.leave_host_memory(replica.id)
        text = f"{replica.id} keeps serving: used {event.idle_s:.1f} s ago"
        if replica.is_revoked:
            text = f"{replica.id} takes calls again"
        replica.last_used_s = now - event.idle_s
        replica.refused_s = now
        replica.if_idle = replica.is_revoked = replica.sleeps_after = False
        replica.claimant = ""
        self.advance(replica, Step.NOT_IDLE, now)
        commands.append(Note(replica.pool, text))

    def _lost(
        self, replica: Replica, event: events.Lost, now: float, commands: list[Command]
    ) -> None:
        if replica.state is not State.RELEASING:
            self.end(replica, event, now, commands)

    def _released(self, replica: Replica) -> set[str]:
        """Remove the record. Its device is free, so blocked pools are settled."""
        if replica.state is not State.RELEASING:
            return set()
        replica.state = advance(replica.state, Step.RELEASED)
        self._cluster.remove(replica)
        return {replica.pool, *self._cluster.blocked}

    def _not_released(
        self, replica: Replica, event: events.NotReleased, now: float, commands: list[Command]
    ) -> None:
        """Keep the device charged (quarantined) and retry the release after RELEASE_RETRY_S. A
        reason that lasts is noted once."""
        if event.reason != replica.why:
            text = f"{replica.id} cannot be released: {event.reason}"
            commands.append(Note(replica.pool, text))
        replica.why = event.reason
        # It has had no manager since its loss. A failed release alone proves nothing: it may be
        # the connection to its host that failed.
        if now - replica.since_s >= self._cluster.host_lost_s:
            replica.may_run = False
        if replica.is_reachable:
            replica.deadline_s = now + RELEASE_RETRY_S

    def end(
        self, replica: Replica, event: events.Lost, now: float, commands: list[Command]
    ) -> None:
        """Release a lost replica. A loss before READY counts against its pool, or ends its trial;
        it only delays the next start if it is not the replica's fault or its host is away. One that
        the engine of its host has refused or evicted does neither (`cordons.Refusals`)."""
        if replica.is_unready and not event.refused_s:
            host = self._cluster.hosts[replica.host]
            if event.is_its_fault and host.is_reachable and not host.engine_down:
                self._count_failure(replica, event, now, commands)
            else:
                self._cluster.pools[replica.pool].delay_retry(event.reason, now)
        if event.cause and not replica.is_unready:
            self._cluster.pools[replica.pool].record_death(replica.id, event.cause)
        if event.is_its_fault:
            self._count_wrong_park(replica, event.reason, now, commands)
        why = replica.why if replica.state is State.DRAINING else event.reason
        commands.append(Note(replica.pool, f"{replica.id} ended: {why}"))
        # The report may be wrong: the connection to the host may be what failed.
        can_be_lost = self._cluster.hosts[replica.host].can_be_lost
        was_refused = event.refused_s > 0 and not event.is_eviction
        replica.may_run = replica.is_present and can_be_lost and not was_refused
        self.release(replica, why, now, commands)

    def _count_wrong_park(
        self, replica: Replica, reason: str, now: float, commands: list[Command]
    ) -> None:
        """Count the end of a server that was to sleep, or to wake, against the parks of its pool.
        It is no failure of the pool: the next start is not delayed."""
        is_waking = replica.state in (State.UNPARKING, State.VERIFYING)
        if not is_waking and replica.state not in (State.PARKING, State.PROVING):
            return
        pool = self._cluster.pools[replica.pool]
        was_off = pool.parks.off
        pool.parks.add_wrong(reason, now)
        if is_waking:
            outcome: WakeOutcome = "wrong" if replica.state is State.VERIFYING else "failed"
            took_s = now - replica.woken_s
            commands.append(RecordWake(pool.key, replica.id, outcome, took_s, reason))
        if pool.parks.off != was_off:
            text = f"replicas are stopped from now on, not parked: {pool.parks.off}"
            commands.append(Note(pool.key, text))

    def _count_failure(
        self, replica: Replica, event: events.Lost, now: float, commands: list[Command]
    ) -> None:
        """Count a loss before READY. Losses of adopted replicas and of standbys that had already
        connected only delay the next start."""
        pool = self._cluster.pools[replica.pool]
        if replica.role == "trial":
            commands.append(EndTrial(replica.pool, {}, event.stage, event.reason, event.log_tail))
            pool.removed = True
        elif replica.role == "build":
            stage, tail = event.stage, event.log_tail
            end = EndBuild(pool.key, "failed", "", {}, stage, event.reason, tail)
            self._end_build(replica, end, commands)
        elif replica.adopted or (replica.role == "standby" and replica.state is State.STANDBY):
            pool.delay_retry(event.reason, now)
        else:
            is_lasting = event.is_lasting
            pool.record_failure(event.reason, event.log_tail, now, is_lasting=is_lasting)
            self._record_cold_start(replica, f"failed: {event.reason}", now, commands)

    def _record_cold_start(
        self,
        replica: Replica,
        outcome: str,
        now: float,
        commands: list[Command],
        ago_s: float = 0.0,
    ) -> None:
        total_ms = sum(replica.phases.values())
        if replica.waiting_since_s is not None:
            total_ms = (_served_s(replica, now) - replica.waiting_since_s) * 1e3
        commands.append(
            RecordColdStart(
                replica.pool,
                replica.id,
                replica.devices,
                total_ms,
                dict(replica.phases),
                outcome,
                ago_s,
                replica.session,
                replica.host,
            )
        )

    def advance(self, replica: Replica, step: Step, now: float) -> None:
        replica.state = advance(replica.state, step)
        self._enter_state(replica, now)

    def _enter_state(self, replica: Replica, now: float) -> None:
        """Begin a state: set its deadline, and mark the pool to be settled and published."""
        replica.since_s = now
        self.touch(replica)
        limit_s = state_limit_s(replica, self._spec(replica))
        replica.deadline_s = now + limit_s if replica.is_reachable else float("inf")


def soft_drain(replica: Replica) -> Command:
    """Return the command of a soft drain."""
    return Park(replica.id, None) if replica.sleeps_after else Quiesce(replica.id)


def _is_unused(replica: Replica) -> bool:
    """Whether a serving replica became ready but never ran a call, because its callers had left.
    False for an adopted replica, of which this is not known, and for one that was woken since: that
    was no cold start."""
    is_started = not replica.adopted and not replica.woken_s
    has_run = "first_run" in replica.phases
    return replica.role == "serve" and replica.ready_s > 0 and is_started and not has_run


def _served_s(replica: Replica, now: float) -> float:
    """Return when the replica's cold start ended. If the first call came long after READY, the time
    between the two does not count."""
    first_run_s = replica.phases.get("first_run", 0.0) / 1e3
    rested_s = now - replica.ready_s - first_run_s
    return replica.ready_s + first_run_s if replica.ready_s and rested_s > CONNECT_S else now
