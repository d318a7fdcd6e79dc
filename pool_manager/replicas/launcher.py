"""Launches, binds, adopts and releases single replicas; starts pass through the start queue."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

from pool_manager.core import events
from pool_manager.core.commands import Assign, Bind, Launch
from pool_manager.fleet import Fleet
from pool_manager.host import Located, ReplicaHost
from pool_manager.ports import Binding, ServerContainer
from pool_manager.replicas import records
from pool_manager.replicas.control import Control
from pool_manager.replicas.file_transfer import PartReader
from pool_manager.replicas.output import ReplicaOutput
from pool_manager.replicas.python_runs import PythonRuns
from pool_manager.replicas.relay import EventRelay, Wiring
from pool_manager.replicas.run_folders import STANDBY_LOGS, RunFolders
from pool_manager.replicas.start_gate import StartGate
from pool_manager.settings import PoolSettings
from registry.errors import (
    Conflict,
    DriverError,
    EngineDown,
    EnvironmentRefused,
    FnError,
    HostDown,
    PlacementRefused,
    StartRefused,
    Unknown,
)
from registry.files import is_exhausted
from registry.model.bundles import BundleFile
from registry.tasks import Tasks
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.enrolment import FetchedFile
from runtime_image.contract.server import ENGINE, ServerSpec

log = structlog.get_logger()

LASTING: Final = (StartRefused, EnvironmentRefused)
"""Errors of a start that the next one would have as well."""


def without(text: str, secrets: Iterable[str]) -> str:
    """Return a text in which *** replaces the values of secrets."""
    for value in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(value, "***")
    return text


class Launcher:
    """Carries out the machine's commands on single replicas; emits their events to `wiring`."""

    def __init__(
        self,
        settings: PoolSettings,
        fleet: Fleet,
        folders: RunFolders,
        wiring: Wiring,
        tasks: Tasks,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._fleet = fleet
        self.folders = folders
        self._emit, self._occupancy = wiring.emit, wiring.occupancy
        self._secrets = wiring.secrets
        self._tasks = tasks
        self._clock = clock
        self.output = ReplicaOutput(fleet.of, folders, tasks)
        self._python = PythonRuns(settings)
        self._relay = EventRelay(
            fleet, settings, self.output, wiring, self._end_start, tasks, clock
        )
        self._controls: dict[str, Control] = {}
        self._work: dict[str, set[asyncio.Task[None]]] = {}
        self._releases: set[str] = set()
        self._unreleased: dict[str, str] = {}
        """Why the last release of a replica failed, by its id."""
        self._turn = wiring.turn
        self._gates: dict[str, StartGate] = {}
        self._entered: dict[str, tuple[StartGate, ReplicaHost]] = {}

    def launch(self, command: Launch, binding: Binding | None, device_kind: str) -> None:
        """Start a replica in the background, a standby if `binding` is None. On failure Lost is
        emitted."""
        self._begin(f"launch {command.id}", command.id, self._launch(command, binding, device_kind))

    def assign(self, command: Assign, binding: Binding, device_kind: str) -> None:
        """Bind a connected standby to a model in the background. On failure Lost is emitted."""
        # On a busy host its HELLO may arrive before the driver's start has returned.
        launching = set(self._work.get(command.id, ()))
        work = self._assign(command, binding, device_kind, launching)
        self._begin(f"assign {command.id}", command.id, work)

    def bind(self, command: Bind, binding: Binding) -> None:
        """Command a replica that was launched for its model to load it."""
        id, host = command.id, self._fleet.of(command.id)
        self._begin(f"bind {id}", id, self._bind(id, binding, host))

    async def _bind(self, id: str, binding: Binding, host: ReplicaHost) -> None:
        with self._lost_on_error(id, "a replica could not be bound", host.name):
            if not await self._seal(id, host):
                return
            secrets: dict[str, str] = {}
            if binding.secrets and binding.container is None:
                secrets = records.variables(binding, await self._values(binding))
            files = await host.files.to_fetch(id, binding)
            record, control = self._relay.records.get(id), self._controls.get(id)
            if record is not None and control is not None:
                self._relay.on_bind(id)
                spec = binding.spec
                if isinstance(spec, ServerSpec):
                    spec = self._python.spec(spec, binding, self.folders.run_dir(id))
                control.bind(records.bind_request(record, spec, self._clock(), secrets, files))

    async def _seal(self, id: str, host: ReplicaHost) -> bool:
        """Close a replica's data folder before its BIND. False if its host cannot be reached: it
        greets anew when it can, and is bound then."""
        try:
            await host.transport.seal(id)
        except HostDown as error:
            log.info("a replica cannot be bound yet", replica=id, reason=error.message)
            return False
        return True

    def _begin(self, name: str, id: str, work: Coroutine[None, None, None]) -> None:
        """Run slow work on a replica in the background; its release waits for the end of it."""
        task = self._tasks.spawn(name, work)
        self._work.setdefault(id, set()).add(task)
        task.add_done_callback(lambda done: self._ended(id, done))

    def _ended(self, id: str, task: asyncio.Task[None]) -> None:
        self._work[id].discard(task)
        if not self._work[id]:
            del self._work[id]

    async def _launch(self, command: Launch, binding: Binding | None, device_kind: str) -> None:
        """Start a replica. What it needs is made available on its host before the start is
        admitted, because that may take minutes."""
        id, asked_s = command.id, self._clock()
        with self._lost_on_error(id, "a replica could not be started", command.host):
            host = self._fleet.get(command.host)
            record = records.unbound(command, device_kind, self._settings, asked_s)
            record = host.complete(record)
            if binding is not None:
                record = self._bound(record, command, binding, device_kind, host)
            self._fleet.adopt(record)
            if binding is not None:
                await host.files.send(binding)
            sent_s = self._clock()
            if not await self._enter(id, host):
                return
            begun_s = self._clock()
            self._emit(events.Begun(id))
            self._occupancy.begin(id, command.devices)
            # A trial's files have just been written, and are in memory.
            await host.files.place(id, binding, is_read_soon=command.role == "serve")
            log.debug("a replica has its files", replica=id, took_s=round(sent_s - asked_s, 3))
            phases = records.waited(command, begun_s - asked_s).phases
            record = replace(record, launched_s=begun_s, phases=phases)
            self.folders.record(record)
            self._fleet.adopt(record)
            await host.files.record(record)
            if binding is not None and binding.python is not None:
                run_dir = self.folders.run_dir(id)
                await asyncio.to_thread(self._python.prepare, binding, record, run_dir)
            log_file = self.folders.log_file(binding.name if binding else STANDBY_LOGS, id)
            self._open_control(record, log_file, host, is_new=True)
            await self._start(record, host, await self._container(binding))

    async def _container(self, binding: Binding | None) -> ServerContainer | None:
        """Return the container of a server that is apart, with the values of its secrets."""
        if binding is None or binding.container is None:
            return None
        values = await self._values(binding)
        secrets = {name: values[secret] for name, secret in binding.secrets.items()}
        return replace(binding.container, secrets=secrets)

    async def _values(self, binding: Binding) -> dict[str, str]:
        """Return the values of a server's secrets by name. Raises StartRefused for one that is
        missing or cannot be read, StoreUnavailable."""
        try:
            return await self._secrets.values(set(binding.secrets.values()))
        except (Unknown, Conflict) as error:
            raise StartRefused(error.message) from error

    async def _start(
        self, record: ReplicaRecord, host: ReplicaHost, server: ServerContainer | None
    ) -> None:
        run_dir, log_file = self.folders.run_dir(record.id), self.output.logs[record.id]
        try:
            await host.driver.start(record, run_dir, log_file, server)
        except DriverError as error:
            if server is None or not server.secrets:
                raise
            # An engine may quote the variables that it refuses.
            text = without(error.message, server.secrets.values())
            if isinstance(error, PlacementRefused):
                raise PlacementRefused(text, refused_s=error.refused_s) from None
            raise type(error)(text) from None

    async def _assign(
        self,
        command: Assign,
        binding: Binding,
        device_kind: str,
        launching: set[asyncio.Task[None]],
    ) -> None:
        id, assigned_s = command.id, self._clock()
        if launching:
            await asyncio.wait(launching)
        host = self._fleet.of(id)
        with self._lost_on_error(id, "a standby could not be given its model", host.name):
            await host.files.send(binding)
            await self._admit_assigned(command, binding, device_kind, assigned_s, host)

    async def _admit_assigned(
        self,
        command: Assign,
        binding: Binding,
        device_kind: str,
        assigned_s: float,
        host: ReplicaHost,
    ) -> None:
        id = command.id
        if not await self._enter(id, host):
            return
        begun_s = self._clock()
        self._emit(events.Begun(id))
        if (control := self._controls.get(id)) and not control.is_answering:
            # Callers should not wait for the PING limit, and the model is not at fault.
            self._emit(events.Lost(id, "the standby hangs", is_its_fault=False))
            return
        standby = self._standby(id)
        self._occupancy.begin(id, command.devices)
        await host.files.place(id, binding, is_read_soon=command.role == "serve")
        waited = records.waited(command, begun_s - assigned_s)
        record = self._bound(standby, waited, binding, device_kind, host)
        # Recorded before the message is sent: a later manager adopts by the record.
        self.rewrite(record)
        self.output.begin(id, self.folders.claim_log(binding.name, id))
        await host.driver.limit(record)
        files = await host.files.to_fetch(id, binding)
        if control := self._controls.get(id):  # None if it was released in the meantime
            self._relay.on_bind(id)
            control.bind(records.bind_request(record, binding.spec, begun_s, files=files))
        await asyncio.to_thread(self.folders.trim_logs, binding.name)

    def rewrite(self, record: ReplicaRecord) -> None:
        """Replace the record of a replica, on the disk first. Raises OSError."""
        self.folders.rewrite(record)
        self._relay.records[record.id] = record
        self._fleet.adopt(record)

    async def add_files(self, id: str, files: Collection[BundleFile]) -> list[FetchedFile]:
        """Add stored files to the model folder of a replica that runs; return those that it has to
        fetch. Raises FnError, OSError."""
        to_fetch = await self._fleet.of(id).files.add(id, files)
        if id not in self._controls:  # its release may have removed the folder meanwhile
            await asyncio.to_thread(self.folders.remove_models, id)
        return to_fetch

    async def _enter(self, id: str, host: ReplicaHost) -> bool:
        """Wait until a start is admitted; False if the replica is to be released instead."""
        if id in self._releases:
            return False
        gate = self._gate(host)
        self._entered[id] = gate, host
        return await gate.enter(id)

    def _gate(self, host: ReplicaHost) -> StartGate:
        """Return the gate of a host: its starts take the time of its own cores."""
        if host.name not in self._gates:
            for gone in self._gates.keys() - {one.name for one in self._fleet}:
                del self._gates[gone]
            most = host.facts.starts_at_once
            self._gates[host.name] = StartGate(most, self._clock, self._turn)
        return self._gates[host.name]

    def _standby(self, id: str) -> ReplicaRecord:
        """Return the record of a connected standby. Raises DriverError for any other replica."""
        record, control = self._relay.records.get(id), self._controls.get(id)
        if record is None or control is None or not control.is_greeted:
            raise DriverError(f"expected a connected standby, got {id}, which is not connected")
        if record.bound:
            raise DriverError(f"expected a standby, got {id}, which is bound to {record.bound}")
        return record

    @contextlib.contextmanager
    def _lost_on_error(self, id: str, what: str, host: str) -> Iterator[None]:
        try:
            yield
        except EngineDown as error:
            reason = self._fleet.explained(host, error)
            if not isinstance(reason, HostDown):
                # Emitted before Lost, so that no replacement is started.
                self._emit(events.EngineLost(str(reason), host))
            self._emit(events.Lost(id, str(reason), is_its_fault=False))
        except PlacementRefused as error:
            log.info("a replica was refused its place", replica=id, reason=error.message)
            why, refused_s = error.message, error.refused_s
            self._emit(events.Lost(id, why, is_its_fault=False, cause=why, refused_s=refused_s))
        except (FnError, OSError) as error:
            log.warning(what, replica=id, reason=str(error))
            is_lasting = isinstance(error, LASTING)
            is_its_fault = not is_exhausted(error)
            lost = events.Lost(id, str(error), is_its_fault=is_its_fault, is_lasting=is_lasting)
            self._emit(lost)

    def _bound(
        self,
        record: ReplicaRecord,
        command: Launch | Assign,
        binding: Binding,
        device_kind: str,
        host: ReplicaHost,
    ) -> ReplicaRecord:
        devices = max(1, len(command.devices))
        cap = records.cap_mib(binding, self._settings, device_kind, devices)
        if advice := records.network_advice(binding, is_contained=host.facts.is_contained):
            self._relay.network_advice[record.id] = advice
        return records.bound(record, command, binding, device_kind, cap)

    def adopt(self, record: ReplicaRecord, name: str) -> None:
        """Listen for the HELLO of a replica that an earlier manager started.

        `name` is that of its function, "" for a standby. Model files of an assignment that was not
        recorded yet are removed.
        """
        id, host = record.id, self._fleet.get(record.host)
        self._fleet.adopt(record)
        host.files.adopt(record)
        log_file = self.folders.claim_log(name if record.bound else STANDBY_LOGS, id)
        self._occupancy.adopt(id, record.devices)
        self._open_control(record, log_file, host, is_new=False)
        if record.bound:
            # The earlier manager may have ended before it set the replica's limits.
            self._begin(f"limit {id}", id, self._limit(record))

    async def _limit(self, record: ReplicaRecord) -> None:
        with self._lost_on_error(record.id, "a replica could not be limited", record.host):
            await self._fleet.get(record.host).transport.wait_up()
            # Asked for by name again: with another login the host has a successor.
            await self._fleet.get(record.host).driver.limit(record)

    def host_is_up(self, host: str) -> None:
        """Measure the replicas of a host on its GPUs, which are known now."""
        for record in self._relay.records.values():
            if record.host == host:
                self._occupancy.adopt(record.id, record.devices)

    def located(self, id: str) -> Located:
        """Return how gateways reach a replica."""
        record = self._relay.records.get(id)
        if record is None:  # it was released
            return Located("")
        return self._fleet.of(id).transport.located(record)

    def reader(self, id: str) -> AbstractAsyncContextManager[PartReader]:
        """Connect to a replica as gateways do, to fetch files that it made. Raises FnError,
        OSError, LinkError."""
        record = self._relay.records.get(id)
        if record is None:
            raise ConnectionError(f"{id} was released")
        return self._fleet.of(id).transport.reader(record)

    def _open_control(
        self, record: ReplicaRecord, log_file: Path, host: ReplicaHost, *, is_new: bool
    ) -> None:
        id = record.id
        self._relay.begin(record)
        self.output.begin(id, log_file)
        listening = host.transport.listen(record, is_new=is_new)
        control = Control(
            id,
            record.token,
            listening.connections,
            listening.data_listener,
            self._relay,
            bound=record.bound,
            is_server=record.engine == ENGINE,
        )
        self._controls[id] = control
        control.open(self._tasks, self._settings.ping_s)

    async def remove_old_runners(self) -> None:
        """Remove the code for Python functions that no replica uses any more."""
        await asyncio.to_thread(self._python.remove_old)

    @property
    def starts(self) -> StartGate:
        """The gate of the first host of the fleet."""
        return self._gate(self._fleet.first)

    def control(self, id: str) -> Control | None:
        """Return the control link of a replica, None once its release has begun."""
        return self._controls.get(id)

    def is_answering(self, host: str) -> bool:
        """Return whether a replica of a host has answered the last PINGs."""
        controls = (self._controls.get(id) for id in self._fleet.records(host))
        return any(one is not None and one.is_greeted and one.is_answering for one in controls)

    def terminate(self, id: str) -> None:
        """Send TERM to a replica in the background."""
        self._tasks.spawn(f"terminate {id}", self._terminate(id))

    async def _terminate(self, id: str) -> None:
        await self._fleet.of(id).driver.terminate(id)

    def release(self, id: str) -> None:
        """Release a replica in the background; Released or NotReleased is emitted. Further calls
        before that have no effect."""
        self._close_control(id)
        self._end_start(id)
        if id not in self._releases:
            self._releases.add(id)
            self._tasks.spawn(f"release {id}", self._release(id))

    def _close_control(self, id: str) -> None:
        control = self._controls.pop(id, None)
        if control is not None:
            control.close()

    async def _release(self, id: str) -> None:
        try:
            await self._end(id)
            self._emit(events.Released(id))
        except Exception as error:
            # For any error: without an event the release would never be retried.
            if isinstance(error, EngineDown):
                host = self._fleet.name_of(id)
                error = self._fleet.explained(host, error)
                if not isinstance(error, HostDown):
                    self._emit(events.EngineLost(str(error), host))
            reason, is_odd = str(error) or repr(error), not isinstance(error, DriverError)
            is_new = self._unreleased.get(id) != reason  # it is tried again every few seconds
            self._unreleased[id] = reason
            if is_new:
                log.error(
                    "a replica cannot be released", replica=id, reason=reason, exc_info=is_odd
                )
            self._emit(events.NotReleased(id, reason))
        finally:
            self._releases.discard(id)

    def abandon(self, id: str) -> None:
        """Remove what this machine keeps of a replica on a host that was removed while it could not
        be reached."""
        self._close_control(id)
        self._end_start(id)
        for work in self._work.get(id, ()):
            work.cancel()
        self._tasks.spawn(f"abandon {id}", self._abandon(id))

    async def _abandon(self, id: str) -> None:
        if work := self._work.get(id):
            await asyncio.wait(work)
        await asyncio.to_thread(self.folders.remove, id)
        self._forget(id)

    def _forget(self, id: str) -> None:
        self._unreleased.pop(id, None)
        self.output.end(id)
        self._relay.forget(id)
        self._occupancy.forget(id)
        self._fleet.forget(id)

    async def _end(self, id: str) -> None:
        # A start that is still running would leave an unowned replica and linked files behind.
        if work := self._work.get(id):
            await asyncio.wait(work)
            self._close_control(id)
        await self.output.save(id)
        await self._occupancy.release(id)
        await self._fleet.of(id).files.remove(id)
        if path := self.output.logs.get(id):
            await asyncio.to_thread(self.folders.bound_log, path)
        await asyncio.to_thread(self.folders.remove, id)
        self._forget(id)

    def _end_start(self, id: str) -> None:
        """End a start that is over or cancelled."""
        if found := self._entered.pop(id, None):
            gate, host = found
            gate.leave(id)
            host.files.end_reading(id)
