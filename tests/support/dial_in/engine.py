"""An engine whose replicas dial in by TLS: real processes on hosts of which it is told nothing but
where they are.

It proves what the host protocol needs. A replica is given a folder with an `Entrance`: the server's
address, its authority and a one-time token. It shares no folder and no socket with the manager;
the engine starts it, notices its end and ends it, as the API of a cluster would.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from secrets import token_hex

from hosts.tls.door import LinkDoor
from pool_manager.core import events
from pool_manager.core.hosts import HostMemory
from pool_manager.core.state import Device
from pool_manager.devices import cpu_slots
from pool_manager.driver import Driver, EngineLosses, Exit, Exits, Processes
from pool_manager.drivers.process import ProcessDriver
from pool_manager.gpus.absent import NoGpus
from pool_manager.host import HostFacts, HostFiles, HostTransport, HostView
from pool_manager.hosts.services import HostServices
from pool_manager.hosts.tls_parts import FetchedFiles, TlsTransport
from pool_manager.ports import Gpus, ServerContainer
from registry.errors import HostDown
from registry.model.hosts import Ability, Host
from registry.tasks import Tasks
from runtime_image.contract.addresses import TlsAddress
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.enrolment import ENTRANCE_FILE, Entrance
from tests.support.dial_in.places import Place

LOOK_S = 0.1
"""Seconds between two looks at whether hosts are away."""
STARTS_AT_ONCE = 4
SLOTS = 8
"""CPU slots of each host of a server with this engine."""


class DialInDriver(ProcessDriver):
    """Starts replicas in folders of their host, with an `Entrance` in place of a record. Its kind
    is that of processes, as servers run in it what they run in that."""

    def __init__(self, place: Place, door: LinkDoor) -> None:
        self._folder, self._door = Path(place.folder), door
        self._server = place.server
        (self._folder / "run").mkdir(exist_ok=True)
        super().__init__(self._folder / "run", python=place.python)

    async def start(
        self,
        record: ReplicaRecord,
        run_dir: Path,
        log: Path,
        server: ServerContainer | None = None,
    ) -> None:
        """Start a replica; its log is written as an engine of containers passes one on."""
        own = self._folder / "run" / record.id
        entrance: Entrance = {
            "server": record.control,
            "authority": self._door.authority_pem,
            "token": record.token,
            "token_file": "",
            "listen": record.data,
        }
        await asyncio.to_thread(_write, own, Path(record.model_dir), entrance)
        await super().start(record, own, log, server)

    async def release(self, id: str) -> None:
        """End a replica, and remove what it has written."""
        await super().release(id)
        for parent in ("run", "models"):
            shutil.rmtree(self._folder / parent / id, ignore_errors=True)


def _write(run_dir: Path, model_dir: Path, entrance: Entrance) -> None:
    run_dir.mkdir(mode=0o700)
    model_dir.mkdir(mode=0o700, parents=True)
    (run_dir / ENTRANCE_FILE).write_text(json.dumps(entrance))


class DialInHost:
    """`ReplicaHost` of one place."""

    facts = HostFacts(
        STARTS_AT_ONCE,
        is_contained=False,
        has_own_clock=True,
        abilities=frozenset({Ability.COMMAND}),
    )

    def __init__(
        self, engine: str, place: Place, slots: int, door: LinkDoor, services: HostServices
    ) -> None:
        self.name, self.place = place.name, place
        self._door, self._services, self._slots = door, services, slots
        self.replicas = DialInDriver(place, door)
        self.exits, self.engine_losses = Exits(), EngineLosses()
        self.replicas.exits.subscribe(self._on_exit)
        self.gpus: Gpus = NoGpus()
        self._files = FetchedFiles(self.name, door, services)
        self.files: HostFiles = self._files
        self._transport = TlsTransport(self.name, engine, door, self._files, services)
        self.transport: HostTransport = self._transport
        self._epoch = 0

    def _on_exit(self, id: str, end: Exit) -> None:
        if not self._transport.why_down:
            self.exits.notify(id, end)

    def _reach(self) -> None:
        if reason := self._transport.why_down:
            raise HostDown(f"host {self.name} is not up: {reason}")

    @property
    def driver(self) -> Driver:
        self._reach()
        return self.replicas

    @property
    def processes(self) -> Processes:
        return self.driver.processes

    def memory(self) -> HostMemory | None:
        return None

    def complete(self, record: ReplicaRecord) -> ReplicaRecord:
        """Return the record with the addresses, the folder and the greeting of the replica."""
        return replace(
            record,
            host=self.name,
            model_dir=str(Path(self.place.folder, "models", record.id)),
            control=str(TlsAddress(self.place.server, self._door.address.port)),
            data=str(TlsAddress("", 0)),
            greeting=token_hex(32),
        )

    async def left(self) -> set[str] | None:
        return None

    def fill(self, view: HostView) -> HostView:
        return replace(
            view,
            address=self.place.server,
            reason=view.reason or self._transport.why_down,
            driver=self.replicas.kind,
            epoch=self._epoch,
            transfer=self._files.transfers.text,
            transferred_bytes=self._files.transfers.total_bytes,
        )

    @property
    def devices(self) -> Sequence[Device]:
        return tuple(cpu_slots(self._slots, self.place.memory_mib, self.name))

    async def look(self) -> None:
        """Report that the host has come or gone, if it has."""
        why_down = self._transport.why_down
        if self.place.is_away and not why_down:
            reason = "the path to it is cut"
            self._transport.set_down(reason)
            self._services.emit(events.HostUnreachable(self.name, reason, self._epoch))
        elif why_down and not self.place.is_away:
            known = self._services.records(self.name)
            running = await self.replicas.list()
            for id in running - known.keys():
                await self.replicas.release(id)
            self._epoch += 1
            self._transport.set_down("")
            up = events.HostUp(
                *(self.name, self._epoch, tuple(self.devices)),
                *(frozenset(running & known.keys()), 0.0, self.facts.abilities),
            )
            self._services.emit(up)

    async def close(self) -> None:
        self._transport.close()
        await self.replicas.close()


class DialInEngine:
    """`HostEngine` of several places, all of which it has from the beginning."""

    why_kept = ""
    complaint = ""

    def __init__(
        self,
        name: str,
        places: Sequence[Place],
        slots: int,
        services: HostServices,
    ) -> None:
        assert services.door is not None, "set FN_LINK_LISTEN"
        self._services, door = services, services.door
        self._tasks = Tasks(f"engine {name}")
        self.hosts = {
            place.name: DialInHost(name, place, slots, door, services) for place in places
        }

    def define(self, host: Host) -> None:
        for one in self.hosts.values():
            self._services.announce(one, host.labels, host.is_draining)

    def open(self) -> None:
        self._tasks.spawn("look", self._look())

    async def _look(self) -> None:
        """Look at the hosts for ever."""
        while True:
            for one in self.hosts.values():
                await one.look()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), LOOK_S)

    async def close(self, *, is_removed: bool = False) -> None:
        await self._tasks.close()
        for one in self.hosts.values():
            await one.close()
