"""Routes for pools, replicas and devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from aiohttp import web

from admin.api.answers import json_answer, page_of
from admin.documents.functions import Items
from admin.documents.server import PoolRow
from admin.views import device_row, pool_state, replica_row
from pool_manager.manager import Manager
from registry.catalog import Catalog
from registry.names import parse_ref


class PoolRoutes:
    """Handlers for the current state of the pool manager. `clock` is the clock of its times, `wall`
    returns Unix seconds."""

    def __init__(
        self,
        catalog: Catalog,
        manager: Manager,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._catalog = catalog
        self._manager = manager
        self._clock = clock
        self._wall = wall

    async def list_pools(self, request: web.Request) -> web.Response:
        """Return one page of the pools (one per revision), by function name and number."""
        page = page_of(request.query)
        return page.answer(self._pools(page.start))

    def _pools(self, start: str) -> Iterator[tuple[str, PoolRow]]:
        name, number = parse_ref(start) if start else ("", None)
        for current in self._catalog.walk(name):
            for deployed in self._catalog.revisions(current.function.name):
                revision = deployed.revision
                if number is not None and (revision.name, revision.number) < (name, number):
                    continue
                if (pool := self._manager.pool(revision.key)) is None:
                    continue
                shown, wanted, since_s = pool
                yield (
                    revision.ref,
                    PoolRow(
                        pool=revision.key,
                        state=pool_state(shown),
                        reason=shown.reason,
                        ready=len(shown.replicas),
                        wanted=wanted,
                        since_s=since_s,
                    ),
                )

    async def list_replicas(self, _request: web.Request) -> web.Response:
        """Return every replica that is not stopped yet."""
        boot_s = self._wall() - self._clock()
        manager = self._manager
        items = [
            replica_row(one, boot_s + one.since_s, manager.charge(one.id))
            for one in manager.replicas()
        ]
        return json_answer(Items(items, None))

    async def list_devices(self, _request: web.Request) -> web.Response:
        """Return every device with its memory, its replicas and its problems."""
        busy = self._manager.busy
        items = [device_row(one, busy(one.device.id)) for one in self._manager.occupancies()]
        return json_answer(Items(items, None))
