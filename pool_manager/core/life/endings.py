"""How a replica's record begins, changes its state and ends."""

from __future__ import annotations

from pool_manager.core import events
from pool_manager.core.commands import (
    Command,
    Drain,
    EndTrial,
    KeepColdStart,
    Note,
    Release,
    Terminate,
)
from pool_manager.core.host import Host
from pool_manager.core.life.patience import TERM_S, patience_s
from pool_manager.core.state import Replica, State, Step, advance

RELEASE_RETRY_S = 5.0
OVERDUE = "lasted too long"
"""How the reason of a release ends for which a replica was given up."""
HANDOVER_S = 0.5
"""Between READY and the first run of a call that waits: gateways are told and connect."""


class Endings:
    """Owns the state of every replica's record, and ends replicas."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def add(self, replica: Replica, now: float) -> None:
        """Record a replica; from now on its device is taken."""
        self._host.add(replica)
        self._enter(replica, now)

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
            self.give_up(replica, why, now, commands)
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
            reason = f"{replica.state} {OVERDUE}"
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

    def give_up(self, replica: Replica, why: str, now: float, commands: list[Command]) -> None:
        """Have a replica released, whatever it does."""
        if _is_unused(replica):
            # The next caller's wait is estimated from it, although nobody stayed for this one.
            self._keep(replica, "ready", replica.ready_s, commands, ago_s=now - replica.ready_s)
        replica.why = why
        self._advance(replica, Step.LOST, now)
        commands.append(Release(replica.id, why))

    def _end(
        self, replica: Replica, event: events.Lost, now: float, commands: list[Command]
    ) -> None:
        """A replica ends; the ends before READY count against its pool, or its deploy."""
        if replica.is_coming:
            if event.is_its_fault and not self._host.engine_down:
                self._blame(replica, event, now, commands)
            else:
                self._host.pools[replica.pool].pause(event.reason, now)
        elif event.cause:
            self._host.pools[replica.pool].died(replica.id, event.cause)
        why = replica.why if replica.state is State.DRAINING else event.reason
        commands.append(Note(replica.pool, f"{replica.id} ended: {why}"))
        self.give_up(replica, why, now, commands)

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

    def _keep(
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
            KeepColdStart(
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
        self._enter(replica, now)

    def _enter(self, replica: Replica, now: float) -> None:
        """A state begins: its patience, and whoever looks at the pool."""
        replica.since_s = now
        pool = self._host.pools[replica.pool]
        pool.quiet_until_s = 0.0
        self._host.changed.add(pool.key)
        replica.kill_at_s = now + patience_s(replica, pool.spec)


def _is_unused(replica: Replica) -> bool:
    """Whether a replica for calls became ready and never ran one: its callers had left. Of an
    adopted one that is not known."""
    has_run = "first_run" in replica.phases
    return replica.role == "serve" and replica.ready_s > 0 and not has_run and not replica.adopted


def _served_s(replica: Replica, now: float) -> float:
    """When its cold start was over, for which somebody waited. Where they have left meanwhile, the
    time until somebody else called is no part of it."""
    first_run_s = replica.phases.get("first_run", 0.0) / 1e3
    rested_s = now - replica.ready_s - first_run_s
    return replica.ready_s + first_run_s if replica.ready_s and rested_s > HANDOVER_S else now
