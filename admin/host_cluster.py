"""The Kubernetes cluster that the server runs in, before it is stored as a host."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hosts.checks import Check
from pool_manager.drivers.uids import parse_range
from registry.errors import HostRefused
from registry.model.hosts import KubernetesHost

if TYPE_CHECKING:
    from admin.settings import Settings
    from hosts.tls.door import LinkDoor

IN_CLUSTER: Final = "fnctl kubernetes manifests prints how to run the server in the cluster"
DOOR: Final = "set FN_LINK_LISTEN=0.0.0.0:7444, and FN_LINK_ADDRESS to what Pods dial"

Examine = Callable[[KubernetesHost], Awaitable[list[Check]]]


@dataclass(frozen=True, slots=True)
class HostClusters:
    """Checks whether this server can use the cluster that it runs in."""

    examine: Examine
    """Returns the results of all checks of a definition; of the API server alone if that does not
    answer."""
    why_outside: str = ""
    """Why this server has no access to the API server of a cluster, "" if it has."""
    has_door: bool = True
    """Whether replicas can dial in."""

    def check_server(self) -> None:
        """Raise HostRefused if this server can have no cluster, whatever its definition is."""
        if self.why_outside:
            raise HostRefused(
                f"this server runs outside a cluster: {self.why_outside}",
                detail={"hint": IN_CLUSTER},
            )
        if not self.has_door:
            raise HostRefused(
                "this server has no door for replicas in Pods: FN_LINK_LISTEN is not set",
                detail={"hint": f"{DOOR}; {IN_CLUSTER}"},
            )

    async def check(self, host: KubernetesHost) -> list[Check]:
        """Return the results of all checks of a definition. Raises HostRefused, naming the first
        problem and its remedy."""
        checks = await self.examine(host)
        for check in checks:
            if check.level == "fail":
                raise HostRefused(
                    f"the cluster cannot run replicas: {check.name}: {check.found}",
                    detail={"hint": check.todo, "checks": checks},
                )
        return checks


def own_cluster(settings: Settings, door: LinkDoor | None) -> HostClusters:
    """Return the checks of the cluster that a server with these settings runs in."""
    section = settings.kubernetes()

    async def examine(host: KubernetesHost) -> list[Check]:
        # Imported here, as servers outside a cluster need none of it.
        from hosts.kubernetes.access import Access
        from pool_manager.hosts.kubernetes.examine import Surroundings
        from pool_manager.hosts.kubernetes.examine import examine as examined

        assert door is not None  # as of `check_server`
        around = Surroundings(
            door.address,
            door.authority_pem,
            settings.port,
            section.api_host,
            section.api_port,
            parse_range(settings.replica_uids).start,
        )
        access = Access(section.account, section.api_host, section.api_port)
        return await examined(access, host, around)

    return HostClusters(examine, section.why_outside, door is not None)
