"""The processes of replicas in containers, as the engine lists them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pool_manager.drivers.docker import containers
from pool_manager.drivers.docker.containers import Parts
from pool_manager.drivers.docker.engine import Engine


class ContainerProcesses:
    """`Processes` of the containers of one engine."""

    has_other_users = True

    def __init__(self, engine: Engine, find: Callable[[str], Awaitable[Parts]]) -> None:
        """`find` returns the containers of a replica, once a start that goes on has returned."""
        self._engine = engine
        self._find = find

    async def pids(self, id: str) -> frozenset[int] | None:
        """Return the host's pids of the container's processes, of a server's and its sidecar's."""
        parts = await self._find(id)
        found = await self._listed(parts.main)
        if found is None or not parts.sidecar:
            return found
        return found.union(await self._listed(parts.sidecar) or ())

    async def _listed(self, container: str) -> frozenset[int] | None:
        if not container:
            return None
        return await self._engine.call("list processes", lambda c: containers.pids(c, container))

    async def used_mib(self, id: str) -> float | None:
        """Return the memory of a server's container, without the files that it has read."""
        parts = await self._find(id)
        if not (parts.is_pair and parts.main):
            return None
        return await self._engine.call(
            "measure a container", lambda client: containers.used_mib(client, parts.main)
        )
