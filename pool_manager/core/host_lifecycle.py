"""The lifecycle of hosts: their connections, engines, drains and removals, with the effects on
replicas and placement."""

from __future__ import annotations

from collections.abc import Iterable

from pool_manager.core import events
from pool_manager.core.cluster import Cluster
from pool_manager.core.commands import Command, WatchEngine
from pool_manager.core.contacts import Contacts
from pool_manager.core.hosts import HostRecord, HostState, HostStep, advance_host
from pool_manager.core.state import Contact, Device
from registry.model.hosts import LOCAL_HOST

JOINING_S = 3.0
"""Seconds after a start within which replicas on a host that has not answered yet are expected, so
that calls wait for them instead of starting others."""

HostEvent = (
    events.HostDefined
    | events.HostUp
    | events.MemoryRead
    | events.HostUnreachable
    | events.HostRemoved
    | events.HostStocked
    | events.EngineLost
    | events.EngineBack
)


class HostLifecycle:
    """Applies the events of hosts. No other class changes their states.

    Events of earlier connections are harmless, also in a burst, as after a short break when all
    that was held back arrives at once: `HostRecord.epoch` is the highest epoch seen, and HostUp is
    applied only if its epoch is higher, HostUnreachable only if its epoch is not lower. So a late
    HostUnreachable cannot end a newer connection, a late HostUp cannot take a host for reachable or
    end replicas that were started since its list was read, and a repeated one has no effect.

    A host is closed for placement (`Ledger.closed`) unless it is UP and its engine answers. Then
    all reservations of its devices end: what is reserved there could not be used.
    """

    def __init__(
        self,
        cluster: Cluster,
        contacts: Contacts,
        standbys: int = 0,
        gpu_standbys: int = 0,
    ) -> None:
        """`standbys` and `gpu_standbys` as in `Machine`."""
        self._cluster = cluster
        self._contacts = contacts
        self._standbys, self._gpu_standbys = standbys, gpu_standbys
        self.keep_standbys(LOCAL_HOST)

    def apply(self, event: HostEvent, now: float, commands: list[Command]) -> set[str]:
        """Apply an event; return the pools that it may change. Events of unknown hosts are ignored.
        A host that cannot be lost is always connected, and cannot be removed."""
        if isinstance(event, events.HostDefined):
            return self._define(event, now)
        record = self._cluster.hosts.get(event.host)
        match event:
            case _ if record is None:
                return set()
            case events.HostStocked():
                record.files, record.images = event.files, event.images
                record.bytes_per_s = event.bytes_per_s
                return set()
            case events.MemoryRead():
                record.memory = event.memory
                return set()
            case events.EngineLost() | events.EngineBack():
                return self._on_engine(record, event, now, commands)
            case _ if not record.can_be_lost:
                return set()
            case events.HostUp() if event.epoch > record.epoch:
                return self._connect(record, event, now, commands)
            case events.HostUnreachable():
                return self._break(record, event, now, commands)
            case events.HostRemoved():
                record.is_removed = True
                record.is_forced = record.is_forced or event.is_forced
                return self._revise(record, now)
        return set()

    def tick(self, now: float, commands: list[Command]) -> set[str]:
        """End the waits for hosts that are away; return the pools that this may change."""
        touched: set[str] = set()
        for record in self._cluster.hosts.values():
            if not record.is_away:
                continue
            if now - record.since_s >= self._cluster.host_lost_s:
                touched |= self._give_up(record, now, commands)
            elif record.state is HostState.JOINING and now - record.since_s >= JOINING_S:
                touched |= self._stop_expecting(record)
        return touched

    def forget_removed(self, now: float, commands: list[Command]) -> set[str]:
        """Forget removed hosts without replicas; return the pools that this may change. If the host
        is not reachable and was removed by force, or is GONE and has never answered, its replicas
        are abandoned before: those of exclusive pools only when it is GONE, since they may run
        until then."""
        touched: set[str] = set()
        for record in [one for one in self._cluster.hosts.values() if one.is_removed]:
            touched |= self._abandon(record, now, commands)
            if self._cluster.on_host(record.name):
                continue
            there = self._devices(record.name)
            touched |= self._end_standbys(record.name) | self._cluster.blocked
            self._cluster.ledger.remove_devices(one.id for one in there)
            self._cluster.ledger.set_host_memory(record.name, 0.0)
            self._cluster.ledger.open_host(record.name)
            del self._cluster.hosts[record.name]
        return touched

    def keep_standbys(self, host: str) -> None:
        """Keep the standbys of a host: for its CPU slots, if it has any, and on each GPU. End those
        on kinds of devices that are to have none any more, or on a device that takes one replica at
        a time, where they would be the one."""
        there, kinds = self._devices(host), self._cluster.hosts[host].standby_kinds
        if self._standbys and any(one.kind == "cpu" for one in there):
            self._keep("", self._standbys, host, is_wanted="cpu" in kinds)
        for device in there:
            if self._gpu_standbys and device.kind != "cpu":
                is_wanted = device.kind in kinds and not device.is_exclusive
                self._keep(device.id, self._gpu_standbys, host, is_wanted=is_wanted)

    def _keep(self, device: str, count: int, host: str, *, is_wanted: bool) -> None:
        if is_wanted:
            self._cluster.keep_standbys(device, count, host)
        else:
            self._remove_pool(self._cluster.standby_key(device, host))

    def expect(self, name: str, now: float) -> None:
        """Record a host that replicas of an earlier manager are on, although it is not defined (any
        more): it is to be forgotten, unless it is defined."""
        if name not in self._cluster.hosts:
            record = HostRecord(name, HostState.JOINING, now, is_removed=True)
            self._cluster.hosts[name] = record
            self._close_or_open(record)

    def _define(self, event: events.HostDefined, now: float) -> set[str]:
        self.expect(event.host, now)
        record = self._cluster.hosts[event.host]
        record.labels, record.is_draining = dict(event.labels), event.is_draining
        record.is_removed = record.is_forced = False
        if record.is_reachable:
            self.keep_standbys(event.host)
        return self._revise(record, now)

    def _connect(
        self, record: HostRecord, event: events.HostUp, now: float, commands: list[Command]
    ) -> set[str]:
        """The host is connected: take its devices, and compare its replicas with the records."""
        record.epoch, record.abilities, record.rtt_s = event.epoch, event.abilities, event.rtt_s
        record.standby_kinds = event.standby_kinds
        record.engine_down = record.reason = ""
        if not record.is_reachable:
            self._step(record, HostStep.CONNECTED, now)
        self._take_devices(record.name, event.devices, event.memory_mib)
        for replica in self._cluster.on_host(record.name):
            is_running = replica.id in event.running
            self._contacts.find_again(replica, now, commands, is_running=is_running)
            self._contacts.release_displaced(replica, now, commands)
            if replica.role == "standby":
                charge = self._cluster.standby_charge(replica.first_device, replica.host)
                self._cluster.ledger.charge_bank(replica.id, *charge)
        if not record.is_removed:
            self.keep_standbys(record.name)
        return self._revise(record, now)

    def _take_devices(self, host: str, devices: Iterable[Device], memory_mib: float) -> None:
        """Replace the devices of a host. Nothing stays reserved there: sizes may have changed."""
        new = {one.id: one for one in devices if one.host == host}
        self._unreserve(host)
        missing = [one.id for one in self._devices(host) if one.id not in new]
        for id in missing:
            self._remove_pool(self._cluster.standby_key(id))
        self._cluster.ledger.remove_devices(missing)
        self._cluster.ledger.add_devices(new.values())
        self._cluster.ledger.set_host_memory(host, memory_mib)

    def _break(
        self, record: HostRecord, event: events.HostUnreachable, now: float, commands: list[Command]
    ) -> set[str]:
        """The connection is lost. A host that was away stays so for as long: its wait goes on."""
        if 0 < event.epoch < record.epoch:
            return set()
        record.epoch = max(record.epoch, event.epoch)
        record.reason = event.reason
        if record.state not in (HostState.UNREACHABLE, HostState.GONE):
            self._step(record, HostStep.BROKEN, now)
            for replica in self._cluster.on_host(record.name):
                self._contacts.lose(replica, record.obstacle, now, commands)
        return self._revise(record, now)

    def _stop_expecting(self, record: HostRecord) -> set[str]:
        """A host has not answered for so long after the start that calls need not wait for it."""
        there = self._cluster.on_host(record.name)
        expected = [one for one in there if one.contact is Contact.JOINING]
        for replica in expected:
            self._contacts.stop_expecting(replica)
        return self._affected(record.name) if expected else set()

    def _give_up(self, record: HostRecord, now: float, commands: list[Command]) -> set[str]:
        self._step(record, HostStep.EXPIRED, now)
        for replica in self._cluster.on_host(record.name):
            self._contacts.give_up(replica, record.obstacle, now, commands)
        return self._revise(record, now)

    def _abandon(self, record: HostRecord, now: float, commands: list[Command]) -> set[str]:
        touched: set[str] = set()
        if record.is_reachable or not (record.is_forced or record.has_never_answered):
            return touched
        for replica in self._cluster.on_host(record.name):
            is_exclusive = self._cluster.pools[replica.pool].is_exclusive
            if replica.contact is Contact.GONE or not is_exclusive:
                touched.add(replica.pool)
                self._contacts.abandon(replica, f"{record.name} was removed", now, commands)
        return touched

    def _on_engine(
        self,
        record: HostRecord,
        event: events.EngineLost | events.EngineBack,
        now: float,
        commands: list[Command],
    ) -> set[str]:
        """Record that the engine of a host stopped or resumed answering. Until it resumes, nothing
        is started there and no loss counts as a failure. While the host is not connected, its
        engine is not asked: HostUp says that it answers. After it, the answer of an earlier
        connection says nothing more."""
        is_lost = isinstance(event, events.EngineLost)
        if not record.is_reachable or not (is_lost or record.engine_down):
            return set()
        if isinstance(event, events.EngineLost):
            record.engine_down = event.reason
            commands.append(WatchEngine(event.reason, record.name))
        else:
            record.engine_down = ""
            self._contacts.end_missing(record.name, event.running, now, commands)
        return self._revise(record, now) | set(self._cluster.live)

    def _step(self, record: HostRecord, step: HostStep, now: float) -> None:
        record.state, record.since_s = advance_host(record.state, step), now

    def _revise(self, record: HostRecord, now: float) -> set[str]:
        """Begin or end the drain of a host that is connected; close it for placement or open it.
        Return the pools that this may change."""
        is_leaving = record.is_draining or record.is_removed
        if record.state is HostState.UP and is_leaving:
            self._step(record, HostStep.DRAINED, now)
        elif record.state is HostState.DRAINING and not is_leaving:
            self._step(record, HostStep.UNDRAINED, now)
        self._close_or_open(record)
        return self._affected(record.name)

    def _close_or_open(self, record: HostRecord) -> None:
        if record.obstacle:
            self._unreserve(record.name)
            self._cluster.ledger.close_host(record.name, record.obstacle)
        else:
            self._cluster.ledger.open_host(record.name)

    def _unreserve(self, host: str) -> None:
        ledger = self._cluster.ledger
        for reservation in ledger.reserved_on(host):
            self._cluster.unreserve(self._cluster.pools[reservation.need.pool])
        if ledger.claim is not None and ledger.devices[ledger.claim.devices[0]].host == host:
            ledger.claim = None

    def _affected(self, host: str) -> set[str]:
        """Return the pools of a host's replicas and standbys, and those that wait for a device."""
        there = {one.pool for one in self._cluster.on_host(host)}
        places = self._cluster.standby_places.items()
        return there | {key for key, one in places if one.host == host} | self._cluster.blocked

    def _devices(self, host: str) -> list[Device]:
        return [one for one in self._cluster.ledger.devices.values() if one.host == host]

    def _end_standbys(self, host: str) -> set[str]:
        places = self._cluster.standby_places.items()
        keys = {key for key, place in places if place.host == host}
        for key in keys:
            self._remove_pool(key)
        return keys

    def _remove_pool(self, key: str) -> None:
        if key in self._cluster.pools:
            self._cluster.pools[key].removed = True
