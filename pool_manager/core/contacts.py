"""Contact with replicas: their adoption, their control links, and hosts without connection."""

from __future__ import annotations

from pool_manager.core import events
from pool_manager.core.cluster import Cluster
from pool_manager.core.commands import (
    Abandon,
    Bind,
    Command,
    Drain,
    Note,
    Release,
    StopBatching,
    Terminate,
)
from pool_manager.core.hosts import HostState
from pool_manager.core.park.parks import Parks, implied
from pool_manager.core.pool import Pool
from pool_manager.core.replicas import ReplicaLifecycle, soft_drain
from pool_manager.core.state import (
    GREETING_AFTER_ADOPTION_S,
    RESUME_S,
    START_S,
    UNKNOWN,
    Contact,
    PoolSpec,
    Replica,
    State,
    Step,
    advance,
    state_limit_s,
    term_limit_s,
)
from registry.model.hosts import other_host

FOUND_CONTACTS = {
    HostState.JOINING: Contact.JOINING,
    HostState.UP: Contact.KNOWN,
    HostState.DRAINING: Contact.KNOWN,
    HostState.UNREACHABLE: Contact.UNREACHABLE,
    HostState.GONE: Contact.GONE,
}
"""Contact of a replica that is found on a host in each state."""


class Contacts:
    """Adopts replicas, and applies their greetings and the changes of their hosts' connections. No
    other class changes their contact, except that a commanded release ends EXPECTED.

    A replica on a host that cannot be reached is sent nothing. What its record implies is commanded
    when it is known again (`_restore_link`), its release when the host is (`find_again`).
    """

    def __init__(self, cluster: Cluster, replicas: ReplicaLifecycle, parks: Parks) -> None:
        self._cluster = cluster
        self._replicas = replicas
        self._parks = parks

    def adopt(self, event: events.Found, now: float, commands: list[Command]) -> set[str]:
        """Adopt a replica of an earlier manager; return the pool that it touches. A replica of an
        unknown pool is drained. A replica on a device that its host does not have is released, and
        so is a trial, whose deploy is gone, and a build."""
        # A standby has one device at most.
        standby_device = next(iter(event.devices), "")
        key = event.pool or self._cluster.standby_key(standby_device, event.host)
        is_cpu_standby = not event.pool and key == self._cluster.standby_key("", event.host)
        if key not in self._cluster.pools:
            self._cluster.define(PoolSpec(key, role=event.role)).removed = True
        host = self._cluster.hosts[event.host]
        replica = Replica(
            event.id,
            key,
            () if is_cpu_standby else event.devices,
            event.role,
            now,
            adopted=True,
            is_bound=bool(event.pool),
            last_used_s=now,
            host=event.host,
            contact=FOUND_CONTACTS[host.state],
        )
        self._replicas.add(replica, now)
        if self._cluster.pools[key].spec.park is not None and replica.role == "serve":
            # It may sleep, which is not known before it greets.
            self._parks.charge_host(replica)
        if replica.contact is Contact.GONE:
            self.give_up(replica, host.obstacle, now, commands)
        elif replica.contact is Contact.KNOWN:
            self.release_displaced(replica, now, commands)
        if replica.role in ("trial", "build") and replica.state is not State.RELEASING:
            what = "deploy" if replica.role == "trial" else "build"
            why = f"its {what} ended with the earlier manager"
            self._replicas.release(replica, why, now, commands)
        return {key}

    def release_displaced(self, replica: Replica, now: float, commands: list[Command]) -> None:
        """Release a replica with a device that its host does not have (any more). A standby for CPU
        slots has no device."""
        missing = [one for one in replica.devices if one not in self._cluster.ledger.devices]
        is_here = not missing and (replica.devices or replica.role == "standby")
        if is_here or replica.state is State.RELEASING:
            return
        host = other_host(replica.host) or "this host"
        why = f"{host} has no device {' and '.join(missing) or 'without a name'}"
        commands.append(Note(replica.pool, f"{replica.id} is stopped: {why}"))
        self._replicas.release(replica, why, now, commands)

    def greet(self, event: events.Greeted, now: float, commands: list[Command]) -> set[str]:
        """The control link of a replica works, for the first time or again; return the pool that it
        touches. On a host that is not up, only the record changes: the commands follow with
        HostUp."""
        replica = self._cluster.find(event.id)
        if replica is None:
            return set()
        replica.has_greeted = True
        if replica.state is State.STARTING and (replica.is_bound or replica.role == "standby"):
            self._connect(replica, event, now, commands)
        elif replica.is_reachable:
            self._restore_link(replica, now, commands, is_loaded=event.loaded)
        return {replica.pool}

    def _connect(
        self, replica: Replica, event: events.Greeted, now: float, commands: list[Command]
    ) -> None:
        """A replica in STARTING has greeted. One that was launched for a model gets it."""
        if replica.is_reachable:
            replica.contact = Contact.KNOWN
        self._replicas.advance(replica, Step.GREETED, now)
        replica.engine_step = None
        if replica.role == "standby":
            self._cluster.pools[replica.pool].forget_failures()
            return
        replica.phases = dict(event.phases)
        self._replicas.advance(replica, Step.BOUND, now)
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
        """The control link of a replica is a new one. The commands that its record implies are sent
        again, since they may have been lost with the earlier link; it ignores those that it has.
        Only the first link after its host was unreachable begins a time limit anew."""
        pool = self._cluster.pools[replica.pool]
        replica.resumes = 0
        if replica.contact is Contact.EXPECTED:
            replica.contact = Contact.KNOWN
            replica.deadline_s = now + _limit_s(replica, pool.spec)
            commands.append(Note(replica.pool, f"{replica.id} is connected again"))
        self._replicas.touch(replica)
        match replica.state:
            case State.STARTING if not pool.removed:
                # It was assigned while still importing: calls waited for the rest of the import.
                self._replicas.advance(replica, Step.GREETED, now)
                replica.phases["import"] = (now - replica.last_used_s) * 1e3
                commands.append(self._replicas.bind_standby(replica, now))
            case State.LOADING if not is_loaded:
                self._bind(replica, commands)
            case State.READY:
                self._restore_serving(replica, pool, commands)
            case State.DRAINING:
                self._restore_drain(replica, now, commands)
            case _:
                commands += implied(replica, pool.spec.park or UNKNOWN)

    def _restore_serving(self, replica: Replica, pool: Pool, commands: list[Command]) -> None:
        """Command what a ready replica may have missed."""
        if pool.spec.is_server:
            self._replicas.resume(replica, commands)
        if not pool.batches:
            replica.batches = False
            commands.append(StopBatching(replica.id))

    def _restore_drain(self, replica: Replica, now: float, commands: list[Command]) -> None:
        """Command a drain again. One that the replica may refuse becomes final: whether it has
        agreed or refused is not known."""
        if replica.is_returning:
            self._replicas.resume(replica, commands)
        elif replica.is_quiesced:
            commands.append(soft_drain(replica))
        elif replica.terminated:
            commands.append(Terminate(replica.id, f"did not drain: {replica.why}"))
        elif replica.if_idle:
            self._replicas.drain(replica, None, replica.why, now, commands)
        else:
            commands.append(Drain(replica.id, None))

    def end_missing(
        self, host: str, running: frozenset[str], now: float, commands: list[Command]
    ) -> None:
        """Compare the records of a host with its driver's list after its engine is back: replicas
        that are missing from it are lost, and stuck releases are retried."""
        for replica in self._cluster.on_host(host):
            if replica.state is State.RELEASING:
                if replica.deadline_s < float("inf"):
                    replica.deadline_s = now
                    self._replicas.enforce_deadline(replica, now, commands)
            elif replica.id not in running and replica.state is not State.STARTING:
                self._end_absent(replica, "it ended while the engine was away", now, commands)

    def lose(self, replica: Replica, why: str, now: float, commands: list[Command]) -> None:
        """The host of a replica cannot be reached: its time limits are suspended, and a soft drain
        is revoked as soon as it can be. A trial is given up and begins anew elsewhere: it answers
        no calls, so it may run twice, and its deploy need not wait for the host. A build is given
        up."""
        replica.contact, replica.has_greeted = Contact.UNREACHABLE, False
        if replica.is_quiesced:
            replica.is_revoked = True
        if replica.role in ("trial", "build") and replica.state is not State.RELEASING:
            lost = events.Lost(replica.id, why, is_its_fault=False)
            self._replicas.end(replica, lost, now, commands)
        self._replicas.touch(replica)
        replica.deadline_s = float("inf")

    def stop_expecting(self, replica: Replica) -> None:
        """The host of a replica has not answered for so long that the replica is not awaited."""
        replica.contact = Contact.UNREACHABLE
        self._replicas.touch(replica)

    def find_again(
        self, replica: Replica, now: float, commands: list[Command], *, is_running: bool
    ) -> None:
        """The host of a replica is up again. A replica that does not run any more is lost; one that
        runs is known once it has greeted on the new connection, which it may have done already. A
        release is commanded anew, since nothing is known of an earlier one."""
        was_known, replica.contact = replica.contact is Contact.KNOWN, Contact.EXPECTED
        self._replicas.touch(replica)
        if replica.state is State.RELEASING:
            replica.contact, replica.deadline_s = Contact.KNOWN, float("inf")
            replica.since_s, replica.may_run = now, replica.may_run and is_running
            commands.append(Release(replica.id, replica.why))
        elif not is_running:
            why = f"it ended while {replica.host} was unreachable"
            self._end_absent(replica, why, now, commands)
        elif was_known:
            replica.contact = Contact.KNOWN
        elif replica.has_greeted:
            self._restore_link(replica, now, commands)
        else:
            is_new = replica.state is State.STARTING and not replica.adopted
            replica.deadline_s = now + (START_S if is_new else GREETING_AFTER_ADOPTION_S)

    def _end_absent(
        self, replica: Replica, reason: str, now: float, commands: list[Command]
    ) -> None:
        """End a replica of which the driver has proved that it does not run."""
        lost = events.Lost(replica.id, reason, is_its_fault=False, cause=reason)
        self._replicas.end(replica, lost, now, commands)
        replica.may_run = False

    def give_up(self, replica: Replica, why: str, now: float, commands: list[Command]) -> None:
        """The host of a replica is gone: the replica takes no calls any more."""
        replica.contact = Contact.GONE
        if replica.state is not State.RELEASING:
            lost = events.Lost(replica.id, why, is_its_fault=False, cause=why)
            self._replicas.end(replica, lost, now, commands)
        self._replicas.touch(replica)
        replica.may_run, replica.deadline_s = False, float("inf")

    def abandon(self, replica: Replica, why: str, now: float, commands: list[Command]) -> None:
        """Remove the record of a replica whose host was removed by force."""
        self.give_up(replica, why, now, commands)
        replica.state = advance(replica.state, Step.RELEASED)
        self._cluster.remove(replica)
        commands.append(Abandon(replica.id, why))


def _limit_s(replica: Replica, spec: PoolSpec) -> float:
    """Return the time limit of a replica that has just connected again."""
    if replica.is_returning:
        return RESUME_S
    return term_limit_s(spec) if replica.terminated else state_limit_s(replica, spec)
