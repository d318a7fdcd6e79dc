"""The lifecycle of single replicas: their events, their drains, their ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pool_manager.core import events
from pool_manager.core.cluster import Cluster
from pool_manager.core.commands import (
    Abandon,
    Assign,
    Bind,
    Command,
    Drain,
    EndTrial,
    Note,
    Quiesce,
    RecordColdStart,
    RecordRefutation,
    Release,
    Resume,
    StopBatching,
    Terminate,
)
from pool_manager.core.hosts import HostState
from pool_manager.core.limits import (
    GREETING_AFTER_ADOPTION_S,
    RELEASE_RETRY_S,
    RESUME_S,
    START_S,
    drain_limit_s,
    state_limit_s,
    term_limit_s,
)
from pool_manager.core.pool import Pool
from pool_manager.core.state import Contact, PoolSpec, Replica, State, Step, advance
from registry.model import LOCAL_HOST

OVERDUE = "lasted too long"
"""Suffix of the reason of a release after a time limit; `metrics.reason_in` looks for it."""
CONNECT_S = 0.5
"""Longest time between READY and the first run of a waiting call: publishing endpoints, connecting
gateways."""
PLACEMENT_PHASES = ("place", "evict")
"""The phases before a cold start has a device. They are not part of the reload time."""
CONTACTS = {
    HostState.JOINING: Contact.JOINING,
    HostState.UP: Contact.KNOWN,
    HostState.DRAINING: Contact.KNOWN,
    HostState.UNREACHABLE: Contact.UNREACHABLE,
    HostState.GONE: Contact.GONE,
}
"""Contact of a replica that is found on a host."""


class ReplicaLifecycle:
    """Applies the events of replicas, starts and ends them. No other class changes their states.

    A replica on a host that cannot be reached is sent nothing. What its record implies is commanded
    when it is known again (`_restore_link`), its release when the host is (`find_again`).
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._receivers: dict[type, Callable[[Replica, Any, float, list[Command]], None]] = {
            events.Begun: self._begun,
            events.Greeted: self._greeted,
            events.Loaded: self._loaded,
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
        A replica without a model has nothing to finish and is released at once. A soft drain
        becomes a final one and keeps its time limit."""
        replica.why, was_quiesced = why, replica.is_quiesced
        replica.claimant, replica.is_revoked = "", False
        commands.append(Note(replica.pool, f"{replica.id} is asked to stop: {why}"))
        if replica.state in (State.STARTING, State.STANDBY):
            self.release(replica, why, now, commands)
            return
        replica.if_idle = if_idle_s is not None
        if replica.state is not State.DRAINING:
            self._advance(replica, Step.DRAINED, now)
        elif self._spec(replica).is_server and not was_quiesced:
            # It has served until now: exchanges that are open have `drain_s` from now on.
            replica.deadline_s = now + drain_limit_s(replica, self._spec(replica))
        self._cluster.changed.add(replica.pool)
        commands.append(Drain(replica.id, if_idle_s))

    def quiesce(
        self, replica: Replica, claimant: str, why: str, now: float, commands: list[Command]
    ) -> None:
        """Begin the soft drain of a ready server for the pool `claimant`."""
        replica.why, replica.claimant, replica.if_idle = why, claimant, False
        self._advance(replica, Step.DRAINED, now)
        self._cluster.quiesced[replica.id] = None
        text = f"{replica.id} takes no new calls: it {why}"
        commands.append(Note(replica.pool, text))
        commands.append(Quiesce(replica.id))

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
                text = f"{id} is to take calls again: {replica.claimant} needs no room any more"
                commands.append(Note(replica.pool, text))
                commands.append(Resume(id))

    def _is_claimed(self, replica: Replica) -> bool:
        claimant = self._cluster.pools.get(replica.claimant)
        reservation = claimant.reservation if claimant is not None else None
        return reservation is not None and replica.id in reservation.victims

    def _spec(self, replica: Replica) -> PoolSpec:
        return self._cluster.pools[replica.pool].spec

    def enforce_deadline(self, replica: Replica, now: float, commands: list[Command]) -> None:
        """Act on a replica whose state has outlasted its limit: retry a release, terminate a drain,
        release a replica in any other state."""
        if now < replica.deadline_s:
            return
        if replica.state is State.RELEASING:
            replica.deadline_s = now + RELEASE_RETRY_S
            commands.append(Release(replica.id, "tried again"))
        elif replica.contact is Contact.EXPECTED:
            reason = f"it did not connect again after {replica.host} was back"
            lost = events.Lost(replica.id, reason, is_its_fault=False, cause=reason)
            self._end(replica, lost, now, commands)
        elif replica.state is State.DRAINING and not replica.terminated:
            replica.terminated = True
            replica.if_idle = replica.is_revoked = False
            replica.claimant = ""
            replica.deadline_s = now + term_limit_s(self._spec(replica))
            self._cluster.changed.add(replica.pool)
            reason = f"did not drain: {replica.why}"
            commands.append(Note(replica.pool, f"{replica.id} is terminated: it {reason}"))
            commands.append(Terminate(replica.id, reason))
        else:
            reason = f"{replica.state} {OVERDUE}"
            self._end(replica, events.Lost(replica.id, reason), now, commands)

    def end_missing(
        self, host: str, running: frozenset[str], now: float, commands: list[Command]
    ) -> None:
        """Compare the records of a host with its driver's list after its engine is back: replicas
        that are missing from it are lost, and stuck releases are retried."""
        for replica in self._cluster.on_host(host):
            if replica.state is State.RELEASING:
                if replica.deadline_s < float("inf"):
                    replica.deadline_s = now
                    self.enforce_deadline(replica, now, commands)
            elif replica.id not in running and replica.state is not State.STARTING:
                self._end_absent(replica, "it ended while the engine was away", now, commands)

    def _end_absent(
        self, replica: Replica, reason: str, now: float, commands: list[Command]
    ) -> None:
        """End a replica of which the driver has proved that it does not run."""
        lost = events.Lost(replica.id, reason, is_its_fault=False, cause=reason)
        self._end(replica, lost, now, commands)
        replica.may_run = False

    def release(self, replica: Replica, why: str, now: float, commands: list[Command]) -> None:
        """Command the release of a replica in any state that can be lost."""
        if _is_unused(replica):
            # Its load is a sample for cold-start estimates, although it served no call.
            self._record_cold_start(
                replica, "ready", replica.ready_s, commands, ago_s=now - replica.ready_s
            )
        replica.why = why
        self._advance(replica, Step.LOST, now)
        if replica.is_reachable:
            replica.contact = Contact.KNOWN
            commands.append(Release(replica.id, why))

    def lose_contact(
        self, replica: Replica, contact: Contact, why: str, now: float, commands: list[Command]
    ) -> None:
        """The host of a replica cannot be reached: its time limits are suspended, and a soft drain
        is revoked as soon as it can be. A trial is given up and begins anew elsewhere: it answers
        no calls, so it may run twice, and its deploy need not wait for the host."""
        replica.contact, replica.has_greeted = contact, False
        if replica.is_quiesced:
            replica.is_revoked = True
        if replica.role == "trial" and replica.state is not State.RELEASING:
            lost = events.Lost(replica.id, why, is_its_fault=False)
            self._end(replica, lost, now, commands)
        self._touch(replica)
        replica.deadline_s = float("inf")

    def stop_expecting(self, replica: Replica) -> None:
        """The host of a replica has not answered for so long that the replica is not awaited."""
        replica.contact = Contact.UNREACHABLE
        self._touch(replica)

    def find_again(
        self, replica: Replica, now: float, commands: list[Command], *, is_running: bool
    ) -> None:
        """The host of a replica is up again. A replica that does not run any more is lost; one that
        runs is known once it has greeted on the new connection, which it may have done already. A
        release is commanded anew, since nothing is known of an earlier one."""
        was_known, replica.contact = replica.contact is Contact.KNOWN, Contact.EXPECTED
        self._touch(replica)
        if replica.state is State.RELEASING:
            replica.contact, replica.deadline_s = Contact.KNOWN, float("inf")
            replica.may_run = replica.may_run and is_running
            commands.append(Release(replica.id, replica.why))
        elif not is_running:
            self._end_absent(
                replica, f"it ended while {replica.host} was unreachable", now, commands
            )
        elif was_known:
            replica.contact = Contact.KNOWN
        elif replica.has_greeted:
            self._restore_link(replica, now, commands)
        else:
            is_new = replica.state is State.STARTING and not replica.adopted
            replica.deadline_s = now + (START_S if is_new else GREETING_AFTER_ADOPTION_S)

    def give_up(self, replica: Replica, why: str, now: float, commands: list[Command]) -> None:
        """The host of a replica is gone: the replica takes no calls any more."""
        replica.contact, replica.may_run = Contact.GONE, False
        if replica.state is not State.RELEASING:
            lost = events.Lost(replica.id, why, is_its_fault=False, cause=why)
            self._end(replica, lost, now, commands)
            replica.may_run = False
        self._touch(replica)
        replica.deadline_s = float("inf")

    def abandon(self, replica: Replica, why: str, now: float, commands: list[Command]) -> None:
        """Remove the record of a replica whose host was removed by force."""
        self.give_up(replica, why, now, commands)
        replica.state = advance(replica.state, Step.RELEASED)
        self._cluster.remove(replica)
        commands.append(Abandon(replica.id, why))

    def _touch(self, replica: Replica) -> None:
        self._cluster.pools[replica.pool].quiet_until_s = 0.0
        self._cluster.changed.add(replica.pool)

    def assign(self, standby: Replica, pool: Pool, device: str, now: float) -> list[Command]:
        """Assign a standby to a pool; return the commands. A standby that is still STARTING gets
        its model after its HELLO."""
        self._cluster.assign(standby, pool, device)
        standby.since_s = standby.last_used_s = now
        standby.adopted = False
        if standby.state is State.STARTING:
            return []
        return [self._bind_standby(standby, now)]

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
        if isinstance(event, events.Found):
            return self._found(event, now, commands)
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
                self._cluster.standby_key(replica.device, host),
            }
        if before is State.DRAINING and replica.state is State.READY:
            # Pools that waited for its device must be placed elsewhere.
            touched |= self._cluster.blocked
        return touched

    def _found(self, event: events.Found, now: float, commands: list[Command]) -> set[str]:
        """Adopt a replica of an earlier manager. A replica of an unknown pool is drained. A replica
        on a device that its host does not have is released, and so is a trial: its deploy is
        gone."""
        key = event.pool or self._cluster.standby_key(event.device, event.host)
        is_cpu_standby = not event.pool and key == self._cluster.standby_key("", event.host)
        if key not in self._cluster.pools:
            self._cluster.define(PoolSpec(key, role=event.role)).removed = True
        replica = Replica(
            event.id,
            key,
            "" if is_cpu_standby else event.device,
            event.role,
            now,
            adopted=True,
            is_bound=bool(event.pool),
            last_used_s=now,
            host=event.host,
            contact=CONTACTS[self._cluster.hosts[event.host].state],
        )
        self.add(replica, now)
        if replica.contact is Contact.GONE:
            self.give_up(replica, self._cluster.hosts[event.host].obstacle, now, commands)
            return {key}
        if replica.contact is Contact.KNOWN:
            self.release_displaced(replica, now, commands)
        if event.role == "trial" and replica.state is not State.RELEASING:
            self.release(replica, "its deploy ended with the earlier manager", now, commands)
        return {key}

    def release_displaced(self, replica: Replica, now: float, commands: list[Command]) -> None:
        """Release a replica on a device that its host does not have (any more). A standby for CPU
        slots has no device."""
        is_here = replica.device in self._cluster.ledger.devices
        is_cpu_standby = replica.role == "standby" and not replica.device
        if is_here or is_cpu_standby or replica.state is State.RELEASING:
            return
        host = "this host" if replica.host == LOCAL_HOST else replica.host
        why = f"{host} has no device {replica.device or 'without a name'}"
        commands.append(Note(replica.pool, f"{replica.id} is stopped: {why}"))
        self.release(replica, why, now, commands)

    def _begun(
        self, replica: Replica, _event: events.Begun, now: float, _commands: list[Command]
    ) -> None:
        """Restart the time limit: the wait in the start queue does not count."""
        if replica.state is State.STARTING:
            replica.deadline_s = now + START_S
        elif replica.state is State.LOADING:
            replica.deadline_s = now + state_limit_s(replica, self._spec(replica))

    def _greeted(
        self, replica: Replica, event: events.Greeted, now: float, commands: list[Command]
    ) -> None:
        """The control link of a replica works, for the first time or again. On a host that is not
        up, only the record changes: the commands follow with HostUp."""
        replica.has_greeted = True
        if replica.state is State.STARTING and (replica.is_bound or replica.role == "standby"):
            self._connect(replica, event, now, commands)
        elif replica.is_reachable:
            self._restore_link(replica, now, commands, is_loaded=event.loaded)

    def _connect(
        self, replica: Replica, event: events.Greeted, now: float, commands: list[Command]
    ) -> None:
        """A replica in STARTING has greeted. One that was launched for a model gets it."""
        if replica.is_reachable:
            replica.contact = Contact.KNOWN
        self._advance(replica, Step.GREETED, now)
        if replica.role == "standby":
            self._cluster.pools[replica.pool].forget_failures()
            return
        replica.phases = dict(event.phases)
        self._advance(replica, Step.BOUND, now)
        if not event.loaded:
            self._bind(replica, commands)

    def _bind(self, replica: Replica, commands: list[Command]) -> None:
        """Command a replica to load its model. One of a removed pool is about to be drained."""
        pool = self._cluster.pools[replica.pool]
        replica.batches = pool.spec.batches
        if replica.is_reachable and not pool.removed:
            commands.append(Bind(replica.id, replica.pool))

    def _restore_link(
        self, replica: Replica, now: float, commands: list[Command], *, is_loaded: bool = False
    ) -> None:
        """The control link of a replica is a new one. Its record says what it must be told, since
        commands may have been lost with the earlier link; those that it has got are ignored. Only
        the first link after its host was unreachable begins a time limit anew."""
        if replica.contact is Contact.EXPECTED:
            replica.contact = Contact.KNOWN
            limit_s = (
                RESUME_S if replica.is_returning else state_limit_s(replica, self._spec(replica))
            )
            replica.deadline_s = now + limit_s
            commands.append(Note(replica.pool, f"{replica.id} is connected again"))
        self._touch(replica)
        pool = self._cluster.pools[replica.pool]
        match replica.state:
            case State.STARTING if not pool.removed:
                # It was assigned while still importing: calls waited for the rest of the import.
                self._advance(replica, Step.GREETED, now)
                replica.phases["import"] = (now - replica.last_used_s) * 1e3
                commands.append(self._bind_standby(replica, now))
            case State.LOADING if not is_loaded:
                self._bind(replica, commands)
            case State.READY:
                self._restore_serving(replica, pool, commands)
            case State.DRAINING:
                self._restore_drain(replica, now, commands)

    @staticmethod
    def _restore_serving(replica: Replica, pool: Pool, commands: list[Command]) -> None:
        if pool.spec.is_server:
            commands.append(Resume(replica.id))
        if not pool.batches:
            replica.batches = False
            commands.append(StopBatching(replica.id))

    def _restore_drain(self, replica: Replica, now: float, commands: list[Command]) -> None:
        """Command a drain again. One that the replica may refuse becomes final: whether it has
        agreed or refused is not known."""
        if replica.is_returning:
            commands.append(Resume(replica.id))
        elif replica.is_quiesced:
            commands.append(Quiesce(replica.id))
        elif replica.terminated:
            commands.append(Terminate(replica.id, f"did not drain: {replica.why}"))
        elif replica.if_idle:
            self.drain(replica, None, replica.why, now, commands)
        else:
            commands.append(Drain(replica.id, None))

    def _bind_standby(self, standby: Replica, now: float) -> Command:
        standby.is_bound = True
        standby.batches = self._cluster.pools[standby.pool].spec.batches
        self._advance(standby, Step.BOUND, now)
        phases = dict(standby.phases)
        return Assign(standby.id, standby.pool, standby.device, standby.role, phases)

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
        replica.ready_s = replica.last_used_s = now
        pool.forget_failures()
        if replica.role == "trial":
            kind = self._cluster.ledger.devices[replica.device].kind
            commands.append(EndTrial(replica.pool, {**event.report, "device_kind": kind}))
            pool.removed = True
            self.release(replica, "the trial is over", now, commands)
            return
        pool.measured_mib = max(pool.measured_mib, event.memory_mib)
        self._cluster.ledger.recharge(replica.id, pool.memory_mib)
        loading = [ms for phase, ms in event.phases.items() if phase not in PLACEMENT_PHASES]
        pool.reload_s = sum(loading) / 1e3
        self._advance(replica, Step.LOADED, now)
        commands.append(Note(replica.pool, f"{replica.id} is ready"))
        if replica.adopted and pool.spec.is_server and replica.is_reachable:
            # The earlier manager may have drained it softly, for a pool that asks anew.
            commands.append(Resume(replica.id))
        if event.refuted:
            self._refute(replica, event.refuted, commands)
        self.stop_batching(pool, commands)

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
        self._record_cold_start(replica, "ready", now, commands)

    def _not_idle(
        self, replica: Replica, event: events.NotIdle, now: float, commands: list[Command]
    ) -> None:
        if replica.state is not State.DRAINING or not (replica.if_idle or replica.is_revoked):
            return
        text = f"{replica.id} keeps serving: used {event.idle_s:.1f} s ago"
        if replica.is_revoked:
            text = f"{replica.id} takes calls again"
        replica.last_used_s = now - event.idle_s
        replica.refused_s = now
        replica.if_idle = replica.is_revoked = False
        replica.claimant = ""
        self._advance(replica, Step.NOT_IDLE, now)
        commands.append(Note(replica.pool, text))

    def _lost(
        self, replica: Replica, event: events.Lost, now: float, commands: list[Command]
    ) -> None:
        if replica.state is not State.RELEASING:
            self._end(replica, event, now, commands)

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
        """Keep the device charged (quarantined) and retry the release after RELEASE_RETRY_S."""
        replica.why, replica.may_run = event.reason, replica.may_run and replica.is_unknown
        if not replica.is_unknown:
            replica.deadline_s = now + RELEASE_RETRY_S
        commands.append(Note(replica.pool, f"{replica.id} cannot be released: {event.reason}"))

    def _end(
        self, replica: Replica, event: events.Lost, now: float, commands: list[Command]
    ) -> None:
        """Release a lost replica. A loss before READY counts against its pool, or ends its trial;
        it only delays the next start if it is not the replica's fault or its host is away."""
        if replica.is_unready:
            host = self._cluster.hosts[replica.host]
            if event.is_its_fault and host.is_reachable and not host.engine_down:
                self._count_failure(replica, event, now, commands)
            else:
                self._cluster.pools[replica.pool].delay_retry(event.reason, now)
        elif event.cause:
            self._cluster.pools[replica.pool].record_death(replica.id, event.cause)
        why = replica.why if replica.state is State.DRAINING else event.reason
        commands.append(Note(replica.pool, f"{replica.id} ended: {why}"))
        # The report of another host may be wrong: the link to it may be what failed.
        replica.may_run = replica.is_present and replica.host != LOCAL_HOST
        self.release(replica, why, now, commands)

    def _count_failure(
        self, replica: Replica, event: events.Lost, now: float, commands: list[Command]
    ) -> None:
        """Count a loss before READY. Losses of adopted replicas and of standbys that had already
        connected only delay the next start."""
        pool = self._cluster.pools[replica.pool]
        if replica.role == "trial":
            commands.append(EndTrial(replica.pool, {}, event.stage, event.reason, event.log_tail))
            pool.removed = True
        elif replica.adopted or (replica.role == "standby" and replica.state is State.STANDBY):
            pool.delay_retry(event.reason, now)
        else:
            pool.record_failure(event.reason, event.log_tail, now)
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
                replica.device,
                total_ms,
                dict(replica.phases),
                outcome,
                ago_s,
            )
        )

    def _advance(self, replica: Replica, step: Step, now: float) -> None:
        replica.state = advance(replica.state, step)
        self._enter_state(replica, now)

    def _enter_state(self, replica: Replica, now: float) -> None:
        """Begin a state: set its deadline, and mark the pool to be settled and published."""
        replica.since_s = now
        self._touch(replica)
        limit_s = state_limit_s(replica, self._spec(replica))
        replica.deadline_s = now + limit_s if replica.is_reachable else float("inf")


def _is_unused(replica: Replica) -> bool:
    """Whether a serving replica became ready but never ran a call, because its callers had left.
    False for an adopted replica, of which this is not known."""
    has_run = "first_run" in replica.phases
    return replica.role == "serve" and replica.ready_s > 0 and not has_run and not replica.adopted


def _served_s(replica: Replica, now: float) -> float:
    """Return when the replica's cold start ended. If the first call came long after READY, the time
    between the two does not count."""
    first_run_s = replica.phases.get("first_run", 0.0) / 1e3
    rested_s = now - replica.ready_s - first_run_s
    return replica.ready_s + first_run_s if replica.ready_s and rested_s > CONNECT_S else now
