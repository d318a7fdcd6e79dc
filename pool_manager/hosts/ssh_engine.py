"""A host by SSH as an engine of its own."""

from __future__ import annotations

import asyncio

import structlog

from pool_manager.hosts.remote_host import RemoteHost
from pool_manager.hosts.services import HostServices
from pool_manager.hosts.settings import HostSettings
from pool_manager.settings import PoolSettings
from registry.model.hosts import Host, SshHost

log = structlog.get_logger()


class SshEngine:
    """`HostEngine` of the one host that a definition names. A change of its login, its container
    engine or its GPUs needs another connection: a `RemoteHost` that takes over the replicas."""

    why_kept = ""
    complaint = ""

    def __init__(self, settings: HostSettings, pool: PoolSettings, services: HostServices) -> None:
        self._settings, self._pool, self._services = settings, pool, services
        self._host: RemoteHost | None = None
        self._is_open = False
        self._replaced: asyncio.Task[None] | None = None
        """The end of the last host that was replaced."""

    def define(self, host: Host) -> None:
        """Announce the host, first as one that is being joined. Raises BadRequest for an address
        that cannot be one."""
        assert isinstance(host, SshHost)  # as of `kinds.py`
        present = self._host
        if present is not None and _login(present.host) == _login(host):
            present.update(host)
        else:
            made = RemoteHost(host, self._settings, self._pool, self._services, present)
            log.info("a host is defined", host=host.name, address=host.address)
            self._host = made
            if present is not None:
                name = f"end host {host.name}"
                self._replaced = self._services.tasks.spawn(name, present.close())
            if self._is_open:
                self.open()
        assert self._host is not None
        self._services.announce(self._host, host.labels, host.is_draining)

    def open(self) -> None:
        """Connect in the background, and again after each break."""
        self._is_open = True
        if self._host is not None:
            self._services.tasks.spawn(f"open {self._host.name}", self._open(self._host))

    async def _open(self, host: RemoteHost) -> None:
        if self._replaced is not None:  # both would listen at the host's control socket
            await asyncio.wait([self._replaced])
        if self._is_open and host is self._host:
            host.open()

    async def close(self, *, is_removed: bool = False) -> None:
        """End the agent and the connection; with `is_removed` also remove this server's files
        there."""
        self._is_open = False
        if self._replaced is not None:
            await asyncio.wait([self._replaced])
        if self._host is not None:
            await self._host.close(is_removed=is_removed)


def _login(host: SshHost) -> tuple[str, ...]:
    """Return the settings whose change needs another connection, another engine or other GPUs."""
    return host.address, host.host_key, host.identity, host.engine, host.gpus
