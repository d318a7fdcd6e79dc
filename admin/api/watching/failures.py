"""The last errors of a function, with what is known of their cause."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from aiohttp import web

from gateway.observing.failures import Failure, RecentFailures
from gateway.problems import json_answer
from pool_manager.manager import Manager
from pool_manager.telling.journal import Decision
from registry.catalog import Catalog, Change
from registry.errors import Poison, ReplicaDied
from registry.model import pool_key

DEATHS: Final = frozenset({ReplicaDied.code, Poison.code})


class FailureRoutes:
    """Errors are forgotten with their function."""

    def __init__(self, catalog: Catalog, manager: Manager, failures: RecentFailures) -> None:
        self._catalog = catalog
        self._manager = manager
        self._failures = failures
        catalog.subscribe(self._changed)

    async def errors(self, request: web.Request) -> web.Response:
        """The newest first."""
        function = self._catalog.resolve(request.match_info["name"]).function
        found = self._failures.of(function.namespace, function.name)
        return json_answer({"items": [self._item(one) for one in found]})

    def _item(self, failure: Failure) -> dict[str, Any]:
        _, _, number = failure.revision.rpartition("@")
        key = pool_key(failure.namespace, failure.function, int(number))
        return {
            "at_s": failure.at_s,
            "code": failure.code,
            "detail": explained(failure, self._manager.decisions(key)),
            "revision": failure.revision,
            "replica": failure.replica,
            "request_id": failure.request_id,
            "count": failure.count,
        }

    def _changed(self, change: Change) -> None:
        if change.after is None:
            self._failures.forget(change.namespace, change.name)


def explained(failure: Failure, decisions: Sequence[Decision]) -> str:
    """The detail, and of a replica that died how: that is heard of later than its end, and by the
    pool manager alone."""
    if failure.code in DEATHS and failure.replica:
        beginning = f"{failure.replica} ended: "
        for decision in reversed(decisions):
            if decision.text.startswith(beginning):
                return f"{failure.detail}: {decision.text}"
    return failure.detail
