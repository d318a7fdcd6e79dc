"""Network holders: containers created in advance, whose network one replica joins."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from dataclasses import dataclass

import docker
import structlog

from pool_manager.drivers.docker import spec
from pool_manager.drivers.docker.containers import remove
from pool_manager.drivers.docker.engine import ENGINE_ERRORS, Engine
from pool_manager.drivers.docker.spec import Owner
from registry.errors import DriverError
from registry.tasks import Tasks

log = structlog.get_logger()

HOLDERS = 2
"""Holders kept ready on a host. Each is one sleeping process."""


@dataclass(frozen=True, slots=True)
class NetworkHolder:
    """A running container whose network can be joined. Its `number` is assigned before it is
    created."""

    number: str
    container: str


class NetworkHolders:
    """Keeps holders ready. A holder is used once and never shared, so replicas stay isolated."""

    def __init__(
        self,
        engine: Engine,
        image: str,
        owner: Owner,
        uid: int,
        tasks: Tasks,
        refill_after_s: float,
    ) -> None:
        """All holders run as the user `uid`, which no replica has."""
        self._engine = engine
        self._owner = owner
        self._uid = uid
        self._image = image
        self._tasks = tasks
        self._refill_after_s = refill_after_s
        self._ready: list[NetworkHolder] = []
        self._ours: set[str] = set()
        # Containers that ended during a refill; a new holder may be among them.
        self._ended: set[str] = set()
        self._is_refilling = False
        self._is_closed = False

    def take(self) -> NetworkHolder | None:
        """Return a holder for one replica, None if none is left."""
        return self._ready.pop() if self._ready else None

    def ended(self, container: str) -> None:
        """Handle the end of a container, which may be a holder; a ready holder is replaced."""
        if self._is_refilling:
            self._ended.add(container)
        for holder in [one for one in self._ready if one.container == container]:
            self._forget(holder)
            self.refill()

    def ready(self) -> frozenset[NetworkHolder]:
        """Return the holders that are ready."""
        return frozenset(self._ready)

    def knows(self, number: str) -> bool:
        """Whether this server created, or is creating, the holder; others are of an earlier
        server."""
        return number in self._ours

    def sync(self, running: dict[str, str], before: frozenset[NetworkHolder]) -> None:
        """Forget the holders that were ready `before` the list was read and are not in `running`
        (container ids by number)."""
        for holder in before.intersection(self._ready):
            if holder.number not in running:
                self._forget(holder)

    def _forget(self, holder: NetworkHolder) -> None:
        self._ready.remove(holder)
        self._ours.discard(holder.number)

    def discard(self, holder: NetworkHolder) -> None:
        """Remove a used holder in the background; the replica that joined its network keeps it."""
        if not self._is_closed:
            self._tasks.spawn("holder", self._remove(holder))

    def refill(self, after_s: float | None = None) -> None:
        """Create missing holders in the background."""
        if not (self._is_refilling or self._is_closed):
            self._is_refilling = True
            after_s = self._refill_after_s if after_s is None else after_s
            self._tasks.spawn("holders", self._refill(after_s))

    async def _refill(self, after_s: float) -> None:
        try:
            await asyncio.sleep(after_s)
            while len(self._ready) < HOLDERS:
                await self._make()
        except DriverError as error:
            # Without holders starts only take longer, and they report a broken engine themselves.
            if not self._is_closed:
                log.warning("no network could be made ahead", reason=str(error))
        finally:
            self._is_refilling = False
            self._ended.clear()

    async def _make(self) -> None:
        number = secrets.token_hex(4)
        self._ours.add(number)
        try:
            container = await self._engine.start("make a network", lambda c: self._run(c, number))
        except BaseException:
            self._ours.discard(number)
            raise
        if container not in self._ended:
            self._ready.append(NetworkHolder(number, container))
        else:
            self._ours.discard(number)

    def _run(self, client: docker.APIClient, number: str) -> str:
        config = spec.holder(self._image, self._owner, number, self._uid)
        name = spec.holder_name(number, self._owner)
        container: str = client.create_container_from_config(config, name)["Id"]
        try:
            client.start(container)
        except ENGINE_ERRORS:
            with contextlib.suppress(DriverError, *ENGINE_ERRORS):
                remove(client, container)
            raise
        if self._is_closed:
            remove(client, container)
        return container

    async def _remove(self, holder: NetworkHolder) -> None:
        # A holder that cannot be removed is found by the next list.
        with contextlib.suppress(DriverError):
            await self._engine.call(
                "remove a holder", lambda client: remove(client, holder.container)
            )
        self._ours.discard(holder.number)

    def close(self) -> None:
        """Stop creating and removing holders; ready holders continue to run."""
        self._is_closed = True
