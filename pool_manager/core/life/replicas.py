"""What happens to single replicas, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pool_manager.core import events
from pool_manager.core.commands import (
    Assign,
    Bind,
    Command,
    EndTrial,
    KeepRefutation,
    Note,
    StopBatching,
)
from pool_manager.core.host import STANDBY_KEY, Host
from pool_manager.core.life.endings import RELEASE_RETRY_S, Endings
from pool_manager.core.life.patience import START_S, patience_s
from pool_manager.core.pool import Pool
from pool_manager.core.state import PoolSpec, Replica, State, Step, advance

ROOM_PHASES = ("place", "evict")
"""What a cold start spends on getting a device: no part of what loading costs."""


class ReplicaEvents(Endings):
    """Takes what happens to replicas. Nothing else changes their records."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
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

    def assign(self, standby: Replica, pool: Pool, device: str, now: float) -> list[Command]:
        """Give a standby to a pool; one that has not greeted yet is told when it does."""
        self._host.assign(standby, pool, device)
        standby.since_s = standby.last_used_s = now
        standby.adopted = False
        if standby.state is State.STARTING:
            return []
        return [self._tell(standby, now)]

    def stop_batching(self, pool: Pool, commands: list[Command]) -> None:
        """Tell each replica of a pool that must join no more; one that is still coming is told when
        it has loaded."""
        if pool.batches or pool.spec.role != "serve":
            return
        for replica in pool.replicas.values():
            if replica.batches and replica.state in (State.READY, State.DRAINING):
                replica.batches = False
                commands.append(StopBatching(replica.id))

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
            touched |= {STANDBY_KEY, self._host.standby_key(replica.device)}
        if before is State.DRAINING and replica.state is State.READY:
            # Whoever it was to make room for looks elsewhere.
            touched |= self._host.blocked
        return touched

    def _found(self, event: events.Found, now: float, commands: list[Command]) -> set[str]:
        """A replica of an earlier manager. One without a pool is let go at once, and so is one on
        a device that is not there any more, and a trial: whoever waited for its report is gone."""
        key = event.pool or self._host.standby_key(event.device)
        if key not in self._host.pools:
            self._host.define(PoolSpec(key, role=event.role)).removed = True
        replica = Replica(
            event.id,
            key,
            "" if key == STANDBY_KEY else event.device,
            event.role,
            now,
            adopted=True,
            is_bound=bool(event.pool),
            last_used_s=now,
        )
        self.add(replica, now)
        if key != STANDBY_KEY and replica.device not in self._host.ledger.devices:
            why = f"this host has no device {replica.device or 'without a name'}"
            commands.append(Note(key, f"{replica.id} is ended: {why}"))
            self.give_up(replica, why, now, commands)
        elif event.role == "trial":
            self.give_up(replica, "its deploy ended with the earlier manager", now, commands)
        return {key}

    def _begun(
        self, replica: Replica, _event: events.Begun, now: float, _commands: list[Command]
    ) -> None:
        """What it stood in line for is no part of its time."""
        if replica.state is State.STARTING:
            replica.kill_at_s = now + START_S
        elif replica.state is State.LOADING:
            spec = self._host.pools[replica.pool].spec
            replica.kill_at_s = now + patience_s(replica, spec)

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
            replica.batches = self._host.pools[replica.pool].spec.batches
            commands.append(Bind(replica.id, replica.pool))

    def _tell(self, standby: Replica, now: float) -> Command:
        standby.is_bound = True
        standby.batches = self._host.pools[standby.pool].spec.batches
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
            kind = self._host.ledger.devices[replica.device].kind
            commands.append(EndTrial(replica.pool, {**event.report, "device_kind": kind}))
            pool.removed = True
            self.give_up(replica, "the trial is over", now, commands)
            return
        pool.measured_mib = max(pool.measured_mib, event.memory_mib)
        self._host.ledger.remember(replica.id, pool.memory_mib)
        loading = [ms for phase, ms in event.phases.items() if phase not in ROOM_PHASES]
        pool.reload_s = sum(loading) / 1e3
        self._advance(replica, Step.LOADED, now)
        commands.append(Note(replica.pool, f"{replica.id} is ready"))
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
        """Believed once, and only of a pool whose requests are joined: a replica may lie, but only
        about its own."""
        pool = self._host.pools[replica.pool]
        replica.batches = False
        if not pool.batches:
            return
        pool.refuted = reason
        commands.append(Note(pool.key, f"requests are joined no more: {replica.id}: {reason}"))
        commands.append(KeepRefutation(pool.key, reason))
        self.stop_batching(pool, commands)

    def _first_run(
        self, replica: Replica, event: events.FirstRun, now: float, commands: list[Command]
    ) -> None:
        replica.phases["first_run"] = event.ms
        self._keep(replica, "ready", now, commands)

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
