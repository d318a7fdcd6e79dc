"""An engine of several hosts that come and go, all of them played on this machine.

Its replicas are those of a `FakeDriver` for each host, so that gateways and the manager meet the
protocol itself. What is different on another machine is played: its own clock, folders that are
sealed before BIND, files that are sent ahead, hosts that cannot be reached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

from pool_manager.core import events
from pool_manager.core.hosts import HostMemory
from pool_manager.core.state import Device
from pool_manager.devices import cpu_slots
from pool_manager.driver import Driver, Processes
from pool_manager.fleet import Fleet
from pool_manager.gpus.absent import NoGpus
from pool_manager.host import HostFacts, HostView
from pool_manager.hosts.local import LocalFiles, LocalHost, LocalTransport
from pool_manager.hosts.services import HostServices
from pool_manager.ports import Binding, Bundles, Gpus
from pool_manager.replicas.file_transfer import PartReader
from pool_manager.replicas.run_folders import RunFolders
from pool_manager.settings import PoolSettings
from registry.errors import HostDown
from registry.exchange import HostRoute
from registry.model.bundles import BundleFile
from registry.model.hosts import Host
from runtime_image.contract.control import ReplicaRecord
from tests.support.fake_driver.driver import BEHAVES, FakeDriver, Script
from tests.support.replicas import ModelFolder

NODES = ("node1", "node2", "node3")
SLOTS = 2


def one_host(
    settings: PoolSettings, driver: Driver | None = None, gpus: Gpus | None = None
) -> Fleet:
    """Return a fleet of this machine alone, whose replicas get no files."""
    files, folders = ModelFolder(Path(settings.run_dir)), RunFolders(settings)
    return Fleet(LocalHost(settings, driver or FakeDriver(), files, folders, gpus))


class NodeTransport:
    """`HostTransport` of a node: the sockets are this machine's, and may be out of reach."""

    routes: Mapping[str, HostRoute] = {}

    def __init__(self, name: str, folders: RunFolders) -> None:
        self._name = name
        self._here = LocalTransport(folders)
        self._up = asyncio.Event()
        self.sealed: list[str] = []
        self.located = self._here.located
        self.listen = self._here.listen

    @property
    def why_down(self) -> str:
        return "" if self._up.is_set() else "the cable is cut"

    def set_up(self, *, is_up: bool) -> None:
        """Reach the node, or lose it."""
        (self._up.set if is_up else self._up.clear)()

    def reach(self) -> None:
        """Raise HostDown unless the node is reached."""
        if self.why_down:
            raise HostDown(f"host {self._name} is not up: {self.why_down}")

    async def wait_up(self) -> None:
        await self._up.wait()

    def reader(self, record: ReplicaRecord) -> AbstractAsyncContextManager[PartReader]:
        self.reach()
        return self._here.reader(record)

    async def seal(self, id: str) -> None:
        self.reach()
        self.sealed.append(id)


class NodeCache:
    """`HostCache` in memory."""

    bytes_per_s = 1e6

    def __init__(self) -> None:
        self.stock: dict[str, int] = {}

    async def send(self, files: Iterable[BundleFile]) -> None:
        self.stock.update({one.sha256: one.size for one in files})

    async def trim(self, limit_mib: int, kept: Collection[str]) -> None:
        """Keep everything."""


class NodeFiles(LocalFiles):
    """`HostFiles` of a node: links, of files that count as sent before."""

    cache_mib = 1024

    def __init__(
        self,
        settings: PoolSettings,
        driver: Driver,
        bundles: Bundles,
        folders: RunFolders,
        transport: NodeTransport,
    ) -> None:
        super().__init__(settings, driver, bundles, folders)
        self._transport = transport
        self.known = NodeCache()
        self.sent = asyncio.Event()
        self.removed: list[str] = []

    @property
    def cache(self) -> NodeCache | None:  # type: ignore[override]
        return None if self._transport.why_down else self.known

    async def send(self, binding: Binding) -> None:
        self._transport.reach()
        await self.known.send(binding.required.files)
        self.sent.set()

    async def place(self, id: str, binding: Binding | None, *, is_read_soon: bool = False) -> None:
        self._transport.reach()
        await super().place(id, binding)

    async def record(self, record: ReplicaRecord) -> None:
        self._transport.reach()

    async def remove(self, id: str) -> None:
        self._transport.reach()
        self.removed.append(id)


class NodeDriver(FakeDriver):
    """Fake driver that notes what it has started."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.started: list[str] = []
        self.runs = self._runs

    async def start(self, record: ReplicaRecord, *rest: object) -> None:  # type: ignore[override]
        self.started.append(record.id)
        await super().start(record, *rest)  # type: ignore[arg-type]


class Node:
    """`ReplicaHost` of one node."""

    def __init__(
        self,
        name: str,
        settings: PoolSettings,
        bundles: Bundles,
        *,
        script: Script = BEHAVES,
        starts_at_once: int = 4,
        is_up: bool = True,
    ) -> None:
        self.name = name
        folders = RunFolders(settings)
        self._folders = folders
        self.transport = NodeTransport(name, folders)
        self.transport.set_up(is_up=is_up)
        self.replicas = NodeDriver(script)
        self.gpus: Gpus = NoGpus()
        self.exits, self.engine_losses = self.replicas.exits, self.replicas.engine_losses
        self.files = NodeFiles(settings, self.replicas, bundles, folders, self.transport)
        self.facts = HostFacts(
            starts_at_once,
            is_contained=True,
            has_own_clock=True,
            abilities=self.replicas.abilities,
        )

    @property
    def driver(self) -> Driver:
        self.transport.reach()
        return self.replicas

    @property
    def processes(self) -> Processes:
        return self.driver.processes

    def memory(self) -> HostMemory | None:
        return None

    def complete(self, record: ReplicaRecord) -> ReplicaRecord:
        return replace(record, host=self.name, model_dir=str(self._folders.model_dir(record.id)))

    async def left(self) -> set[str] | None:
        return None

    def fill(self, view: HostView) -> HostView:
        return replace(view, driver=self.replicas.kind, address=f"cluster/{self.name}")

    @property
    def devices(self) -> tuple[Device, ...]:
        """Its CPU slots."""
        return tuple(cpu_slots(SLOTS, 1024.0, self.name))


class Cluster:
    """`HostEngine` of nodes that join, break and leave as the test says."""

    why_kept = ""
    complaint = ""

    def __init__(
        self, host: Host, settings: PoolSettings, bundles: Bundles, services: HostServices
    ) -> None:
        self.name = host.name
        self._settings, self._bundles, self._services = settings, bundles, services
        self._host = host
        self._epochs: dict[str, int] = {}
        self.nodes: dict[str, Node] = {}
        self.opened, self.closed = asyncio.Event(), asyncio.Event()
        self.is_removed = False

    def define(self, host: Host) -> None:
        self._host = host
        for name in NODES:
            if name in self._services.seen:
                self.nodes.setdefault(name, Node(name, self._settings, self._bundles, is_up=False))
        for node in self.nodes.values():
            self._services.announce(node, host.labels, host.is_draining)

    def open(self) -> None:
        self.opened.set()

    def join(self, name: str) -> Node:
        """Announce a node, or one that comes back, and report that it is up."""
        node = self.nodes.get(name)
        if node is None:
            node = self.nodes[name] = Node(name, self._settings, self._bundles)
        node.transport.set_up(is_up=True)
        self._services.announce(node, self._host.labels, self._host.is_draining)
        epoch = self._epochs[name] = self._epochs.get(name, 0) + 1
        running = frozenset(filter(node.replicas.runs, self._services.records(name)))
        self._services.emit(
            events.HostUp(name, epoch, node.devices, running, 0.0, node.replicas.abilities)
        )
        return node

    def cut(self, name: str) -> None:
        """Lose a node, which may come back."""
        self.nodes[name].transport.set_up(is_up=False)
        lost = events.HostUnreachable(name, "the cable is cut", self._epochs[name])
        self._services.emit(lost)

    def leave(self, name: str, *, is_gone: bool = False) -> None:
        """Withdraw a node, which can be reached no more if it `is_gone`."""
        if is_gone:
            self.nodes[name].transport.set_up(is_up=False)
        self._services.withdraw(name, is_gone)

    async def close(self, *, is_removed: bool = False) -> None:
        self.is_removed = is_removed
        for node in self.nodes.values():
            await node.replicas.close()
        self.closed.set()
