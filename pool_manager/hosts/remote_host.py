"""One other host: its connection, and everything that is opened over it.

The SSH connection comes and goes (`hosts.connection`). Each time it is up, the host is *joined*:
folders, engine, images, control socket, replicas, agent. Opened parts stay over breaks; only a host
that is joined gets commands. A step that fails is tried again as long as the connection is up.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path, PurePosixPath
from typing import Final

import structlog

from hosts.connection import HostConnection
from hosts.errors import Unreachable
from hosts.files import FileCache
from pool_manager.core import events
from pool_manager.core.state import Device
from pool_manager.devices import bank_mib
from pool_manager.driver import EngineLosses, Exits
from pool_manager.drivers.docker.driver import DockerDriver
from pool_manager.gpus.memory import NONE
from pool_manager.hosts.agent import AGENT_ID, AgentReports
from pool_manager.hosts.agents import AgentKeeper
from pool_manager.hosts.control import HostControl
from pool_manager.hosts.devices import HostDevices
from pool_manager.hosts.engine import HostEngine
from pool_manager.hosts.files import HostFiles
from pool_manager.hosts.folders import HostFolders
from pool_manager.hosts.probing import Facts, read_facts
from pool_manager.hosts.services import HostServices
from pool_manager.hosts.settings import HostSettings, login_of
from pool_manager.hosts.transfers import MIB, Transfers
from pool_manager.hosts.view import HostView, complaint, state_of
from pool_manager.ports import ServerContainer
from pool_manager.settings import PoolSettings
from registry.errors import DriverError, EngineDown, FnError, HostDown
from registry.exchange import HostRoute
from registry.model.bundles import BundleFile
from registry.model.hosts import Host
from registry.tasks import Tasks
from runtime_image.contract.control import ReplicaRecord

log = structlog.get_logger()

JOIN_RETRY_S: Final = (1.0, 60.0)
"""Shortest and longest pause between two tries to join a host whose connection is up."""
END_S: Final = 10.0
"""Time limit of the steps on a host when the server closes."""


class RemoteHost:
    """One other host. Its operations are those of a driver; they raise DriverError, and HostDown
    while the host cannot be reached."""

    def __init__(
        self,
        host: Host,
        settings: HostSettings,
        pool: PoolSettings,
        services: HostServices,
        predecessor: RemoteHost | None = None,
    ) -> None:
        """`predecessor` is the same host under another login, whose replicas this one takes over.
        Raises BadRequest for an address that cannot be one."""
        login = login_of(host)
        self.host, self.name = host, host.name
        self._settings, self._pool, self._services = settings, pool, services
        self.owner = settings.owner(host.name)
        self.exits, self.engine_losses = Exits(), EngineLosses()
        self._tasks = Tasks(f"host {host.name}")
        self.control = HostControl(host.name, services.tasks)
        self.transfers = Transfers(lambda: services.changed(host.name))
        self.records: dict[str, ReplicaRecord] = {}
        self.epoch = 0
        self._has_successor = False
        if predecessor is not None:
            predecessor.hand_over("its login has changed")
            self.control, self.records = predecessor.control, predecessor.records
            self.epoch = predecessor.epoch
        self.is_joined = False
        self.reason = ""
        self._facts: Facts | None = None
        self._connection = HostConnection(
            login,
            self._tasks,
            name=host.name,
            on_up=self._on_up,
            on_down=self._on_down,
        )
        self._joining: asyncio.Task[None] | None = None
        self._folders: HostFolders | None = None
        self.files: HostFiles | None = None
        self.engine = HostEngine(host.name, self.owner, settings, pool, self.transfers)
        self._is_listening = False
        self.engine.exits.subscribe(self._on_exit)
        self.engine.losses.subscribe(self._on_engine_lost)
        reports = AgentReports(host.name, services.clock, services.wall)
        self.agent = AgentKeeper(
            host.name,
            self.control,
            pool.run_dir / f"agent-{self.owner}.json",
            pool,
            reports,
            self._tasks,
            services.clock,
            lambda: services.changed(host.name),
        )
        self._devices = HostDevices(host.name, reports, services.gpus, services.emit)

    # Life

    def open(self) -> None:
        """Connect in the background, and again after each break."""
        self._connection.open()

    def open_after(self, end: asyncio.Task[None] | None) -> None:
        """As `open`, once the connection of a predecessor has ended."""
        if end is None:
            self.open()
        else:
            self._tasks.spawn("open", self._open_after(end))

    async def _open_after(self, end: asyncio.Task[None]) -> None:
        await asyncio.wait([end])
        self.open()

    def hand_over(self, reason: str) -> None:
        """Leave the replicas to a successor."""
        self._stop_joining()
        self._leave(reason)
        self._has_successor = True

    async def close(self, *, is_removed: bool = False) -> None:
        """End the agent and the connection; with `is_removed` also remove this server's files
        there. Replicas are not touched."""
        with contextlib.suppress(FnError, OSError):
            async with asyncio.timeout(END_S):
                if self._joining is not None:
                    self._joining.cancel()
                    await asyncio.wait([self._joining])  # it may be starting an agent
                await self._end(is_removed=is_removed)
        self.is_joined = False
        if not self._has_successor:
            self.control.close()
        self.agent.close()
        await self._devices.close()
        await self.engine.close()
        await self._connection.close()
        await self._tasks.close()

    async def _end(self, *, is_removed: bool) -> None:
        if not self._connection.is_up or self._folders is None:
            return
        await self.agent.end()
        if is_removed:
            await self.engine.unpin_others(())
            await self._folders.remove_all()

    @property
    def is_up(self) -> bool:
        """Whether commands reach the host."""
        return self.is_joined and self._connection.is_up

    @property
    def why_down(self) -> str:
        """Why the host is not up, without its name."""
        reason = self.reason or self._connection.reason or "connected; it is being prepared"
        return reason.removeprefix(f"{self.name}: ")

    async def _on_up(self) -> None:
        """Join the host in the background: the connection waits for this call. Its listener is
        created after it, in a folder that the host may have lost: made here."""
        if self._has_successor:
            return
        self._stop_joining()
        if self._folders is not None:
            with contextlib.suppress(DriverError):  # joining says it
                await self._folders.prepare()
        self._joining = self._tasks.spawn("join", self._keep_joining())

    def _on_down(self, reason: str) -> None:
        if self._has_successor:
            return
        self._stop_joining()
        self._leave(reason)

    def _stop_joining(self) -> None:
        if self._joining is not None:
            self._joining.cancel()
            self._joining = None

    def _leave(self, reason: str) -> None:
        self.control.set_up(is_up=False)
        reason = reason.removeprefix(f"{self.name}: ")
        was_joined, self.is_joined, self.reason = self.is_joined, False, ""
        if was_joined:
            log.warning("a host is unreachable", host=self.name, reason=reason)
            self._services.emit(events.HostUnreachable(self.name, reason, self.epoch))
        self._services.changed(self.name)

    async def _keep_joining(self) -> None:
        pause_s, longest_s = JOIN_RETRY_S
        while True:
            try:
                await self._join()
            except (FnError, OSError, Unreachable) as error:
                self.reason = self.engine.named(str(error) or type(error).__name__)
            except Exception as error:  # without another try the host would stay away for ever
                self.reason = repr(error)
                log.exception("a host could not be joined", host=self.name)
            else:
                return
            log.warning("a host cannot be joined", host=self.name, reason=self.reason)
            self._services.changed(self.name)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, longest_s)

    async def _join(self) -> None:
        """Open missing parts, compare running replicas with the records, and report the host."""
        folders, facts = await self._open_folders()
        await self._listen(folders)
        try:
            path = self.host.engine.removeprefix("unix://")
            driver = await self.engine.open(self._connection, path, folders.base, facts)
            running = await driver.list()
        except HostDown:
            raise
        except EngineDown as error:
            if self.is_known and self._connection.is_up and not self.is_joined:
                # Its replicas can be reached all the same.
                self._report_up(frozenset(self.records))
                self._services.emit(events.EngineLost(self.engine.named(str(error)), self.name))
            raise
        is_running, has_gpus = AGENT_ID in running, self._may_have_gpus
        await self.agent.ensure(driver, folders, is_running=is_running, has_gpus=has_gpus)
        running = await self._without_leftovers(driver, running - {AGENT_ID})
        assert self.files is not None
        await self.files.refresh()
        is_late = await self._find_gpus(running, is_patient=False)
        # With only its engine away until now, starts may have begun since the list was read, and
        # EngineBack names the replicas that still run.
        self._report_up(frozenset(self.records if self.is_joined else running))
        self._tasks.spawn("leftovers", self._remove_leftovers(folders))
        if is_late:
            self._joining = self._tasks.spawn("GPUs", self._find_late_gpus())

    def _report_up(self, running: frozenset[str]) -> None:
        self.is_joined, self.reason = True, ""
        self.announce(running)
        log.info("a host is up", host=self.name, epoch=self.epoch, replicas=len(running))
        self.control.set_up(is_up=True)
        self._services.changed(self.name)

    def announce(self, running: frozenset[str]) -> None:
        """Report the host with its devices: after a join, or when they have changed."""
        self.epoch += 1
        devices = tuple(self.devices())
        rtt_s = self._connection.rtt_s
        self._services.emit(events.HostUp(self.name, self.epoch, devices, running, "docker", rtt_s))

    @property
    def _may_have_gpus(self) -> bool:
        has_nvidia = self._facts is not None and self._facts.has_nvidia
        return has_nvidia and self.host.gpus != NONE

    async def _find_gpus(self, running: Collection[str], *, is_patient: bool) -> bool:
        """Find the GPUs. True if that has to wait for an image or a report."""
        if not self._may_have_gpus:
            return False
        gpus, engine, records = self.host.gpus, self.engine, self.records
        return await self._devices.find(gpus, engine, records, running, is_patient=is_patient)

    async def _find_late_gpus(self) -> None:
        """Find the GPUs of a host that is up already, and report it again."""
        with contextlib.suppress(EngineDown):  # the next join does it
            while await self._find_gpus(await self.list(), is_patient=True):
                pass
        self._announce_again()
        self._services.changed(self.name)

    async def _open_folders(self) -> tuple[HostFolders, Facts]:
        facts = self._facts = await read_facts(self.name, self._connection.run)
        if self._folders is None:
            base = PurePosixPath(facts.home) / ".fngate" / self.owner
            self._folders = HostFolders(self.name, self._connection.run, base)
            cache, path = FileCache(self._connection, str(base)), self._services.path
            self.files = HostFiles(self.name, cache, self._folders, path, self.transfers)
        await self._folders.prepare()
        return self._folders, facts

    async def _listen(self, folders: HostFolders) -> None:
        if not self._is_listening:
            await self._connection.listen(folders.control_socket, self.control.accept, 0o666)
            self._is_listening = True

    async def _without_leftovers(self, driver: DockerDriver, running: set[str]) -> set[str]:
        """End containers without a record of this server; return the others."""
        leftovers = running - self.records.keys()
        if leftovers:
            log.info("unknown replicas are ended", host=self.name, replicas=sorted(leftovers))
        for id in leftovers:
            await driver.release(id)
        return running & self.records.keys()

    async def _remove_leftovers(self, folders: HostFolders) -> None:
        with contextlib.suppress(DriverError):
            for id in await folders.ids() - self.records.keys() - {AGENT_ID}:
                await folders.remove(id)

    def update(self, host: Host) -> None:
        """Apply changed settings that need no other login."""
        before, self.host = self.host, host
        if before.cpu_slots != host.cpu_slots:
            self._announce_again()

    def _announce_again(self) -> None:
        """Report changed devices. No replica ends by that, so that all are named."""
        if self.is_up:
            self.announce(frozenset(self.records))

    # Events of the engine

    def _on_exit(self, id: str, how: str) -> None:
        if id == AGENT_ID:
            self.agent.exited(how)
        else:
            self.exits.notify(id, how)

    def _on_engine_lost(self, reason: str) -> None:
        if self.is_up:
            self.engine_losses.notify(self.engine.named(reason))

    # Operations

    @asynccontextmanager
    async def _reached(self) -> AsyncIterator[DockerDriver]:
        """Yield the driver. Raises HostDown while the host is not up, and if the engine stops
        answering because the connection breaks."""
        driver = self.engine.driver
        if not self.is_up or driver is None:
            raise HostDown(f"host {self.name} is not up: {self.why_down}")
        try:
            yield driver
        except EngineDown as error:
            if isinstance(error, HostDown) or self._connection.is_up:
                raise
            raise HostDown(f"host {self.name} is not up: {self.why_down}") from error

    async def start(
        self, record: ReplicaRecord, log_file: Path, server: ServerContainer | None
    ) -> None:
        """Start a replica whose files are placed."""
        async with self._reached() as driver:
            assert self._folders is not None
            await self._folders.create(record.id, json.dumps(asdict(record)).encode())
            await driver.start(record, Path(), log_file, server)

    async def provide(self, server: ServerContainer) -> None:
        """Make image and mounts of a server available."""
        async with self._reached():
            assert self._folders is not None
            for mount in server.mounts:
                await self._folders.check_mount(mount)
            await self.engine.send(server.image, server.reference)

    async def place_files(self, record: ReplicaRecord, files: Sequence[BundleFile]) -> None:
        """Make files visible to a replica."""
        async with self._reached():
            assert self.files is not None
            await self.files.place(record.id, files)

    async def add_files(self, id: str, files: Collection[BundleFile]) -> None:
        """Add files to the model folder of a replica that runs."""
        async with self._reached():
            assert self.files is not None
            await self.files.add(id, files)

    async def connect(self, id: str) -> socket.socket:
        """Return a connection to the data socket of a replica. Raises OSError, too."""
        async with self._reached():
            return await self._connection.connect(self.data_socket(id))

    async def seal(self, id: str) -> None:
        """Close the data folder of a replica that has greeted to itself."""
        async with self._reached():
            assert self._folders is not None
            await self._folders.seal(id)

    async def list(self) -> set[str]:
        """Return the ids of all running replicas."""
        async with self._reached() as driver:
            return await driver.list() - {AGENT_ID}

    async def limit(self, record: ReplicaRecord) -> None:
        """Apply the limits of a replica's present binding."""
        async with self._reached() as driver:
            self.records[record.id] = record
            await driver.limit(record)

    async def pids(self, id: str) -> frozenset[int] | None:
        """Return the pids of a replica's processes on the host."""
        async with self._reached() as driver:
            return await driver.pids(id)

    async def used_mib(self, id: str) -> float | None:
        """Return the memory of a server's container."""
        async with self._reached() as driver:
            return await driver.used_mib(id)

    async def save_log(self, id: str, log_file: Path) -> None:
        """Append a replica's new output to `log_file`."""
        async with self._reached() as driver:
            await driver.save_log(id, log_file)

    async def terminate(self, id: str) -> None:
        """Send TERM to a replica."""
        async with self._reached() as driver:
            await driver.terminate(id)

    async def release(self, id: str) -> None:
        """End a replica and remove its folders."""
        async with self._reached() as driver:
            await driver.release(id)
            assert self._folders is not None
            try:
                await self._folders.remove(id)
            except HostDown:
                raise
            except DriverError as error:
                # Files of other users in its data folder: they take disk space, nothing else.
                log.warning("folders remain", host=self.name, replica=id, reason=error.message)
            self.records.pop(id, None)

    async def unpin_others(self, ids: Collection[str]) -> None:
        """Remove this server's pins from other images of servers."""
        async with self._reached():
            await self.engine.unpin_others(ids)

    # Facts

    def route(self) -> HostRoute:
        """Return how gateways log in."""
        host = self.host
        epoch = self._connection.generation
        return HostRoute(host.address, host.host_key, host.identity, epoch)

    def data_socket(self, id: str) -> str:
        """Return the path on the host for gateways' connections; "" before the first join."""
        return self._folders.data_socket(id) if self._folders is not None else ""

    @property
    def slots(self) -> int:
        """The number of its CPU slots."""
        return self.host.cpu_slots or self.engine.cores

    @property
    def threads_per_slot(self) -> int:
        """Engine threads of a replica on a CPU slot."""
        return max(1, self.engine.cores // self.slots)

    @property
    def is_known(self) -> bool:
        """Whether it was joined once."""
        return self.engine.driver is not None

    def fill(self, view: HostView) -> HostView:
        """Return the view of this host with the facts known here; the machine adds the others."""
        report, stock = self.agent.reports.last, self.files.stock if self.files else {}
        disk_free_mib = report.disk_free_mib if report else None
        wrong = complaint(disk_free_mib, self.agent.reports.clock_offset_s)
        return replace(
            view,
            address=self.host.address,
            state=state_of(view.state, self.transfers.text),
            reason=(view.reason or wrong) if self.is_up else self.why_down,
            driver="docker" if self.is_known else "",
            engine_version=self.engine.version,
            rtt_ms=self._connection.rtt_s * 1e3 if self.is_up else None,
            epoch=self.epoch,
            agent=(self.agent.reason or self._devices.why_none) if self.is_up else "",
            disk_free_mib=disk_free_mib,
            cached_files=len(stock),
            cached_mib=sum(stock.values()) / MIB,
            images=tuple(sorted(self.engine.images)),
            clock_offset_s=self.agent.reports.clock_offset_s,
            transfer=self.transfers.text,
            transferred_bytes=self.transfers.total_bytes,
        )

    def devices(self) -> Sequence[Device]:
        """Return its devices."""
        return self._devices.all(
            bank_mib(self.engine.memory_mib), self.slots, self.records.values()
        )
