"""The transport and the files of a host by SSH. Operations need a host that is joined and up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import structlog

from pool_manager.drivers.docker.driver import DockerDriver
from pool_manager.host import HostCache, Listening, Located
from pool_manager.hosts.files import RemoteFiles
from pool_manager.hosts.folders import HostFolders
from pool_manager.hosts.stored_files import files_of
from pool_manager.ports import Binding
from pool_manager.replicas.file_transfer import PartReader, reader_of
from registry.errors import DriverError, HostDown
from registry.exchange import HostRoute, SshRoute
from registry.model.bundles import BundleFile
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.enrolment import FetchedFile

if TYPE_CHECKING:
    from pool_manager.hosts.remote_host import RemoteHost

log = structlog.get_logger()


class Joined(NamedTuple):
    """What a host has once it was joined. It stays over breaks of the connection."""

    driver: DockerDriver
    folders: HostFolders
    files: RemoteFiles


class RemoteTransport:
    """`HostTransport` over the host's control socket, and channels to the data sockets that its
    replicas bind."""

    def __init__(self, host: RemoteHost) -> None:
        self._host = host

    @property
    def why_down(self) -> str:
        """Why the host is not joined and connected."""
        return "" if self._host.is_up else self._host.why_down

    async def wait_up(self) -> None:
        """Return when the host can be reached."""
        await self._host.control.wait_up()

    @property
    def routes(self) -> dict[str, HostRoute]:
        """How gateways log in."""
        to, epoch = self._host.host, self._host.connection.generation
        return {self._host.name: SshRoute(to.address, to.host_key, to.identity, epoch)}

    def located(self, record: ReplicaRecord) -> Located:
        """Return the path on the host; "" before the first connection."""
        folders = self._host.folders
        path = folders.data_socket(record.id) if folders is not None else ""
        return Located(path, self._host.name, record.greeting, record.link)

    def listen(self, record: ReplicaRecord, *, is_new: bool) -> Listening:  # noqa: ARG002
        """Accept the replica's connections at the socket that all share; it binds its own for
        gateways."""
        return Listening(self._host.control.register(record.id, record.token), None)

    @asynccontextmanager
    async def reader(self, record: ReplicaRecord) -> AsyncIterator[PartReader]:
        """Connect to the replica's data socket, where only its greeting proves that it is there."""
        self._host.reached()
        connection = await self._host.connection.connect(self.located(record).path)
        async with reader_of(connection, record.greeting) as reader:
            yield reader

    async def seal(self, id: str) -> None:
        """Close the data folder of a replica that has greeted to itself."""
        await self._host.reached().folders.seal(id)


class PlacedFiles:
    """`HostFiles` by the host's cache, and model folders that are linked to it."""

    def __init__(self, host: RemoteHost, path: Callable[[str], Path]) -> None:
        """`path` returns where a file is kept on this machine by its sha256."""
        self._host, self._path = host, path

    @property
    def cache_mib(self) -> int:
        """The MiB of the definition."""
        return self._host.host.files_mib

    @property
    def cache(self) -> HostCache | None:
        """The cache while the host is up."""
        return self._host.reached().files if self._host.is_up else None

    @property
    def images(self) -> frozenset[str]:
        """The ids of the images that are known to be there."""
        return self._host.engine.images

    async def send(self, binding: Binding) -> None:
        """Send missing files, and the image of a server in a container of its own; check its
        mounts."""
        files = await self._files(binding)
        there = self._host.reached()
        await there.files.send(files)
        if binding.container is not None:
            for mount in binding.container.mounts:
                await there.folders.check_mount(mount)
            await self._host.engine.send(binding.container.image, binding.container.reference)

    async def place(
        self,
        id: str,
        binding: Binding | None,
        *,
        is_read_soon: bool = False,  # noqa: ARG002 - they are there
    ) -> None:
        """Make the files the replica's model folder. Those that are not there any more are sent
        again."""
        files = await self._files(binding) if binding is not None else []
        await self._host.reached().files.place(id, files)

    async def _files(self, binding: Binding) -> list[BundleFile]:
        return await asyncio.to_thread(files_of, binding, self._path)

    async def to_fetch(self, id: str, binding: Binding) -> list[FetchedFile]:  # noqa: ARG002
        """Return none: they are sent and placed."""
        return []

    async def add(self, id: str, files: Collection[BundleFile]) -> list[FetchedFile]:
        """Send missing files, and add them to the model folder."""
        await self._host.reached().files.add(id, files)
        return []

    async def record(self, record: ReplicaRecord) -> None:
        """Create its folders, with the record."""
        data = json.dumps(asdict(record)).encode()
        await self._host.reached().folders.create(record.id, data)

    def adopt(self, record: ReplicaRecord) -> None:
        """Do nothing: a standby's folder is emptied before files are placed there."""

    async def remove(self, id: str) -> None:
        """Remove the folders. Files of other users stay: they take disk space, nothing else."""
        try:
            await self._host.reached().folders.remove(id)
        except HostDown:
            raise
        except DriverError as error:
            log.warning("folders remain", host=self._host.name, replica=id, reason=error.message)

    def end_reading(self, id: str) -> None:
        """Do nothing: nothing is read."""

    async def unpin_others(self, ids: Collection[str]) -> None:
        """Remove this server's pins from other images of servers."""
        self._host.reached()
        await self._host.engine.unpin_others(ids)
