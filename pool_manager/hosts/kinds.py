"""The kinds of hosts: the only place that distinguishes them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from pool_manager.host import HostEngine
from pool_manager.hosts.services import HostServices
from pool_manager.hosts.settings import HostSettings
from pool_manager.settings import PoolSettings
from registry.errors import DriverError
from registry.model.hosts import Host, KubernetesHost, SshHost

if TYPE_CHECKING:
    from pool_manager.hosts.kubernetes.identity import PodIdentities

EngineFactory = Callable[[Host, HostServices], HostEngine]
"""Makes the engine of a defined host, which is not defined or opened yet. Raises DriverError."""

Engines = Callable[[HostSettings | None, PoolSettings], EngineFactory]
"""Returns the factory of a server with these settings; `settings` is None for one without other
hosts."""


def engines_of(settings: HostSettings | None, pool: PoolSettings) -> EngineFactory:
    """Return the factory of a server with these settings, None for one without other hosts."""

    @cache
    def identities() -> PodIdentities:
        from pool_manager.hosts.kubernetes.identity import PodIdentities

        return PodIdentities()

    def make(host: Host, services: HostServices) -> HostEngine:
        match host:
            case SshHost() if settings is not None:
                # Imported here, as servers without other hosts need neither asyncssh nor docker
                # nor TLS.
                from pool_manager.hosts.ssh_engine import SshEngine

                return SshEngine(settings, pool, services)
            case KubernetesHost() if settings is not None:
                from pool_manager.hosts.kubernetes.engine import KubernetesEngine

                return KubernetesEngine(host, settings, pool, services, identities())
            case _:
                raise DriverError(f"host {host.name}: this server can have no other hosts")

    return make
