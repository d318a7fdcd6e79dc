"""The last errors of a function."""

from __future__ import annotations

from aiohttp import web

from admin.events.failures import failure_json, pool_of
from gateway.observing.failures import RecentFailures
from gateway.problems import json_answer
from pool_manager.manager import Manager
from registry.catalog import Catalog, Change


class ErrorRoutes:
    """Errors are forgotten with their function."""

    def __init__(self, catalog: Catalog, manager: Manager, failures: RecentFailures) -> None:
        self._catalog = catalog
        self._manager = manager
        self._failures = failures
        catalog.subscribe(self._changed)

    async def errors(self, request: web.Request) -> web.Response:
        """The newest first, each with what is known of its cause."""
        function = self._catalog.resolve(request.match_info["name"]).function
        found = self._failures.of(function.namespace, function.name)
        items = [failure_json(one, self._manager.decisions(pool_of(one))) for one in found]
        return json_answer({"items": items, "next": None})

    def _changed(self, change: Change) -> None:
        if change.after is None:
            self._failures.forget(change.namespace, change.name)
