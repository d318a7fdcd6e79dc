"""Networks made ahead, each for one replica."""

from __future__ import annotations

import asyncio
import contextlib
import secrets

import docker
import structlog

from pool_manager.drivers.docker import shape
from pool_manager.drivers.docker.containers import remove
from pool_manager.drivers.docker.engine import Engine
from pool_manager.drivers.docker.shape import Owner
from registry.errors import DriverError
from registry.tasks import Tasks

log = structlog.get_logger()

HOLDERS = 2
"""Kept ready on a host. Each is one sleeping process."""
REFILL_AFTER_S = 2.0
"""A spent holder is replaced when the start that it was for has had the cores for itself."""


class Holders:
    """Keeps holders ready; one is taken once and never shared, so that replicas stay apart."""

    def __init__(self, engine: Engine, image: str, owner: Owner, tasks: Tasks) -> None:
        self._engine = engine
        self._owner = owner
        self._config = shape.holder(image, owner)
        self._tasks = tasks
        self._ready: list[str] = []
        self._is_refilling = False
        self._is_closed = False

    def take(self) -> str | None:
        """A holder's container id for one replica, None where there is none left."""
        return self._ready.pop() if self._ready else None

    def ended(self, container: str) -> None:
        """A holder ended by itself."""
        if container in self._ready:
            self._ready.remove(container)
            self.refill()

    def sync(self, running: set[str]) -> None:
        """These run: ours that do not are forgotten, those of an earlier server removed.

        One that is just being made or joined may be among the latter. Then it is made again, and
        the start that wanted it makes a network of its own.
        """
        for container in running.difference(self._ready):
            self.discard(container)
        self._ready = [one for one in self._ready if one in running]

    def discard(self, container: str) -> None:
        """Remove a spent holder in the background; what joined its network keeps it."""
        self._tasks.spawn("holder", self._remove(container))

    def refill(self, after_s: float = REFILL_AFTER_S) -> None:
        """Have as many as there should be, in the background."""
        if not self._is_refilling:
            self._is_refilling = True
            self._tasks.spawn("holders", self._refill(after_s))

    async def _refill(self, after_s: float) -> None:
        try:
            await asyncio.sleep(after_s)
            while len(self._ready) < HOLDERS:
                self._ready.append(await self._engine.start("make a network", self._make))
        except DriverError as error:
            # Starts only take longer without; whatever is wrong, they will say it.
            log.warning("no network could be made ahead", reason=str(error))
        finally:
            self._is_refilling = False

    def _make(self, client: docker.APIClient) -> str:
        name = shape.holder_name(secrets.token_hex(4), self._owner)
        container: str = client.create_container_from_config(self._config, name)["Id"]
        try:
            client.start(container)
        except BaseException:
            remove(client, container)
            raise
        if self._is_closed:
            remove(client, container)
        return container

    async def _remove(self, container: str) -> None:
        # The list of containers removes what is left of it later.
        with contextlib.suppress(DriverError):
            await self._engine.call("remove a holder", lambda client: remove(client, container))

    def close(self) -> None:
        """Nothing more is made; those that nobody took are still there."""
        self._is_closed = True
