"""This machine as a host: its replicas share the disk, clock and sockets of this process."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

import structlog

from pool_manager.core.hosts import HostMemory
from pool_manager.devices import read_host_memory
from pool_manager.driver import Driver
from pool_manager.gpus.absent import NoGpus
from pool_manager.host import (
    HostCache,
    HostFacts,
    HostFiles,
    HostTransport,
    HostView,
    Listening,
    Located,
)
from pool_manager.hosts.services import HostServices
from pool_manager.images import missing_image
from pool_manager.ports import Binding, Bundles, Gpus
from pool_manager.read_ahead import ReadAhead
from pool_manager.replicas.connections import LocalConnections
from pool_manager.replicas.file_transfer import PartReader, reader_at
from pool_manager.replicas.run_folders import RunFolders
from pool_manager.settings import PoolSettings
from registry.errors import StartRefused, StoreUnavailable
from registry.exchange import HostRoute
from registry.model.bundles import BundleFile
from registry.model.hosts import LOCAL_HOST, Host
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.enrolment import FetchedFile
from runtime_image.contract.model import ModelSpec

log = structlog.get_logger()


class LocalTransport:
    """`HostTransport` over sockets in the run folders of replicas."""

    why_down = ""
    routes: Mapping[str, HostRoute] = {}

    def __init__(self, folders: RunFolders) -> None:
        self._folders = folders

    async def wait_up(self) -> None:
        """Return at once."""

    def located(self, record: ReplicaRecord) -> Located:
        """Return the path in the replica's run folder, as of no host."""
        path = str(self._folders.data_socket(record.id))
        return Located(path, greeting=record.greeting, link=record.link)

    def listen(self, record: ReplicaRecord, *, is_new: bool) -> Listening:
        """Open the listener for its manager; for a new replica, also the one for gateways."""
        connections = LocalConnections(self._folders.listen_control(record.id), record.id)
        return Listening(connections, self._folders.listen_data(record.id) if is_new else None)

    def reader(self, record: ReplicaRecord) -> AbstractAsyncContextManager[PartReader]:
        """Connect to the socket in the replica's run folder."""
        return reader_at(self._folders.data_socket(record.id))

    async def seal(self, id: str) -> None:
        """Do nothing: this process made the data socket."""


class LocalFiles:
    """`HostFiles` as hard links to the store's."""

    cache_mib = 0
    cache: HostCache | None = None
    images: frozenset[str] = frozenset()

    def __init__(
        self, settings: PoolSettings, driver: Driver, bundles: Bundles, folders: RunFolders
    ) -> None:
        self._settings = settings
        self._pins = driver.images
        self._bundles = bundles
        self._folders = folders
        self.read_ahead = ReadAhead(settings.read_ahead_mib)

    async def send(self, binding: Binding) -> None:
        """Check that the mounts of a server in a container of its own are there as they were
        deployed, and its image: nothing is sent. Raises DriverError, StartRefused."""
        if binding.container is None:
            return
        container = binding.container
        await asyncio.to_thread(self._settings.mounts.check_unchanged, container.mounts)
        if self._pins is not None and await self._pins.find(container.image) is None:
            raise StartRefused(missing_image(binding.name, container))

    async def place(self, id: str, binding: Binding | None, *, is_read_soon: bool = False) -> None:
        """Hard-link the files, and begin to read those of a model."""
        if binding is None:
            self._folders.empty_models(id)
            return
        folder = self._folders.model_dir(id)
        await self._bundles.materialise(binding.required, folder, binding.prepared)
        if binding.compiled:
            try:
                await self._bundles.add(binding.compiled, folder)
            except StoreUnavailable as error:
                log.warning("a model starts without its compiled files", reason=error.message)
        if is_read_soon and isinstance(binding.spec, ModelSpec):
            self.read_ahead.begin(id, folder, binding.spec)

    async def to_fetch(self, id: str, binding: Binding) -> list[FetchedFile]:  # noqa: ARG002
        """Return none: they are linked."""
        return []

    def end_reading(self, id: str) -> None:
        """Read no more of the model."""
        self.read_ahead.cancel(id)

    async def add(self, id: str, files: Collection[BundleFile]) -> list[FetchedFile]:
        """Hard-link further files."""
        await self._bundles.add(files, self._folders.model_dir(id))
        return []

    async def record(self, record: ReplicaRecord) -> None:
        """Do nothing: it is in the run folder."""

    def adopt(self, record: ReplicaRecord) -> None:
        """Remove the files of an assignment that was not recorded yet."""
        if not record.bound:
            self._folders.empty_models(record.id)

    async def remove(self, id: str) -> None:
        """Read no more of them: they are removed with the record."""
        self.end_reading(id)

    async def unpin_others(self, ids: Collection[str]) -> None:
        """Remove the pins of the driver's images, if it has any."""
        if self._pins is not None:
            await self._pins.unpin_others(ids)


class LocalHost:
    """`ReplicaHost` of this machine."""

    name = LOCAL_HOST

    def __init__(
        self,
        settings: PoolSettings,
        driver: Driver,
        bundles: Bundles,
        folders: RunFolders,
        gpus: Gpus | None = None,
    ) -> None:
        self._settings = settings
        self._folders = folders
        self.driver, self.processes = driver, driver.processes
        self.gpus: Gpus = gpus or NoGpus()
        self.exits, self.engine_losses = driver.exits, driver.engine_losses
        self.transport: HostTransport = LocalTransport(folders)
        self._files = LocalFiles(settings, driver, bundles, folders)
        self.files: HostFiles = self._files
        self.facts = HostFacts(
            settings.starts_at_once,
            is_contained=driver.is_contained,
            has_own_clock=False,
            abilities=driver.abilities,
        )

    def memory(self) -> HostMemory | None:
        """Return what the kernel says."""
        return read_host_memory()

    def complete(self, record: ReplicaRecord) -> ReplicaRecord:
        """Return the record with the path of its model folder, and the threads of the settings."""
        return replace(
            record,
            host=self.name,
            model_dir=self.driver.model_path(self._folders.model_dir(record.id)),
            threads=self._settings.threads_per_slot,
        )

    async def left(self) -> set[str] | None:
        """Return the replicas that run. Raises DriverError, EngineDown."""
        return await self.driver.list()

    def fill(self, view: HostView) -> HostView:
        """Return the view with the driver's kind."""
        return replace(view, driver=self.driver.kind)

    async def close(self) -> None:
        """Close what belongs to this process: after its last task, which may use that."""
        await self._files.read_ahead.close()
        await self.gpus.close()
        await self.driver.close()


class LocalEngine:
    """`HostEngine` of this machine alone, which is always up."""

    why_kept = (
        f"{LOCAL_HOST} is the machine that the server runs on: its settings are FN_CPU_SLOTS,"
        " FN_GPUS and FN_HOST_LABELS"
    )
    complaint = ""

    def __init__(self, host: LocalHost, labels: Mapping[str, str], services: HostServices) -> None:
        """`labels` are those of the settings; those of the definition go before them."""
        self._host = host
        self._labels = labels
        self._services = services

    def define(self, host: Host) -> None:
        """Announce this machine with its labels."""
        labels = {**self._labels, **host.labels}
        self._services.announce(self._host, labels, host.is_draining)

    def open(self) -> None:
        """Start to poll its GPUs."""
        self._host.gpus.start(self._services.emit)

    async def close(self, *, is_removed: bool = False) -> None:
        """Do nothing: the host is closed by the manager, after its last task."""
