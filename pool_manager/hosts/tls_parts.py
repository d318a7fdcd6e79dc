"""What a host has whose replicas dial in by TLS: the transport of their connections, and files.

For engines of machines that share neither a disk nor an SSH connection with this one. All replicas
of a server dial one door (`hosts/tls`), which proves by certificates who they are; an engine only
has to start them with an `Entrance` (`runtime_image.contract.enrolment`).
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from hosts.tls.authority import is_due
from hosts.tls.door import LinkDoor
from pool_manager.host import HostCache, Listening, Located
from pool_manager.hosts.control import HostControl, ReplicaConnections
from pool_manager.hosts.fetches import Fetches
from pool_manager.hosts.services import HostServices
from pool_manager.hosts.stored_files import files_of
from pool_manager.ports import Binding
from pool_manager.replicas.file_transfer import PartReader, reader_of
from registry.errors import HostDown, StartRefused
from registry.exchange import HostRoute
from registry.model.bundles import BundleFile
from runtime_image.contract.addresses import TlsAddress
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.enrolment import Certificate, FetchedFile, replica_name


class TlsTransport:
    """`HostTransport` over the server's door, which the replicas of a host dial."""

    def __init__(
        self,
        name: str,
        engine: str,
        door: LinkDoor,
        files: FetchedFiles,
        services: HostServices,
    ) -> None:
        """`name` is the host's, `engine` that of the engine that announces it, to whose hosts
        gateways have one route."""
        self._engine, self._door, self._files = engine, door, files
        self._services, self._records = services, services.records(name)
        self._control = HostControl(name, services.tasks)
        self.why_down = "its engine has not found it yet"
        """Why the engine does not have the host, "" while it has."""

    def set_down(self, why: str) -> None:
        """Record that the engine has lost the host, or, with "", that it has it. Replicas that dial
        wait meanwhile: an answer would prolong their lease."""
        self.why_down = why
        self._control.set_up(is_up=not why)

    async def wait_up(self) -> None:
        """Return when the host can be reached."""
        await self._control.wait_up()

    def close(self) -> None:
        """Close the connections that nobody has accepted."""
        self._control.close()

    @property
    def routes(self) -> Mapping[str, HostRoute]:
        """The certificate with which gateways dial all replicas of the engine."""
        return {self._engine: self._door.gateway_route()}

    def located(self, record: ReplicaRecord) -> Located:
        """Return the address at which a replica listens; "" until it has enrolled."""
        address = TlsAddress.parse(record.data)
        path = str(address._replace(name=replica_name(record.id))) if address.host else ""
        return Located(path, self._engine, record.greeting, record.link)

    def listen(self, record: ReplicaRecord, *, is_new: bool) -> Listening:  # noqa: ARG002
        """Admit a replica at the door; it opens its own listener for gateways."""
        admitted = AdmittedReplica(
            self._control, record, self._records, self._door, self._files, self._services
        )
        self._door.admit(record.id, admitted, TlsAddress.parse(record.data).host)
        return Listening(admitted, None)

    @asynccontextmanager
    async def reader(self, record: ReplicaRecord) -> AsyncIterator[PartReader]:
        """Dial the replica; its certificate and its greeting prove that it is there."""
        if reason := self.why_down:
            raise HostDown(f"host {record.host} is not up: {reason}")
        path = self.located(record).path
        if not path:
            raise ConnectionError(f"{record.id} has not enrolled")
        connection = await self._door.connect(path)
        async with reader_of(connection, record.greeting) as reader:
            yield reader

    async def seal(self, id: str) -> None:
        """Do nothing: a replica has no folder in common with others."""


class AdmittedReplica(ReplicaConnections):
    """One replica: an `Admission` to the door, and the `ControlConnections` that come through it.

    A certificate is sent at half of its life, and with each connection but the first one after the
    enrolment: the last one may have been lost with its connection, or be of an earlier server.
    """

    def __init__(
        self,
        control: HostControl,
        record: ReplicaRecord,
        records: Mapping[str, ReplicaRecord],
        door: LinkDoor,
        files: FetchedFiles,
        services: HostServices,
    ) -> None:
        """`records` has the present record of the replica as long as it is not released."""
        super().__init__(control, record.id, record.token)
        self._records, self._door, self._files = records, door, files
        self._rewrite, self._wall = services.rewrite, services.wall
        self._is_new = False
        """Whether it has enrolled, and not connected since."""
        self._issued_s = -math.inf
        """When its certificate was issued, in Unix seconds; -inf: it gets another one now."""

    @property
    def is_enrolled(self) -> bool:
        """Whether it has a certificate: then its token is used up."""
        record = self._records.get(self.id)
        return record is None or bool(TlsAddress.parse(record.data).host)

    async def enrol(self, host: str, port: int) -> ReplicaRecord:
        """Record where the replica listens, before it gets a certificate: a later manager adopts
        it by that. Raises HostDown if it was released meanwhile."""
        if self.is_enrolled:
            raise HostDown(f"{self.id} was released, or has enrolled before")
        record = replace(self._records[self.id], data=str(TlsAddress(host, port)))
        self._rewrite(record)
        self._is_new, self._issued_s = True, self._wall()
        return record

    def connected(self, sock: socket.socket) -> None:
        """Take over a connection whose peer has shown the replica's certificate. Its HELLO is read
        by the receiver."""
        if not self._is_new:
            self._issued_s = -math.inf
        self._is_new = False
        self.add(sock, None)

    def file(self, sha256: str) -> Path | None:
        """Return where a file is that the replica may fetch, None for any other. In any thread."""
        return self._files.allowed(self.id, sha256)

    def renewal(self) -> Certificate | None:
        """Return the certificate that the replica is to use from now on, if one is due."""
        if not is_due(self._issued_s, self._wall()):
            return None
        issued = self._door.certificate(self.id)
        self._issued_s = issued.issued_s
        return issued.identity

    def close(self) -> None:
        """Admit the replica no more."""
        self._door.forget(self.id)
        super().close()


class FetchedFiles:
    """`HostFiles` of replicas that fetch their files from the door by content. Nothing is sent to
    their host: BIND and UPGRADE name the files, and a replica may fetch those named to it."""

    cache_mib = 0
    cache: HostCache | None = None
    images: frozenset[str] = frozenset()

    def __init__(
        self, name: str, door: LinkDoor, services: HostServices, *, has_volumes: bool = False
    ) -> None:
        """`name` is that of the host. `has_volumes`: its engine has the volumes that mounts
        name."""
        self._name, self._path, self._has_volumes = name, services.path, has_volumes
        self._fetches = Fetches(name, door.served_bytes, services)
        self.transfers = self._fetches.transfers
        """The fetches of starts in progress."""
        self._allowed: dict[str, frozenset[str]] = {}
        """The sha256 of the files that replicas may fetch, by id. Values are replaced and never
        changed, since the door reads them in a thread of its own."""

    def allowed(self, id: str, sha256: str) -> Path | None:
        """Return where a file is that a replica may fetch, None for any other."""
        return self._path(sha256) if sha256 in self._allowed.get(id, ()) else None

    async def send(self, binding: Binding) -> None:
        """Send nothing. Raises StartRefused for a server that needs what is on this machine."""
        if binding.python is not None:
            raise StartRefused(
                f"host {self._name} has no Python environments: they are on this server's machine;"
                f' deploy with host = {{ host = "local" }}'
            )
        container = binding.container
        if container is not None and container.mounts and not self._has_volumes:
            raise StartRefused(
                f"host {self._name} has no folders to mount: they are on this server's machine;"
                f' deploy with host = {{ host = "local" }}'
            )

    async def place(self, id: str, binding: Binding | None, *, is_read_soon: bool = False) -> None:
        """Place nothing: BIND names the files."""

    async def to_fetch(self, id: str, binding: Binding) -> list[FetchedFile]:
        """Let the replica fetch the files of its binding, and return them."""
        files = self._allow(id, await asyncio.to_thread(files_of, binding, self._path))
        self._fetches.begin(id, sum(one["size"] for one in files))
        return files

    async def add(self, id: str, files: Collection[BundleFile]) -> list[FetchedFile]:
        """Let the replica fetch further files, too, and return these."""
        return self._allow(id, files)

    def _allow(self, id: str, files: Collection[BundleFile]) -> list[FetchedFile]:
        self._allowed[id] = self._allowed.get(id, frozenset()) | {one.sha256 for one in files}
        return [{"path": one.path, "size": one.size, "sha256": one.sha256} for one in files]

    def end_reading(self, id: str) -> None:
        """Follow its fetch no more."""
        self._fetches.end(id)

    async def record(self, record: ReplicaRecord) -> None:
        """Do nothing: a replica gets its record as it enrols."""

    def adopt(self, record: ReplicaRecord) -> None:
        """Do nothing: what a replica may fetch follows from the BIND that it is sent again."""

    async def remove(self, id: str) -> None:
        """Let the replica fetch nothing more."""
        self._fetches.end(id)
        self._allowed.pop(id, None)

    async def unpin_others(self, ids: Collection[str]) -> None:
        """Do nothing: no image is pinned here."""
