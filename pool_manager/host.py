"""The interface of hosts: the machines that run replicas, this one among them.

A `HostEngine` serves one host or several, and announces them; a `ReplicaHost` is one of them: its
driver, the transport of its replicas' connections, the files that they see, and facts about it.
Callers ask the host of a replica to act, never which kind of host it is: the kinds are
distinguished once, in `hosts/kinds.py`.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pool_manager.core.hosts import HostMemory, HostState
from pool_manager.driver import Driver, EngineLosses, Exits, Processes
from pool_manager.ports import Binding, ControlConnections, Gpus
from registry.exchange import HostRoute
from registry.model.bundles import BundleFile
from registry.model.hosts import Ability, Host
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.enrolment import FetchedFile
from runtime_image.contract.link import VERSION

if TYPE_CHECKING:
    from pool_manager.replicas.file_transfer import PartReader


class Located(NamedTuple):
    """How gateways reach a replica; fields as in `ReplicaEndpoint`."""

    path: str
    host: str = ""
    greeting: str = ""
    link: int = VERSION


class Listening(NamedTuple):
    """What waits for a replica."""

    connections: ControlConnections
    """Those of the replica to its manager."""
    data_listener: socket.socket | None
    """Passed to a new replica, to accept gateways' connections; None if it opens its own."""


class HostTransport(Protocol):
    """The ways between the replicas of a host, the manager and gateways."""

    @property
    def why_down(self) -> str:
        """Why the host cannot be reached, "" while it can."""

    async def wait_up(self) -> None:
        """Return once the host can be reached."""

    @property
    def routes(self) -> Mapping[str, HostRoute]:
        """The routes to the hosts that `located` names, at present."""

    def located(self, record: ReplicaRecord) -> Located:
        """Return how gateways reach a replica; with the path "" while that is unknown."""

    def listen(self, record: ReplicaRecord, *, is_new: bool) -> Listening:
        """Begin to accept a replica's connections to the manager. `is_new`: it is to be started;
        otherwise it has what it was given then. Raises OSError."""

    def reader(self, record: ReplicaRecord) -> AbstractAsyncContextManager[PartReader]:
        """Connect to a replica as gateways do, to fetch files that it made. Raises DriverError,
        OSError, LinkError if something else answers there."""

    async def seal(self, id: str) -> None:
        """Let a replica change nothing more in the folder of its data socket, before foreign code
        runs in it. Raises DriverError."""


class HostCache(Protocol):
    """The files by content that a host keeps, which are sent ahead of need. Methods raise
    DriverError."""

    @property
    def stock(self) -> Mapping[str, int]:
        """The bytes of each file by sha256, as last known."""

    @property
    def bytes_per_s(self) -> float:
        """Speed of transfers, as measured lately."""

    async def send(self, files: Iterable[BundleFile]) -> None:
        """Send the files that it lacks."""

    async def trim(self, limit_mib: int, kept: Collection[str]) -> None:
        """Remove the files used longest ago while it is over its limit, except those of replicas
        and those with a sha256 in `kept`."""


class HostFiles(Protocol):
    """The files and images that replicas of a host are given. Methods raise FnError, OSError."""

    @property
    def cache_mib(self) -> int:
        """The MiB that the host's cache of files may take; 0 if files are not sent to it, as it
        shares the disk of this process."""

    @property
    def cache(self) -> HostCache | None:
        """The cache while the host is up, if it has one."""

    @property
    def images(self) -> frozenset[str]:
        """The ids of the images that replicas need, as far as they were sent to the host."""

    async def send(self, binding: Binding) -> None:
        """Make what a replica needs available on the host, before its start is admitted: that may
        take minutes. Raises StartRefused for what no repetition brings."""

    async def place(self, id: str, binding: Binding | None, *, is_read_soon: bool = False) -> None:
        """Fill the model folder of a replica that is about to start, or of a standby, whose data
        socket is sealed with that (`HostTransport.seal`); with None, empty it. `is_read_soon`:
        files on the disk of this process are read ahead."""

    async def to_fetch(self, id: str, binding: Binding) -> list[FetchedFile]:
        """Return the files that a replica fetches itself as it is bound, which it may from now on:
        all of its model folder; none where they are placed there."""

    def end_reading(self, id: str) -> None:
        """End the reading ahead for a replica, whose start is over."""

    async def add(self, id: str, files: Collection[BundleFile]) -> list[FetchedFile]:
        """Add stored files to the model folder of a replica that runs. Return those that it has to
        fetch itself, as `to_fetch`."""

    async def record(self, record: ReplicaRecord) -> None:
        """Give a replica that is about to start its record and its folders."""

    def adopt(self, record: ReplicaRecord) -> None:
        """Take over the model folder of a replica that an earlier manager started."""

    async def remove(self, id: str) -> None:
        """Remove the folders of a replica that is gone."""

    async def unpin_others(self, ids: Collection[str]) -> None:
        """Remove this server's pins from all images of servers except those with these ids."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What is known of a host beside what it and its replicas say."""

    starts_at_once: int
    """Concurrent starts that it may have."""
    is_contained: bool
    """Whether all of its replicas run in containers, which may lack a network."""
    has_own_clock: bool
    """Whether times of its replicas cannot be compared with those of this process."""
    abilities: frozenset[Ability] = frozenset()
    """What its replicas can run beside models."""
    pulls_images: bool = False
    """Whether its engine pulls the images of servers by their references, as that of a cluster:
    this server neither looks at them nor sends them, a mount is the name of a volume claim there,
    and no capabilities are granted."""
    digest_of: Callable[[str], str] | None = None
    """Returns the digest of the image of a replica's server by the replica's id, as its engine has
    pulled it, "sha256:..." alone or at the end; "" if it does not tell. None where this server
    looks at images."""


@dataclass(frozen=True, slots=True)
class HostView:
    """One host as the manager sees it; the local machine is one, with `address` "".

    `state` is one of `core.hosts.HostState`, since `since_s` (Unix seconds);
    `reason` says why the host is not up, or which problem it has although it is up. `driver` and
    `engine_version` are "" if unknown. `agent` says why there are no reports of GPUs and disks, ""
    while there are. `gpus` and `cpu_slots` are the numbers of devices, `memory_mib` is the memory
    that replicas on its CPU slots share, 0 if it is not accounted. `cached_mib` is the size of the
    `cached_files` model files, `images` are the ids of the images that this server has put
    there. `clock_offset_s` is the host's wall clock minus this machine's. `transfer` describes the
    transfers in progress, "" for none; `transferred_bytes` counts the bytes of files and images
    sent since the start of this server. None: unknown, or there is no such thing.
    """

    name: str
    address: str = ""
    state: HostState = HostState.JOINING
    reason: str = ""
    since_s: float = 0.0
    labels: dict[str, str] = field(default_factory=dict)
    driver: str = ""
    engine_version: str = ""
    rtt_ms: float | None = None
    epoch: int = 0
    agent: str = ""
    cpu_slots: int = 0
    gpus: int = 0
    memory_mib: int = 0
    replicas: int = 0
    disk_free_mib: float | None = None
    cached_files: int = 0
    cached_mib: float | None = None
    images: tuple[str, ...] = ()
    clock_offset_s: float | None = None
    transfer: str = ""
    transferred_bytes: int | None = None
    abilities: frozenset[Ability] = frozenset()
    """As in `HostFacts`, like the next two."""
    is_contained: bool = False
    pulls_images: bool = False


class ReplicaHost(Protocol):
    """A host, as the manager of its replicas sees it. What it has stays the same while it comes and
    goes."""

    name: str
    transport: HostTransport
    files: HostFiles
    exits: Exits
    """Those of its driver."""
    engine_losses: EngineLosses
    """Those of its driver, while the host can be reached."""

    @property
    def facts(self) -> HostFacts:
        """What is known of it from the beginning."""

    @property
    def driver(self) -> Driver:
        """What starts and stops its replicas. Raises HostDown while the host cannot be reached."""

    @property
    def processes(self) -> Processes:
        """Those of its replicas, by which a device is proven free. Raises HostDown."""

    @property
    def gpus(self) -> Gpus:
        """Its GPUs, as far as they are known."""

    def memory(self) -> HostMemory | None:
        """Return its memory as it was read lately, None if that is unknown."""

    def complete(self, record: ReplicaRecord) -> ReplicaRecord:
        """Return the record of a new replica with what its host decides: the paths that the replica
        sees, its threads, its greeting."""

    async def left(self) -> set[str] | None:
        """Return the ids of the replicas of an earlier manager that run, at the start of this one.
        None if the host will say it, with HostUp. Raises DriverError."""

    def fill(self, view: HostView) -> HostView:
        """Return the view of this host with the facts known here; the machine adds the others."""


HostOf = Callable[[str], ReplicaHost]
"""Returns the host of a replica by the replica's id. Raises HostDown if it was removed."""


class HostEngine(Protocol):
    """Serves one host or several, which it announces and withdraws through its owner's services
    (`hosts/services.py`). For each of them it reports HostUp once replicas can be started, and
    HostUnreachable when it is lost, unless it is this machine."""

    @property
    def complaint(self) -> str:
        """What is wrong with all of its hosts, or why it has none; "" for nothing."""

    why_kept: str
    """Why its definition cannot be changed or removed by the admin API, "" if it can."""

    def define(self, host: Host) -> None:
        """Apply its definition, at first and when that has changed. Hosts that are known, or that
        replicas of an earlier manager are on, are announced before this returns. Raises BadRequest
        for a definition that cannot be used."""

    def open(self) -> None:
        """Connect in the background. Called once, when the manager has adopted what it has records
        of."""

    async def close(self, *, is_removed: bool = False) -> None:
        """End all connections; with `is_removed` also remove what this server has left there.
        Replicas are not touched."""
