"""Looks at what a Docker driver made, past the driver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import docker

from pool_manager.drivers.docker import shape
from pool_manager.drivers.docker.containers import holder_number, owned, replica_id
from pool_manager.settings import PoolSettings

UNTIL_S = 20.0


class Containers:
    """What is on the engine at `url` of the server whose folders are `settings`."""

    def __init__(self, url: str, settings: PoolSettings) -> None:
        self.api = docker.APIClient(base_url=url, version="1.41", timeout=UNTIL_S)
        self.owner = shape.Owner(shape.owner_name(settings.run_dir.parent), "10001:10001")

    def replicas(self) -> dict[str, str]:
        """The container of each replica there is, in whatever state."""
        listed = owned(self.api, self.owner.name)
        return {replica_id(one): one["Id"] for one in listed if replica_id(one)}

    def holders(self) -> set[str]:
        """The containers that hold a network."""
        return {one["Id"] for one in owned(self.api, self.owner.name) if holder_number(one)}

    def inspect(self, replica: str) -> dict[str, Any]:
        """A replica's container, as the engine shows it."""
        shown: dict[str, Any] = self.api.inspect_container(self.replicas()[replica])
        return shown

    def memory_mib(self, replica: str) -> int:
        """The memory cap of a replica."""
        return int(self.inspect(replica)["HostConfig"]["Memory"]) // shape.MIB

    def leave(self, image: str, labels: dict[str, str], **settings: Any) -> str:
        """A container as an earlier server may have left it, created only; its id."""
        config = {
            "Image": image,
            "Entrypoint": ["sleep"],
            "Cmd": ["600"],
            "Labels": {shape.OWNER: self.owner.name, **labels},
            "HostConfig": {"NetworkMode": "none"},
            **settings,
        }
        made: str = self.api.create_container_from_config(config)["Id"]
        return made

    async def until(self, condition: Callable[[], bool]) -> None:
        """Ask the engine until it is so."""
        async with asyncio.timeout(UNTIL_S):
            while not await asyncio.to_thread(condition):
                pass

    def wipe(self) -> None:
        """Remove all that is there."""
        for one in owned(self.api, self.owner.name):
            self.api.remove_container(one["Id"], force=True)

    def close(self) -> None:
        """End the connection."""
        self.api.close()
