"""The drivers of all hosts as one."""

from __future__ import annotations

import socket
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from pool_manager.driver import Driver, EngineLosses, Exits
from pool_manager.images import Images, RemovedImage
from pool_manager.ports import ControlConnections, ServerContainer
from registry.errors import DriverError, HostDown
from registry.model.bundles import BundleFile
from registry.model.hosts import LOCAL_HOST
from runtime_image.contract.control import ReplicaRecord

if TYPE_CHECKING:
    from pool_manager.hosts.remote_host import RemoteHost

log = structlog.get_logger()


class Fleet:
    """A `Driver` over this machine's driver and the other hosts.

    An operation goes to the host of the replica's record. `list` is that of this machine: other
    hosts report what runs there when they are up. `hosts` is the owner's mapping.
    """

    def __init__(self, local: Driver, hosts: Mapping[str, RemoteHost]) -> None:
        self._local = local
        self._hosts = hosts
        self._host_of: dict[str, str] = {}
        self.kind = local.kind
        self.images: Images | None = FleetImages(local.images, hosts) if local.images else None
        self.exits, self.engine_losses = Exits(), EngineLosses()
        self.has_other_users = local.has_other_users
        local.exits.subscribe(self.exits.notify)
        local.engine_losses.subscribe(self.engine_losses.notify)

    def host(self, id: str) -> str:
        """Return the host of a replica."""
        return self._host_of.get(id, LOCAL_HOST)

    def remote(self, name: str) -> RemoteHost:
        """Return another host. Raises HostDown if it was removed."""
        try:
            return self._hosts[name]
        except KeyError:
            raise HostDown(f"host {name} was removed") from None

    def _of(self, id: str) -> Driver | RemoteHost:
        host = self._host_of.get(id, LOCAL_HOST)
        return self._local if host == LOCAL_HOST else self.remote(host)

    def adopt(self, record: ReplicaRecord) -> None:
        """Record the host of a replica that is launched or adopted."""
        if record.host != LOCAL_HOST:
            self._host_of[record.id] = record.host
            self.remote(record.host).records[record.id] = record

    def forget(self, id: str) -> None:
        """Forget a replica that was released or given up."""
        host = self._host_of.pop(id, LOCAL_HOST)
        if host in self._hosts:
            self._hosts[host].records.pop(id, None)

    def connections(self, record: ReplicaRecord) -> ControlConnections:
        """Return the control connections of a replica on another host."""
        return self.remote(record.host).control.register(record.id, record.token)

    def has_host(self, host: str) -> bool:
        """Whether there is such a host beside this machine."""
        return host in self._hosts

    def threads_per_slot(self, host: str) -> int:
        """Return the engine threads of a replica on a CPU slot of another host."""
        return self.remote(host).threads_per_slot

    async def wait_up(self, host: str) -> None:
        """Return when another host can be reached."""
        await self.remote(host).control.wait_up()

    async def provide(self, record: ReplicaRecord, server: ServerContainer) -> None:
        """Make image and mounts of a server available on the host of its replica."""
        await self.remote(record.host).provide(server)

    async def seal(self, id: str) -> None:
        """Close the data folder of a replica on another host to itself."""
        await self.remote(self.host(id)).seal(id)

    async def add_files(self, record: ReplicaRecord, files: Collection[BundleFile]) -> None:
        """Add files to the model folder of a replica on another host."""
        await self.remote(record.host).add_files(record.id, files)

    async def connect(self, id: str) -> socket.socket:
        """Return a connection to the data socket of a replica on another host."""
        return await self.remote(self.host(id)).connect(id)

    def data_socket(self, id: str) -> str:
        """Return the path, on the replica's host, at which gateways connect to it."""
        host = self._host_of.get(id, LOCAL_HOST)
        return self._hosts[host].data_socket(id) if host in self._hosts else ""

    def model_path(self, model_dir: Path) -> str:
        """Return the path at which a replica on this machine sees its model folder."""
        return self._local.model_path(model_dir)

    async def start(
        self,
        record: ReplicaRecord,
        run_dir: Path,
        log: Path,
        server: ServerContainer | None = None,
    ) -> None:
        """Launch a replica on its host."""
        if record.host == LOCAL_HOST:
            await self._local.start(record, run_dir, log, server)
        else:
            await self.remote(record.host).start(record, log, server)

    async def place_files(self, record: ReplicaRecord, files: Sequence[BundleFile]) -> None:
        """Make files visible to a replica on its host."""
        if record.host == LOCAL_HOST:
            await self._local.place_files(record, files)
        else:
            await self.remote(record.host).place_files(record, files)

    async def list(self) -> set[str]:
        """Return the ids of all replicas that run on this machine."""
        return await self._local.list()

    async def list_of(self, host: str) -> set[str]:
        """Return the ids of all replicas that run on a host."""
        return await (self._local.list() if host == LOCAL_HOST else self.remote(host).list())

    async def limit(self, record: ReplicaRecord) -> None:
        """Apply the limits of a replica's present binding."""
        if record.host == LOCAL_HOST:
            await self._local.limit(record)
        else:
            await self.remote(record.host).limit(record)

    async def pids(self, id: str) -> frozenset[int] | None:
        """Return the pids of a replica's processes on its host."""
        return await self._of(id).pids(id)

    async def used_mib(self, id: str) -> float | None:
        """Return the memory of a server that is apart."""
        return await self._of(id).used_mib(id)

    async def save_log(self, id: str, log: Path) -> None:
        """Write a replica's output to `log`, a file of this machine."""
        await self._of(id).save_log(id, log)

    async def terminate(self, id: str) -> None:
        """Send TERM to a replica."""
        await self._of(id).terminate(id)

    async def release(self, id: str) -> None:
        """End a replica, and prove it gone."""
        await self._of(id).release(id)

    async def close(self) -> None:
        """Close the driver of this machine; the owner closes the other hosts."""
        await self._local.close()


class FleetImages:
    """`Images` of this machine, which removes this server's pins from the other hosts, too: their
    images are sent again when a start there needs them."""

    def __init__(self, local: Images, hosts: Mapping[str, RemoteHost]) -> None:
        self._local = local
        self._hosts = hosts
        self.find, self.pull = local.find, local.pull
        self.pin, self.pinned = local.pin, local.pinned

    @property
    def maps_users(self) -> bool:
        """Whether that is so on this machine, and there is no other."""
        return self._local.maps_users and not self._hosts

    async def unpin_others(self, ids: Collection[str]) -> None:
        """Remove the pins from all images except those with these ids."""
        await self._local.unpin_others(ids)
        await self._unpin_there(ids)

    async def prune(self, ids: Collection[str]) -> list[RemovedImage]:
        """Remove the images that deploys have pulled to this machine, except those with these
        ids."""
        removed = await self._local.prune(ids)
        await self._unpin_there(ids)
        return removed

    async def _unpin_there(self, ids: Collection[str]) -> None:
        for host in list(self._hosts.values()):
            if host.is_up:
                try:
                    await host.unpin_others(ids)
                except DriverError as error:
                    log.warning(
                        "pins of images could not be removed", host=host.name, reason=error.message
                    )
