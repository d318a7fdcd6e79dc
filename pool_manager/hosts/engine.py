"""The engine of another host: its images, and the driver of its containers."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path, PurePosixPath
from typing import Any, Final

from hosts.connection import HostConnection
from hosts.errors import shown
from pool_manager.driver import EngineLosses, Exits
from pool_manager.drivers.docker.driver import DockerDriver, DockerSettings
from pool_manager.drivers.docker.pairs import Machine
from pool_manager.drivers.docker.spec import Owner
from pool_manager.hosts.images import HostImages
from pool_manager.hosts.probing import Facts
from pool_manager.hosts.settings import HostSettings
from pool_manager.hosts.transfers import MIB, Transfers
from pool_manager.settings import PoolSettings
from registry.errors import DriverError

VERSION_MAX: Final = 80
"""Max characters of an engine's version."""
CORES_MAX: Final = 1024
MEMORY_MAX: Final = 2**50
"""Max plausible cores, and bytes of memory, of a host."""


class RemoteEngine:
    """The engine of one host behind a socket of this machine, which stays over breaks of the
    connection. `exits` and `losses` are those of its driver. Methods raise DriverError, EngineDown
    if the engine does not answer."""

    def __init__(
        self,
        host: str,
        owner: str,
        settings: HostSettings,
        pool: PoolSettings,
        transfers: Transfers,
    ) -> None:
        self._settings, self._pool = settings, pool
        self._owner = owner
        self._transfers = transfers
        self._socket = pool.run_dir / f"h-{owner[:8]}.sock"
        self._url = f"unix://{self._socket}"
        self._shipping = HostImages(host, settings.engine_url, self._url, owner)
        self._info: dict[str, Any] = {}
        self._machine = Machine("", has_ipv6=False, mountinfo="")
        self._is_forwarded = False
        self._there = ""
        self.driver: DockerDriver | None = None
        self.exits, self.losses = Exits(), EngineLosses()
        self._sent: set[str] = set()
        self._runtimes: dict[str, str] = {}

    async def open(
        self,
        connection: HostConnection,
        there: str,
        base: PurePosixPath,
        facts: Facts,
    ) -> DockerDriver:
        """Return the driver of the engine at the socket `there` of the host, with the runtime image
        for CPU slots. Called at each join."""
        self._machine, self._there = facts.machine, there
        if not self._is_forwarded:
            self._socket.unlink(missing_ok=True)
            await connection.forward(self._socket, there)
            self._is_forwarded = True
        image = await self.provide_runtime("cpu")
        if self.driver is None:
            settings = DockerSettings(
                url=self._url,
                images={"cpu": image},
                owner=Owner.elsewhere(self._owner, facts.nofile),
                pool=self._pool,
                uids=self._settings.uids,
                base=Path(base),
                machine=lambda: self._machine,
            )
            self.driver = await DockerDriver.open(settings)
            self.driver.exits.subscribe(self.exits.notify)
            self.driver.engine_losses.subscribe(self.losses.notify)
        else:
            await self.driver.add_image("cpu", image)
        if self.driver.images is not None:  # those that an earlier server has sent
            self._sent |= await self.driver.images.pinned()
        self._info = await self.driver.info()
        return self.driver

    def named(self, text: str) -> str:
        """Return an error's text with the engine's socket on the host, not that of this machine
        which leads there."""
        return text.replace(self._url, self._there)

    async def has_runtime(self, kind: str) -> bool:
        """Return whether the host has the runtime image for devices of a kind."""
        reference = self._settings.images.get(kind)
        return reference is not None and await self._shipping.has_runtime(reference)

    async def provide_runtime(self, kind: str) -> str:
        """Return the id of the runtime image for devices of a kind, which the host then has."""
        reference = self._settings.images.get(kind)
        if reference is None:
            raise DriverError(f"this server has no runtime image for devices of kind {kind}")
        with self._transfers.of(f"image {reference}") as progress:
            id = await self._shipping.provide_runtime(kind, reference, progress)
        self._runtimes[kind] = id
        return id

    async def send(self, id: str, name: str = "") -> None:
        """Send the image of a server unless the host has it, and pin it there."""
        if not await self._shipping.has(id):
            with self._transfers.of(f"image {name or id[:19]}") as progress:
                await self._shipping.send(id, progress)
        await self._shipping.pin(id)
        self._sent.add(id)

    async def unpin_others(self, ids: Collection[str]) -> None:
        """Remove this server's pins from all images of servers except `ids`."""
        if self.driver is not None and self.driver.images is not None:
            await self.driver.images.unpin_others(ids)
        self._sent &= set(ids)

    async def close(self) -> None:
        """Close the driver. Containers are not touched."""
        if self.driver is not None:
            await self.driver.close()

    @property
    def images(self) -> frozenset[str]:
        """The ids of the images that replicas need and that are known to be there."""
        return frozenset({*self._sent, *self._runtimes.values()})

    @property
    def version(self) -> str:
        """The version of the engine, "" if unknown."""
        return shown(self._info.get("ServerVersion") or "")[:VERSION_MAX]

    @property
    def cores(self) -> int:
        """The number of the host's cores, which are as many devices."""
        return max(1, int(_number(self._info.get("NCPU"), CORES_MAX)))

    @property
    def memory_mib(self) -> float:
        """The size of the host's memory, 0 if unknown."""
        return _number(self._info.get("MemTotal"), MEMORY_MAX) / MIB


def _number(value: object, most: int) -> float:
    """Return a number of an engine's answer, within 0 and `most`; 0 for anything else."""
    if not isinstance(value, int | float) or isinstance(value, bool) or math.isnan(value):
        return 0.0
    return max(0.0, min(float(most), value))
