"""What runs: pools, replicas, devices."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from admin.views import replica_json
from gateway.problems import json_answer
from pool_manager.manager import Manager
from registry.catalog import Catalog


class PoolRoutes:
    """The pool manager as it is now. `clock` is the one its times are in."""

    def __init__(self, catalog: Catalog, manager: Manager, clock: Callable[[], float]) -> None:
        self._catalog = catalog
        self._manager = manager
        self._clock = clock

    async def list_pools(self, _request: web.Request) -> web.Response:
        """One pool per revision."""
        items = []
        for current in self._catalog.all():
            for deployed in self._catalog.revisions(current.function.name):
                key = deployed.revision.key
                pool = self._manager.pool(key)
                if pool is not None:
                    shown, wanted, since_s = pool
                    items.append(
                        {
                            "pool": key,
                            "state": shown.state,
                            "reason": shown.reason,
                            "ready": len(shown.replicas),
                            "wanted": wanted,
                            "since_s": since_s,
                        }
                    )
        return json_answer({"items": items, "next": None})

    async def list_replicas(self, _request: web.Request) -> web.Response:
        """Every replica that is not yet stopped."""
        now = self._clock()
        items = [replica_json(replica, now) for replica in self._manager.replicas()]
        return json_answer({"items": items, "next": None})

    async def list_devices(self, _request: web.Request) -> web.Response:
        """Every device, its memory bank and the replicas on it."""
        there: dict[str, list[str]] = {}
        for replica in self._manager.replicas():
            there.setdefault(replica.device, []).append(replica.id)
        items = [
            {
                "id": device.id,
                "kind": device.kind,
                "bank": device.bank,
                "memory_mib": round(device.memory_mib),
                "replicas": there.get(device.id, []),
            }
            for device in self._manager.devices()
        ]
        return json_answer({"items": items, "next": None})
