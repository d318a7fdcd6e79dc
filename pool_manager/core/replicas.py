"""What happens to single replicas, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pool_manager.core import events
from pool_manager.core.commands import (
    Assign,
    Bind,
    Command,
    Drain,
    EndTrial,
    KeepColdStart,
    Note,
    Release,
    Terminate,
)
from pool_manager.core.host import STANDBY_KEY, Host
from pool_manager.core.patience import TERM_S, patience_s
from pool_manager.core.pool import Pool
from pool_manager.core.state import PoolSpec, Replica, State, Step, advance

RELEASE_RETRY_S = 5.0
ROOM_PHASES = ("place", "evict")
"""What a cold start spends on getting a device: no part of what loading costs."""


class ReplicaEvents:
    """Owns every change of a replica's record."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._receivers: dict[type, Callable[[Replica, Any, float, list[Command]], None]] = {
            events.Greeted: self._greeted,
            events.Loaded: self._loaded,
            events.FirstRun: self._first_run,
            events.NotIdle: self._not_idle,
            events.Lost: self._lost,
            events.NotReleased: self._not_released,
        }

    def add(self, replica: Replica, now: float) -> None:
        """Record a replica; from now on its device is taken."""
        self._host.add(replica)
        self._enter(replica, now)

    def assign(self, standby: Replica, pool: Pool, device: str, now: float) -> list[Command]:
        """Give a standby to a pool; one that has not greeted yet is told when it does."""
        self._host.assign(standby, pool, device)
        standby.since_s = standby.last_used_s = now
        standby.adopted = False
        if standby.state is State.STARTING:
            return []
        return [self._tell(standby, now)]

    def apply(self, event: events.Event, now: float, commands: list[Command]) -> set[str]:
        """Take an event about one replica; the pools it touches. Unknown ids are ignored: the
        event crossed the replica's end."""
        if isinstance(event, events.Found):
            return self._found(event, now, commands)
        replica = self._host.find(getattr(event, "id", ""))
        if replica is None:
            return set()
        if isinstance(event, events.Released):
            return self._released(replica)
        before = replica.state
        self._receivers[type(event)](replica, event, now, commands)
        touched = {replica.pool}
        if isinstance(event, events.FirstRun):
            # It has served: now its standby may be replaced.
            touched.add(STANDBY_KEY)
        if before is State.DRAINING and replica.state is State.READY:
            # Whoever it was to make room for looks elsewhere.
            touched |= self._host.blocked
        return touched

    def drain(
        self,
        replica: Replica,
        if_idle_s: float | None,
        why: str,
        now: float,
        commands: list[Command],
    ) -> None:
        """Ask a replica to go. One that has no model yet has nothing to finish: it is released."""
        replica.why = why
        commands.append(Note(replica.pool, f"{replica.id} is asked to go: {why}"))
        if replica.state in (State.STARTING, State.STANDBY):
            self._give_up(replica, why, now, commands)
            return
        replica.if_idle = if_idle_s is not None
        if replica.state is not State.DRAINING:
            self._advance(replica, Step.DRAINED, now)
        self._host.changed.add(replica.pool)
        commands.append(Drain(replica.id, if_idle_s))

    def press(self, replica: Replica, now: float, commands: list[Command]) -> None:
        """End the patience with a replica whose state lasts too long."""
        if now < replica.kill_at_s:
            return
        if replica.state is State.RELEASING:
            replica.kill_at_s = now + RELEASE_RETRY_S
            commands.append(Release(replica.id, "tried again"))
        elif replica.state is State.DRAINING and not replica.terminated:
            replica.terminated = True
            replica.if_idle = False
            replica.kill_at_s = now + TERM_S
            self._host.changed.add(replica.pool)
            reason = f"did not drain: {replica.why}"
            commands.append(Note(replica.pool, f"{replica.id} is terminated: it {reason}"))
            commands.append(Terminate(replica.id, reason))
        else:
            reason = f"{replica.state} lasted too long"
            self._end(replica, events.Lost(replica.id, reason), now, commands)

    def end_missing(self, running: frozenset[str], now: float, commands: list[Command]) -> None:
        """The driver's list came anew: what is not on it ended unseen, and what could not be
        released is tried again."""
        for replica in list(self._host.replicas()):
            if replica.state is State.RELEASING:
                if replica.kill_at_s < float("inf"):
                    replica.kill_at_s = now
                    self.press(replica, now, commands)
            elif replica.id not in running and replica.state is not State.STARTING:
                reason = "it ended while the engine was away"
                lost = events.Lost(replica.id, reason, is_its_fault=False)
                self._end(replica, lost, now, commands)

    def _found(self, event: events.Found, now: float, commands: list[Command]) -> set[str]:
        """A replica of an earlier manager. One without a pool is let go at once, and so is a
        trial: whoever waited for its report is gone."""
        key = event.pool or STANDBY_KEY
        if key not in self._host.pools:
            self._host.define(PoolSpec(key, role=event.role)).removed = True
        replica = Replica(
            event.id,
            key,
            event.device,
            event.role,
            now,
            adopted=True,
            is_bound=bool(event.pool),
            last_used_s=now,
        )
        self.add(replica, now)
        if event.role == "trial":
            self._give_up(replica, "its deploy ended with the earlier manager", now, commands)
        return {key}

    def _greeted(
        self, replica: Replica, event: events.Greeted, now: float, commands: list[Command]
    ) -> None:
        if replica.state is not State.STARTING:
            return
        self._advance(replica, Step.GREETED, now)
        if replica.role == "standby":
            self._host.pools[replica.pool].succeed()
            return
        if not replica.is_bound:
            # Assigned while it was still importing: that much of it was waited for.
            replica.phases["import"] = (now - replica.last_used_s) * 1e3
            commands.append(self._tell(replica, now))
            return
        replica.phases = dict(event.phases)
        self._advance(replica, Step.BOUND, now)
        if not event.loaded:
            commands.append(Bind(replica.id, replica.pool))

    def _tell(self, standby: Replica, now: float) -> Command:
        standby.is_bound = True
        self._advance(standby, Step.BOUND, now)
        phases = dict(standby.phases)
        return Assign(standby.id, standby.pool, standby.device, standby.role, phases)

    def _loaded(
        self, replica: Replica, event: events.Loaded, now: float, commands: list[Command]
    ) -> None:
        if replica.state is not State.LOADING:
            return
        pool = self._host.pools[replica.pool]
        replica.phases = dict(event.phases)
        replica.limit = event.limit
        replica.marks_started = event.marks_started
        replica.memory_mib = event.memory_mib
        replica.ready_s = replica.last_used_s = now
        pool.succeed()
        if replica.role == "trial":
            commands.append(EndTrial(replica.pool, event.report))
            pool.removed = True
            self._give_up(replica, "the trial is over", now, commands)
            return
        pool.measured_mib = max(pool.measured_mib, event.memory_mib)
        self._host.ledger.remember(replica.id, pool.memory_mib)
        loading = [ms for phase, ms in event.phases.items() if phase not in ROOM_PHASES]
        pool.reload_s = sum(loading) / 1e3
        self._advance(replica, Step.LOADED, now)
        commands.append(Note(replica.pool, f"{replica.id} is ready"))

    def _first_run(
        self, replica: Replica, event: events.FirstRun, now: float, commands: list[Command]
    ) -> None:
        replica.phases["first_run"] = event.ms
        self._keep(replica, "ready", now, commands)

    def _keep(self, replica: Replica, outcome: str, now: float, commands: list[Command]) -> None:
        total_ms = sum(replica.phases.values())
        if replica.waiting_since_s is not None:
            total_ms = (now - replica.waiting_since_s) * 1e3
        commands.append(
            KeepColdStart(
                replica.pool,
                replica.id,
                replica.device,
                total_ms,
                dict(replica.phases),
                outcome,
            )
        )

    def _not_idle(
        self, replica: Replica, event: events.NotIdle, now: float, commands: list[Command]
    ) -> None:
        if replica.state is State.DRAINING and replica.if_idle:
            replica.last_used_s = now - event.idle_s
            replica.refused_s = now
            replica.if_idle = False
            self._advance(replica, Step.NOT_IDLE, now)
            text = f"{replica.id} stays: used {event.idle_s:.1f} s ago"
            commands.append(Note(replica.pool, text))

    def _lost(
        self, replica: Replica, event: events.Lost, now: float, commands: list[Command]
    ) -> None:
        if replica.state is not State.RELEASING:
            self._end(replica, event, now, commands)

    def _end(
        self, replica: Replica, event: events.Lost, now: float, commands: list[Command]
    ) -> None:
        """A replica ends; the ends before READY count against its pool, or its deploy."""
        if replica.is_coming:
            if event.is_its_fault and not self._host.engine_down:
                self._blame(replica, event, now, commands)
            else:
                self._host.pools[replica.pool].pause(event.reason, now)
        why = replica.why if replica.state is State.DRAINING else event.reason
        commands.append(Note(replica.pool, f"{replica.id} ended: {why}"))
        self._give_up(replica, why, now, commands)

    def _blame(
        self, replica: Replica, event: events.Lost, now: float, commands: list[Command]
    ) -> None:
        """A start went wrong. An adopted replica is nobody's start, and a standby that has greeted
        has done all it can do wrong: its end is an accident."""
        pool = self._host.pools[replica.pool]
        if replica.role == "trial":
            commands.append(EndTrial(replica.pool, {}, event.stage, event.reason, event.log_tail))
            pool.removed = True
        elif replica.adopted or (replica.role == "standby" and replica.state is State.STANDBY):
            pool.pause(event.reason, now)
        else:
            pool.fail(event.reason, event.log_tail, now)
            self._keep(replica, f"failed: {event.reason}", now, commands)

    def _give_up(self, replica: Replica, why: str, now: float, commands: list[Command]) -> None:
        replica.why = why
        self._advance(replica, Step.LOST, now)
        commands.append(Release(replica.id, why))

    def _released(self, replica: Replica) -> set[str]:
        """Its device is free now: whoever waits for one is looked at."""
        if replica.state is not State.RELEASING:
            return set()
        replica.state = advance(replica.state, Step.RELEASED)
        self._host.drop(replica)
        return {replica.pool, *self._host.blocked}

    def _not_released(
        self, replica: Replica, event: events.NotReleased, now: float, commands: list[Command]
    ) -> None:
        """The device stays taken (quarantined) and the release is tried again later."""
        replica.why = event.reason
        replica.kill_at_s = now + RELEASE_RETRY_S
        commands.append(Note(replica.pool, f"{replica.id} cannot be released: {event.reason}"))

    def _advance(self, replica: Replica, step: Step, now: float) -> None:
        replica.state = advance(replica.state, step)
        self._enter(replica, now)

    def _enter(self, replica: Replica, now: float) -> None:
        """A state begins: its patience, and whoever looks at the pool."""
        replica.since_s = now
        pool = self._host.pools[replica.pool]
        pool.quiet_until_s = 0.0
        self._host.changed.add(pool.key)
        replica.kill_at_s = now + patience_s(replica, pool.spec)
