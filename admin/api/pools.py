"""Routes for pools, replicas and devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, NamedTuple

from aiohttp import web

from admin.api.functions import page_of
from admin.views import occupancy_json, replica_json
from gateway.problems import json_answer
from pool_manager.manager import Manager
from registry.catalog import Catalog
from registry.exchange import PoolEndpoints
from registry.names import parse_ref


class _Pool(NamedTuple):
    cursor: str
    key: str
    shown: PoolEndpoints
    wanted: int
    since_s: float

    def view(self) -> dict[str, Any]:
        return {
            "pool": self.key,
            "state": self.shown.state,
            "reason": self.shown.reason,
            "ready": len(self.shown.replicas),
            "wanted": self.wanted,
            "since_s": self.since_s,
        }


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
        return page.answer(self._pools(page.start), attrgetter("cursor"), _Pool.view)

    def _pools(self, start: str) -> Iterator[_Pool]:
        name, number = parse_ref(start) if start else ("", None)
        for current in self._catalog.walk(name):
            for deployed in self._catalog.revisions(current.function.name):
                revision = deployed.revision
                if number is not None and (revision.name, revision.number) < (name, number):
                    continue
                shown = self._manager.pool(revision.key)
                if shown is not None:
                    yield _Pool(revision.ref, revision.key, *shown)

    async def list_replicas(self, _request: web.Request) -> web.Response:
        """Return every replica that is not stopped yet."""
        boot_s = self._wall() - self._clock()
        manager = self._manager
        items = [
            replica_json(one, boot_s + one.since_s, manager.charge(one.id))
            for one in manager.replicas()
        ]
        return json_answer({"items": items, "next": None})

    async def list_devices(self, _request: web.Request) -> web.Response:
        """Return every device with its memory, its replicas and its problems."""
        busy = self._manager.busy
        items = [occupancy_json(one, busy(one.device.id)) for one in self._manager.occupancies()]
        return json_answer({"items": items, "next": None})
