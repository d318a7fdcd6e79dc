"""The hosts of a manager: their definitions, connections and views."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from pool_manager.core import events
from pool_manager.core.hosts import HostMemory, HostRecord
from pool_manager.core.machine import Machine
from pool_manager.devices import read_host_memory
from pool_manager.driver import Driver
from pool_manager.hosts.fleet import Fleet
from pool_manager.hosts.services import HostServices
from pool_manager.hosts.settings import HostSettings
from pool_manager.hosts.stocking import Stocking
from pool_manager.hosts.view import HostView, engine_complaint
from pool_manager.ports import Gpus
from pool_manager.settings import PoolSettings
from pool_manager.subscribers import Subscribers
from registry.errors import BadRequest, DriverError, Unknown
from registry.exchange import HostRoute
from registry.model.hosts import HOSTS_MAX, LOCAL_HOST, Host
from registry.tasks import Tasks

if TYPE_CHECKING:
    from pool_manager.hosts.remote_host import RemoteHost

log = structlog.get_logger()

MEMBERS_MAX: Final = 2 * HOSTS_MAX
"""Max hosts beside this machine: all stored ones, and as many that are being removed."""
LABEL: Final = "host"
"""Label that every host has: its name."""
EVENTS_OF_HOSTS: Final = (
    events.HostDefined,
    events.HostUp,
    events.HostUnreachable,
    events.HostRemoved,
    events.EngineLost,
    events.EngineBack,
    events.Released,
    events.Lost,
    events.Tick,
)
"""Events after which the records of hosts may have changed."""


class Hosts:
    """The other hosts of a manager, and this machine as one of them.

    `fleet` is the driver of all of them; `gpus` has the GPUs of the others by host.
    """

    def __init__(  # noqa: PLR0913 - the collaborators of hosts
        self,
        settings: HostSettings | None,
        pool: PoolSettings,
        driver: Driver,
        emit: Callable[[events.Event], None],
        path: Callable[[str], Path],
        tasks: Tasks,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        """`settings` is None for a server without other hosts; `path` returns where a file is kept
        on this machine by its sha256."""
        self._settings, self._pool = settings, pool
        self._emit, self._path = emit, path
        self._tasks, self._clock, self._wall = tasks, clock, wall
        self._members: dict[str, RemoteHost] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._defined: dict[str, Host] = {}
        self.gpus: dict[str, Gpus] = {}
        self.fleet = Fleet(driver, self._members)
        self._local = driver
        self._seen: dict[str, tuple[object, ...]] = {}
        self._began_s = clock()
        self._is_open = False
        self.changed = Subscribers[[str]]()
        """Notified with the name of each host whose view changed, also after its removal."""
        self.stocking = Stocking(self._members, emit, tasks, clock)
        self.changed.subscribe(lambda _name: self.stocking.touch())

    def start(self) -> None:
        """Connect to the hosts defined so far, and at once to each that is defined later."""
        self._is_open = True
        for host in self._members.values():
            host.open()

    def define(self, host: Host) -> None:
        """Add a host or change its settings. Raises BadRequest for an address that cannot be one,
        DriverError if this server can have no other hosts."""
        if host.name != LOCAL_HOST:
            self._open(host)
        self._defined[host.name] = host
        given = self._local_labels() if host.name == LOCAL_HOST else {}
        labels = {**given, **host.labels, LABEL: host.name}
        self._emit(events.HostDefined(host.name, tuple(sorted(labels.items())), host.is_draining))

    def define_local(self) -> None:
        """Define this machine, with the labels of the settings."""
        self.define(self._defined.get(LOCAL_HOST, Host(LOCAL_HOST, "")))

    def _local_labels(self) -> dict[str, str]:
        return dict(self._settings.local_labels) if self._settings is not None else {}

    def _open(self, host: Host) -> None:
        if self._settings is None:
            raise DriverError(f"host {host.name}: this server can have no other hosts")
        if len(self._members) >= MEMBERS_MAX and host.name not in self._members:
            raise BadRequest(f"expected at most {MEMBERS_MAX} hosts")
        present = self._members.get(host.name)
        if present is not None and _login(present.host) == _login(host):
            present.update(host)
            self.stocking.touch()
            return
        # Imported here, as servers without other hosts need neither asyncssh nor docker.
        from pool_manager.hosts.remote_host import RemoteHost

        services = HostServices(
            self._path,
            self.gpus,
            self._emit,
            self.changed.notify,
            self._tasks,
            self._clock,
            self._wall,
        )
        made = RemoteHost(host, self._settings, self._pool, services, present)
        if present is not None:
            self._end(host.name, present, is_removed=False)
        made.exits.subscribe(self.fleet.exits.notify)
        made.engine_losses.subscribe(
            lambda reason: self._emit(events.EngineLost(reason, host.name))
        )
        log.info("a host is defined", host=host.name, address=host.address)
        self._members[host.name] = made
        if self._is_open:
            made.open_after(self._ending.get(host.name))

    def remove(self, name: str, *, is_forced: bool = False) -> None:
        """Begin to remove a host: its replicas drain first. Raises Unknown, BadRequest for the
        local host."""
        if name == LOCAL_HOST:
            raise BadRequest("the local host cannot be removed")
        if name not in self._members:
            raise Unknown(f"no host {name}")
        self._emit(events.HostRemoved(name, is_forced))

    def sync(self, machine: Machine) -> None:
        """Compare with the machine's records: end the hosts that it has forgotten, and notify of
        changes. Called after each event that may concern a host."""
        records = machine.cluster.hosts
        for name in self._members.keys() - records.keys():
            self._defined.pop(name, None)
            self._end(name, self._members.pop(name), is_removed=True)
            self._seen.pop(name, None)
            self.changed.notify(name)
        for name, record in records.items():
            seen = (record.state, record.reason, record.engine_down, record.is_draining)
            if self._seen.get(name) != seen:
                self._seen[name] = seen
                self.changed.notify(name)

    def _end(self, name: str, host: RemoteHost, *, is_removed: bool) -> None:
        task = self._tasks.spawn(f"end host {name}", host.close(is_removed=is_removed))
        self._ending[name] = task
        task.add_done_callback(lambda done: self._ended(name, done))

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        if self._ending.get(name) is task:
            del self._ending[name]

    async def close(self) -> None:
        """End all connections. Replicas are not touched."""
        for name in list(self._members):
            self._end(name, self._members.pop(name), is_removed=False)
        if self._ending:
            await asyncio.wait(self._ending.values())

    def members(self) -> list[RemoteHost]:
        """Return the hosts beside this machine."""
        return list(self._members.values())

    def memories(self) -> Iterator[events.MemoryRead]:
        """Yield the memory of this machine, and of the others whose agents report."""
        if (here := read_host_memory()) is not None:
            yield events.MemoryRead(LOCAL_HOST, here)
        for host in self.members():
            reports = host.agent.reports
            if reports.is_fresh and (last := reports.last) is not None:
                memory = HostMemory(last.memory_mib, last.memory_free_mib)
                yield events.MemoryRead(host.name, memory)

    def routes(self) -> dict[str, HostRoute]:
        """Return how gateways log in to the hosts that have replicas."""
        return {name: one.route() for name, one in self._members.items() if one.records}

    def views(self, machine: Machine) -> list[HostView]:
        """Return every host: this machine first, then by name."""
        records = machine.cluster.hosts
        names = sorted(records, key=lambda name: (name != LOCAL_HOST, name))
        present = _present(machine)
        return [self._view(records[name], present) for name in names]

    def view(self, name: str, machine: Machine) -> HostView | None:
        """Return a host, None if there is none of this name."""
        record = machine.cluster.hosts.get(name)
        return self._view(record, _present(machine)) if record is not None else None

    def _view(self, record: HostRecord, present: Counter[tuple[str, str]]) -> HostView:
        found = HostView(
            record.name,
            state=record.state,
            reason=record.reason or engine_complaint(record.engine_down),
            # The record of this machine is older than any clock.
            since_s=self._wall() - (self._clock() - max(record.since_s, self._began_s)),
            labels={name: text for name, text in record.labels.items() if name != LABEL},
            driver=record.driver,
            cpu_slots=present[record.name, "slots"],
            gpus=present[record.name, "gpus"],
            memory_mib=present[record.name, "mib"],
            replicas=present[record.name, "replicas"],
        )
        if record.is_local:
            return replace(found, driver=self._local.kind)
        member = self._members.get(record.name)
        return member.fill(found) if member is not None else found


def _present(machine: Machine) -> Counter[tuple[str, str]]:
    """Return the numbers of CPU slots, GPUs and replicas by host, and the MiB of its CPU slots,
    counted in one pass."""
    found = Counter((one.host, "replicas") for one in machine.replicas())
    for device in machine.devices.values():
        found[device.host, "slots" if device.kind == "cpu" else "gpus"] += 1
        if device.kind == "cpu":
            found[device.host, "mib"] = round(device.memory_mib)
    return found


def _login(host: Host) -> tuple[str, ...]:
    """Return the settings whose change needs another connection, another engine or other GPUs."""
    return host.address, host.host_key, host.identity, host.engine, host.gpus
