"""The hosts of a manager: their definitions, engines and views."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pool_manager.core import events
from pool_manager.core.hosts import HostRecord
from pool_manager.core.machine import Machine
from pool_manager.fleet import Fleet
from pool_manager.host import HostEngine, HostView, ReplicaHost
from pool_manager.hosts.kinds import EngineFactory
from pool_manager.hosts.local import LocalEngine, LocalHost
from pool_manager.hosts.services import HostServices
from pool_manager.hosts.stocking import Stocking
from pool_manager.subscribers import Subscribers
from registry.errors import BadRequest, FnError, Unknown
from registry.exchange import HostRoute
from registry.model.hosts import Host, host_order
from registry.tasks import Tasks
from runtime_image.contract.control import ReplicaRecord

if TYPE_CHECKING:
    from hosts.tls.door import LinkDoor

MEMBERS_MAX: Final = 2_000
"""Max hosts beside this machine: those of all definitions, which may be removed meanwhile, and the
nodes of clusters. An engine does without the nodes that are too many."""
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
    """The hosts of a manager, this machine among them. Each definition has an engine of the same
    name, which announces one host or several: `fleet` has them."""

    def __init__(  # noqa: PLR0913 - the collaborators of hosts
        self,
        local: LocalHost,
        labels: Mapping[str, str],
        engine_of: EngineFactory,
        seen: Collection[str],
        emit: Callable[[events.Event], None],
        path: Callable[[str], Path],
        rewrite: Callable[[ReplicaRecord], None],
        answers: Callable[[str], bool],
        tasks: Tasks,
        clock: Callable[[], float],
        wall: Callable[[], float],
        door: LinkDoor | None = None,
    ) -> None:
        """`labels` are those of this machine; `seen`, `path`, `rewrite`, `answers` and `door` as in
        `HostServices`."""
        self._engine_of, self._seen_before = engine_of, seen
        self._emit, self._path, self._rewrite, self._answers = emit, path, rewrite, answers
        self._tasks, self._clock, self._wall = tasks, clock, wall
        self._door = door
        self._owners: dict[str, str] = {local.name: local.name}
        """The name of the engine of each announced host."""
        self._defined: dict[str, Host] = {}
        self._removed: set[str] = set()
        """Names of engines that end once none of their hosts is left."""
        self._ending: dict[str, asyncio.Task[None]] = {}
        self.fleet = Fleet(local)
        self._seen: dict[str, tuple[object, ...]] = {}
        self._began_s = clock()
        self._is_open = False
        self.changed = Subscribers[[str]]()
        """Notified with the name of each host whose view changed, also after its removal."""
        self.stocking = Stocking(self.fleet, emit, tasks, clock)
        self.changed.subscribe(lambda _name: self.stocking.touch())
        own = LocalEngine(local, labels, self._services(local.name))
        self._engines: dict[str, HostEngine] = {local.name: own}
        self.close_own = local.close
        """Closes what this machine has as a host, after the last task."""

    def start(self) -> None:
        """Connect to the hosts defined so far, and at once to each that is defined later."""
        self._is_open = True
        for engine in self._engines.values():
            engine.open()

    def define(self, host: Host) -> None:
        """Add a host or change its settings. Raises BadRequest for one that cannot be, DriverError
        if this server can have no other hosts."""
        name = host.name
        known, before = self._engines.get(name), self._defined.get(name)
        if before is not None and type(before) is not type(host):
            raise BadRequest(
                f"host {name}: expected another name: one of another kind is being removed"
            )
        engine = known or self._engine_of(host, self._services(name))
        was_removed = name in self._removed
        self._removed.discard(name)
        try:
            engine.define(host)
        except FnError:
            if was_removed:
                self._removed.add(name)
            raise
        self._engines[name], self._defined[name] = engine, host
        if known is None and self._is_open:
            self._open(name, engine)

    def define_first(self) -> None:
        """Define this machine unless it was, with the labels of the settings."""
        name = self.fleet.first.name
        self.define(self._defined.get(name, Host(name)))

    def _open(self, name: str, engine: HostEngine) -> None:
        """Open an engine, after the end of one of the same name."""
        end = self._ending.get(name)
        if end is None:
            engine.open()
        else:
            end.add_done_callback(lambda _end: self._open_again(name, engine))

    def _open_again(self, name: str, engine: HostEngine) -> None:
        if self._engines.get(name) is engine:  # not removed meanwhile
            engine.open()

    def _services(self, engine: str) -> HostServices:
        return HostServices(
            announce=partial(self._announce, engine),
            withdraw=partial(self._withdraw, engine),
            seen=self._seen_before,
            records=self.fleet.records,
            path=self._path,
            rewrite=self._rewrite,
            answers=self._answers,
            emit=self._emit,
            changed=self.changed.notify,
            tasks=self._tasks,
            clock=self._clock,
            wall=self._wall,
            door=self._door,
        )

    def _announce(
        self,
        engine: str,
        host: ReplicaHost,
        labels: Mapping[str, str],
        is_draining: bool,
    ) -> None:
        name = host.name
        if engine in self._removed:
            return  # its hosts drain, and no other one joins
        if self._owners.get(name, engine) != engine:
            raise BadRequest(f"expected a host with a name of its own, got {name}")
        if name not in self._owners and len(self._owners) > MEMBERS_MAX:
            raise BadRequest(f"expected at most {MEMBERS_MAX} hosts")
        self._owners[name] = engine
        self.fleet.add(host)
        found = tuple(sorted({**labels, LABEL: name}.items()))
        self._emit(events.HostDefined(name, found, is_draining))
        self.stocking.touch()

    def _withdraw(self, engine: str, name: str, is_gone: bool) -> None:
        if self._owners.get(name) == engine:
            if is_gone:
                self._emit(events.HostUnreachable(name, "its engine does not have it any more"))
            self._emit(events.HostRemoved(name, is_gone))

    def why_kept(self, name: str) -> str:
        """Return why the definition of a host cannot be changed or removed, "" if it can."""
        engine = self._engines.get(self._owners.get(name, name))
        return engine.why_kept if engine is not None else ""

    def remove(self, name: str, *, is_forced: bool = False) -> None:
        """Begin to remove a definition: the replicas of its hosts drain first. Raises Unknown,
        BadRequest for one that cannot be removed."""
        engine = self._engines.get(name)
        if engine is None:
            raise Unknown(f"no host {name}")
        if engine.why_kept:
            raise BadRequest(engine.why_kept)
        self._removed.add(name)
        for host in self._of(name):
            self._emit(events.HostRemoved(host, is_forced))
        self._end_removed(name)

    def sync(self, machine: Machine) -> None:
        """Compare with the machine's records: forget the hosts that it has forgotten, end engines
        that were removed, and notify of changes. Called after each event that may concern a
        host."""
        records = machine.cluster.hosts
        # One that was announced a moment ago, while another event was handled, is not known yet.
        for name in (self._owners.keys() & self._seen.keys()) - records.keys():
            self._forget(name)
            self.changed.notify(name)
        for name, record in records.items():
            seen = (record.state, record.reason, record.engine_down, record.is_draining)
            if self._seen.get(name) != seen:
                self._seen[name] = seen
                self.changed.notify(name)

    def _forget(self, name: str) -> None:
        engine = self._owners.pop(name)
        self.fleet.remove(name)
        self._seen.pop(name, None)
        self._end_removed(engine)

    def _of(self, engine: str) -> list[str]:
        """Return the names of the hosts of an engine."""
        return [host for host, owner in self._owners.items() if owner == engine]

    def _end_removed(self, name: str) -> None:
        if name in self._removed and not self._of(name):
            self._end(name, is_removed=True)

    def _end(self, name: str, *, is_removed: bool) -> None:
        engine = self._engines.pop(name)
        self._defined.pop(name, None)
        self._removed.discard(name)
        task = self._tasks.spawn(f"end host {name}", engine.close(is_removed=is_removed))
        self._ending[name] = task
        task.add_done_callback(lambda done: self._ended(name, done))

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        if self._ending.get(name) is task:
            del self._ending[name]

    async def close(self) -> None:
        """End all connections. Replicas are not touched."""
        self._removed.clear()
        for name in list(self._engines):
            self._end(name, is_removed=False)
        if self._ending:
            await asyncio.wait(self._ending.values())

    def memories(self) -> Iterator[events.MemoryRead]:
        """Yield the memory of each host that reports it."""
        for host in self.fleet:
            if (memory := host.memory()) is not None:
                yield events.MemoryRead(host.name, memory)

    def routes(self) -> dict[str, HostRoute]:
        """Return how gateways reach the hosts that have replicas and need a route."""
        used = (one for one in self.fleet if self.fleet.records(one.name))
        return {name: way for one in used for name, way in one.transport.routes.items()}

    def views(self, machine: Machine) -> list[HostView]:
        """Return every host: this machine first, then by name."""
        records = machine.cluster.hosts
        present = _present(machine)
        return [self._view(records[name], present) for name in sorted(records, key=host_order)]

    def views_of(self, engine: str, machine: Machine) -> list[HostView]:
        """Return the hosts of an engine by name."""
        records, present = machine.cluster.hosts, _present(machine)
        return [
            self._view(records[name], present)
            for name in sorted(self._of(engine))
            if name in records
        ]

    def complaint_of(self, engine: str) -> str:
        """Return what an engine says is wrong with all of its hosts, "" for nothing or for no
        engine of this name."""
        found = self._engines.get(engine)
        return found.complaint if found is not None else ""

    def view(self, name: str, machine: Machine) -> HostView | None:
        """Return a host, None if there is none of this name."""
        record = machine.cluster.hosts.get(name)
        return self._view(record, _present(machine)) if record is not None else None

    def _view(self, record: HostRecord, present: Counter[tuple[str, str]]) -> HostView:
        found = HostView(
            record.name,
            state=record.state,
            reason=record.reason or _engine_complaint(record.engine_down),
            # The record of this machine is older than any clock.
            since_s=self._wall() - (self._clock() - max(record.since_s, self._began_s)),
            labels={name: text for name, text in record.labels.items() if name != LABEL},
            cpu_slots=present[record.name, "slots"],
            gpus=present[record.name, "gpus"],
            memory_mib=present[record.name, "mib"],
            replicas=present[record.name, "replicas"],
        )
        host = self.fleet.find(record.name)
        if host is None:
            return found
        facts = host.facts
        known = replace(
            found,
            abilities=facts.abilities,
            is_contained=facts.is_contained,
            pulls_images=facts.pulls_images,
        )
        return host.fill(known)


def _engine_complaint(reason: str) -> str:
    """Return the problem of a host whose engine is away for a reason; "" for none."""
    return f"its container engine does not answer: {reason}" if reason else ""


def _present(machine: Machine) -> Counter[tuple[str, str]]:
    """Return the numbers of CPU slots, GPUs and replicas by host, and the MiB of its CPU slots,
    counted in one pass."""
    found = Counter((one.host, "replicas") for one in machine.replicas())
    for device in machine.devices.values():
        found[device.host, "slots" if device.kind == "cpu" else "gpus"] += 1
        if device.kind == "cpu":
            found[device.host, "mib"] = round(device.memory_mib)
    return found
