"""One other host: its connection, and everything that is opened over it.

The SSH connection comes and goes (`hosts.connection`). Each time it is up, the host is *joined*:
folders, engine, images, control socket, replicas, agent. Opened parts stay over breaks; only a host
that is joined gets commands. A step that fails is tried again as long as the connection is up.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from secrets import token_hex
from typing import Final

import structlog

from hosts.connection import HostConnection
from hosts.errors import Unreachable
from hosts.files import FileCache
from hosts.login import Login, login_to
from pool_manager.core import events
from pool_manager.core.hosts import HostMemory, HostState
from pool_manager.core.state import Device
from pool_manager.devices import bank_mib
from pool_manager.driver import Driver, EngineLosses, Exit, Exits, Processes
from pool_manager.drivers.docker.driver import DockerDriver
from pool_manager.drivers.docker.spec import CONTROL_TARGET, DATA_TARGET
from pool_manager.drivers.environment import MODEL_TARGET
from pool_manager.gpus.memory import NONE
from pool_manager.host import HostFacts, HostFiles, HostTransport, HostView
from pool_manager.hosts.agent import AGENT_ID, AgentReports
from pool_manager.hosts.agents import AgentKeeper
from pool_manager.hosts.control import HostControl
from pool_manager.hosts.devices import HostDevices
from pool_manager.hosts.engine import RemoteEngine
from pool_manager.hosts.files import RemoteFiles
from pool_manager.hosts.folders import HostFolders
from pool_manager.hosts.probing import Facts, read_facts
from pool_manager.hosts.remote_parts import Joined, PlacedFiles, RemoteTransport
from pool_manager.hosts.services import HostServices
from pool_manager.hosts.settings import HostSettings
from pool_manager.hosts.transfers import MIB, Transfers
from pool_manager.ports import Gpus
from pool_manager.settings import PoolSettings
from registry.errors import BadRequest, DriverError, EngineDown, FnError, HostDown
from registry.model.hosts import Ability, SshHost
from registry.tasks import Tasks
from runtime_image.contract.control import CONTROL_SOCKET, DATA_SOCKET, ReplicaRecord

log = structlog.get_logger()

STARTS_AT_ONCE: Final = 4
"""Concurrent starts on one host."""
JOIN_RETRY_S: Final = (1.0, 60.0)
"""Shortest and longest pause between two tries to join a host whose connection is up."""
END_S: Final = 10.0
"""Time limit of the steps on a host when the server closes."""
DISK_LOW_MIB: Final = 256
"""Free disk space of a host below which files and images may not fit any more."""
CLOCK_OFF_S: Final = 5.0
"""Difference of clocks from which the times in a host's logs mislead. Nothing else depends on it.
"""


class RemoteHost:
    """`ReplicaHost` by SSH, whose replicas are containers. What it has raises DriverError, and
    HostDown while the host cannot be reached."""

    def __init__(
        self,
        host: SshHost,
        settings: HostSettings,
        pool: PoolSettings,
        services: HostServices,
        predecessor: RemoteHost | None = None,
    ) -> None:
        """`predecessor` is the same host under another login, whose replicas this one takes over.
        Raises BadRequest for an address that cannot be one."""
        login = _login(host)
        self.host, self.name = host, host.name
        self._settings, self._pool, self._services = settings, pool, services
        self.owner = settings.owner(host.name)
        self.exits, self.engine_losses = Exits(), EngineLosses()
        self._tasks = Tasks(f"host {host.name}")
        self.control = HostControl(host.name, services.tasks)
        self.transfers = Transfers(lambda: services.changed(host.name))
        self.records = services.records(host.name)
        self.epoch, self._has_successor = 0, False
        if predecessor is not None:
            predecessor.hand_over("its login has changed")
            self.control, self.epoch = predecessor.control, predecessor.epoch
        self.is_joined, self.reason = False, ""
        self._facts: Facts | None = None
        self.connection = HostConnection(
            login,
            self._tasks,
            name=host.name,
            on_up=self._on_up,
            on_down=self._on_down,
        )
        self._joining: asyncio.Task[None] | None = None
        self.folders: HostFolders | None = None
        """This server's folders there, since the first connection."""
        self.joined: Joined | None = None
        """Its parts, made once its engine has answered; None before."""
        self.engine = RemoteEngine(host.name, self.owner, settings, pool, self.transfers)
        self._is_listening = False
        self.engine.exits.subscribe(self._on_exit)
        self.engine.losses.subscribe(self._on_engine_lost)
        self.transport: HostTransport = RemoteTransport(self)
        self.files: HostFiles = PlacedFiles(self, services.path)
        self.agent = self._make_agent()
        self._devices = HostDevices(host.name, self.agent.reports, services.emit)

    @property
    def facts(self) -> HostFacts:
        """Images are sent from this server's engine, if it has one."""
        abilities = DockerDriver.abilities if self._settings.has_images else frozenset[Ability]()
        return HostFacts(STARTS_AT_ONCE, is_contained=True, has_own_clock=True, abilities=abilities)

    def _make_agent(self) -> AgentKeeper:
        services, pool = self._services, self._pool
        return AgentKeeper(
            self.name,
            self.control,
            pool.run_dir / f"agent-{self.owner}.json",
            pool,
            AgentReports(self.name, services.clock, services.wall),
            self._tasks,
            services.clock,
            lambda: services.changed(self.name),
        )

    # Life

    def open(self) -> None:
        """Connect in the background, and again after each break."""
        self.connection.open()

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
        await self.connection.close()
        await self._tasks.close()

    async def _end(self, *, is_removed: bool) -> None:
        if not self.connection.is_up or self.folders is None:
            return
        await self.agent.end()
        if is_removed:
            await self.engine.unpin_others(())
            await self.folders.remove_all()

    @property
    def is_up(self) -> bool:
        """Whether commands reach the host."""
        return self.is_joined and self.connection.is_up

    @property
    def why_down(self) -> str:
        """Why the host is not up, without its name."""
        reason = self.reason or self.connection.reason or "connected; it is being prepared"
        return reason.removeprefix(f"{self.name}: ")

    async def _on_up(self) -> None:
        """Join the host in the background: the connection waits for this call. Its listener is
        created after it, in a folder that the host may have lost: made here."""
        if self._has_successor:
            return
        self._stop_joining()
        if self.folders is not None:
            with contextlib.suppress(DriverError):  # joining says it
                await self.folders.prepare()
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
            driver = await self.engine.open(self.connection, path, folders.base, facts)
            joined = self._join_with(driver, folders)
            running = await driver.list()
        except HostDown:
            raise
        except EngineDown as error:
            if self.joined is not None and self.connection.is_up and not self.is_joined:
                # Its replicas can be reached all the same.
                self._report_up(frozenset(self.records))
                self._services.emit(events.EngineLost(self.engine.named(str(error)), self.name))
            raise
        is_running, has_gpus = AGENT_ID in running, self._may_have_gpus
        await self.agent.ensure(driver, folders, is_running=is_running, has_gpus=has_gpus)
        running = await self._without_leftovers(driver, running - {AGENT_ID})
        await joined.files.refresh()
        is_late = await self._find_gpus(running, is_patient=False)
        # With only its engine away until now, starts may have begun since the list was read, and
        # EngineBack names the replicas that still run.
        self._report_up(frozenset(self.records if self.is_joined else running))
        self._tasks.spawn("leftovers", self._remove_leftovers(folders))
        if is_late:
            self._joining = self._tasks.spawn("GPUs", self._find_late_gpus())

    def _join_with(self, driver: DockerDriver, folders: HostFolders) -> Joined:
        """Return what the host has: the files that are known of an earlier join stay known."""
        if self.joined is None:
            cache, path = FileCache(self.connection, str(folders.base)), self._services.path
            files = RemoteFiles(self.name, cache, folders, path, self.transfers)
            self.joined = Joined(driver, folders, files)
        return self.joined

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
        rtt_s, abilities = self.connection.rtt_s, self.facts.abilities
        self._services.emit(
            events.HostUp(self.name, self.epoch, devices, running, rtt_s, abilities)
        )

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
            while await self._find_gpus(await self.driver.list(), is_patient=True):
                pass
        self._announce_again()
        self._services.changed(self.name)

    async def _open_folders(self) -> tuple[HostFolders, Facts]:
        facts = self._facts = await read_facts(self.name, self.connection.run)
        if self.folders is None:
            base = PurePosixPath(facts.home) / ".fngate" / self.owner
            self.folders = HostFolders(self.name, self.connection.run, base)
        await self.folders.prepare()
        return self.folders, facts

    async def _listen(self, folders: HostFolders) -> None:
        if not self._is_listening:
            await self.connection.listen(folders.control_socket, self.control.accept, 0o666)
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

    def update(self, host: SshHost) -> None:
        """Apply changed settings that need no other login."""
        before, self.host = self.host, host
        if before.cpu_slots != host.cpu_slots:
            self._announce_again()

    def _announce_again(self) -> None:
        """Report changed devices. No replica ends by that, so that all are named."""
        if self.is_up:
            self.announce(frozenset(self.records))

    # Events of the engine

    def _on_exit(self, id: str, end: Exit) -> None:
        if id == AGENT_ID:
            self.agent.exited(end.how)
        else:
            self.exits.notify(id, end)

    def _on_engine_lost(self, reason: str) -> None:
        if self.is_up:
            self.engine_losses.notify(self.engine.named(reason))

    # What replicas need

    def reached(self) -> Joined:
        """Return what the host has. Raises HostDown while it is not up."""
        if not self.is_up or self.joined is None:
            raise HostDown(f"host {self.name} is not up: {self.why_down}")
        return self.joined

    @property
    def driver(self) -> Driver:
        """The driver of its engine. Raises HostDown."""
        return self.reached().driver

    @property
    def processes(self) -> Processes:
        """Those of its containers. Raises HostDown."""
        return self.reached().driver.processes

    @property
    def gpus(self) -> Gpus:
        """Those that its agent reports, once it has."""
        return self._devices.gpus

    def memory(self) -> HostMemory | None:
        """Return what its agent reports, while it does."""
        last = self.agent.reports.last if self.agent.reports.is_fresh else None
        return HostMemory(last.memory_mib, last.memory_free_mib) if last is not None else None

    def complete(self, record: ReplicaRecord) -> ReplicaRecord:
        """Return the record with the paths of its container, a new greeting, and the threads of a
        CPU slot there."""
        return replace(
            record,
            host=self.name,
            threads=self.threads_per_slot,
            model_dir=MODEL_TARGET,
            control=f"{CONTROL_TARGET}/{CONTROL_SOCKET}",
            data=f"{DATA_TARGET}/{DATA_SOCKET}",
            greeting=token_hex(32),
        )

    async def left(self) -> set[str] | None:
        """Return None: it is not connected yet."""
        return None

    # Facts

    @property
    def slots(self) -> int:
        """The number of its CPU slots."""
        return self.host.cpu_slots or self.engine.cores

    @property
    def threads_per_slot(self) -> int:
        """Engine threads of a replica on a CPU slot."""
        return max(1, self.engine.cores // self.slots)

    def fill(self, view: HostView) -> HostView:
        """Return the view of this host with the facts known here; the machine adds the others."""
        report, stock = self.agent.reports.last, self.joined.files.stock if self.joined else {}
        disk_free_mib = report.disk_free_mib if report else None
        wrong = complaint(disk_free_mib, self.agent.reports.clock_offset_s)
        return replace(
            view,
            address=self.host.address,
            state=state_of(view.state, self.transfers.text),
            reason=(view.reason or wrong) if self.is_up else self.why_down,
            driver=self.joined.driver.kind if self.joined is not None else "",
            engine_version=self.engine.version,
            rtt_ms=self.connection.rtt_s * 1e3 if self.is_up else None,
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


def _login(host: SshHost) -> Login:
    """Return how this server logs in to a host. Raises BadRequest."""
    try:
        return login_to(host.address, host.identity, host.host_key)
    except ValueError as error:
        raise BadRequest(f"host {host.name}: {error}") from error


def state_of(state: HostState, transfer: str) -> HostState:
    """Return the state to show. A host to which an image is sent is joining, although the transfer
    may take longer than `host_lost_s`, which ends all waits for its replicas."""
    return HostState.JOINING if state is HostState.GONE and transfer else state


def complaint(disk_free_mib: float | None, clock_offset_s: float | None) -> str:
    """Return the problem of a host that is up, as its agent reports it; "" for none."""
    found = []
    if disk_free_mib is not None and disk_free_mib < DISK_LOW_MIB:
        found.append(f"its disk is full: {disk_free_mib:.0f} MiB are free")
    if clock_offset_s is not None and abs(clock_offset_s) >= CLOCK_OFF_S:
        side = "ahead of" if clock_offset_s > 0 else "behind"
        found.append(f"its clock is {abs(clock_offset_s):.0f} s {side} this machine's")
    return "; ".join(found)
