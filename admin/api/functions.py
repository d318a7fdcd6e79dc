"""Routes for functions and revisions. Lists are paged: `?next=CURSOR` requests the next page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Final, TypeVar

from aiohttp import web

from admin.api.context import AskConnections
from admin.deploy.changes import etag
from admin.deploy.deploys import Deploys
from admin.deploy.verify import Samples, trial_keys
from admin.events.snapshot import FunctionRows
from admin.history import ServerHistory
from admin.store import Store
from admin.views import (
    call_json,
    connections_json,
    neighbours,
    operation_json,
    precision_json,
    revision_json,
)
from gateway.openapi.descriptions import example
from gateway.problems import OK, json_answer
from pool_manager.core.starts import Awaited
from pool_manager.manager import Manager
from registry.batching import summary
from registry.catalog import Deployed
from registry.errors import BadRequest
from registry.model.operations import Operation

T = TypeVar("T")

PAGE_MAX: Final = 1000
"""Max items of a page, and the default. A page of this length blocks the event loop, and with it
all requests, for about 10 ms."""
CURSOR_MAX: Final = 300
"""Max characters: a function and one of its aliases fit."""

ITEMS = 20


@dataclass(frozen=True, slots=True)
class Page:
    """Requested part of a list: at most `limit` items from the cursor `start` on."""

    limit: int
    start: str

    def answer(
        self, rows: Iterable[T], cursor: Callable[[T], str], view: Callable[[T], dict[str, Any]]
    ) -> web.Response:
        """Answer with the first rows as `view` renders them. `rows` start at the page and are in
        cursor order; if more rows follow, `next` is the cursor of the first row left out."""
        found = list(islice(rows, self.limit + 1))
        following = cursor(found[self.limit]) if len(found) > self.limit else None
        items = [view(row) for row in found[: self.limit]]
        return json_answer({"items": items, "next": following})


def page_of(query: Mapping[str, str]) -> Page:
    """Return the page that a request's query asks for. Raises BadRequest."""
    start = query.get("next", "")
    if len(start) > CURSOR_MAX:
        raise BadRequest(f"next: expected at most {CURSOR_MAX} characters, got {len(start)}")
    return Page(whole_number(query, "limit", PAGE_MAX, PAGE_MAX), start)


def whole_number(query: Mapping[str, str], key: str, default: int, most: int) -> int:
    """Return the number from 1 to `most` that a query has for `key`. Raises BadRequest."""
    text = query.get(key, str(default))
    if not (text.isascii() and text.isdecimal()) or len(text) > 9 or not 1 <= int(text) <= most:
        raise BadRequest(f"{key}: expected a whole number from 1 to {most}, got {text[:40]!r}")
    return int(text)


class FunctionRoutes:
    """Handlers for functions, revisions and scaling decisions."""

    def __init__(
        self,
        store: Store,
        manager: Manager,
        rows: FunctionRows,
        deploys: Deploys,
        history: ServerHistory,
        connections: AskConnections,
    ) -> None:
        self._connections = connections
        self._ring = store.ring
        self._catalog = store.catalog
        self._bundles = store.bundles
        self._stored_history = store.history
        self._traffic = store.traffic
        self._manager = manager
        self._rows = rows
        self._deploys = deploys
        self._history = history
        self._samples = Samples(store.bundles, store.blobs)

    async def list_functions(self, request: web.Request) -> web.Response:
        """Return one page of the functions with their current state, by name."""
        page = page_of(request.query)
        await self._rows.gateways.refresh()
        loads = self._rows.gateways.loads()
        return page.answer(
            self._catalog.walk(page.start),
            lambda deployed: deployed.function.name,
            lambda deployed: self._rows.row(deployed, loads),
        )

    async def get_function(self, request: web.Request) -> web.Response:
        """Return one function with all details; `previous` is the target of a rollback."""
        await self._rows.gateways.refresh()
        deployed = self._catalog.resolve(request.match_info["name"])
        loads = self._rows.gateways.loads()
        origin = f"{request.scheme}://{request.host}"
        return json_answer(
            {
                **self._rows.row(deployed, loads),
                **self._rows.builds(deployed),
                "limits": asdict(deployed.function.limits),
                "spread": deployed.function.scaling.spread,
                "file_hosts": deployed.function.scaling.file_hosts,
                "aliases": list(deployed.function.aliases),
                **call_json(deployed),
                "precision": precision_json(deployed),
                "revisions": self._revisions(deployed.function.name),
                "previous": await self._traffic.previous(deployed.function.name),
                "cold_starts": self._history.table(deployed.revision.key),
                "example": example(deployed, origin),
                "neighbours": neighbours(deployed, self._rows.manager.devices()),
            },
            OK,
            {"ETag": etag(deployed.function)},
        )

    async def list_revisions(self, request: web.Request) -> web.Response:
        """Return the callable revisions, oldest first."""
        name = self._catalog.resolve(request.match_info["name"]).function.name
        return json_answer({"items": self._revisions(name), "next": None})

    async def remove_function(self, request: web.Request) -> web.Response:
        """Remove a function. Requests in flight finish; queued requests get an error."""
        name = request.match_info["name"]
        await self._deploys.remove(name)
        return json_answer({"removed": name})

    async def why(self, request: web.Request) -> web.Response:
        """Return state and reason, with the latest decisions, cold starts and state intervals, and
        the operation that runs. Of a function whose first deploy runs or has failed: that one."""
        ref = request.match_info["name"]
        deployed = self._catalog.find(ref)
        operation = await self._deploys.runner.undone(ref) if deployed is None else None
        if operation is not None:
            return json_answer(self._not_deployed(operation))
        deployed = deployed or self._catalog.resolve(ref)
        name, key = deployed.function.name, deployed.revision.key
        row = self._rows.row(deployed, self._rows.gateways.loads())
        return json_answer(
            {
                "state": row["state"],
                "reason": row["reason"],
                "phase": row["phase"],
                "ready_in_ms": row["ready_in_ms"],
                "park": row["park"],
                "blocked": self._manager.blocked(key),
                "kept_by": self._manager.kept_by(key),
                "batching": summary(deployed.revision, deployed.profile),
                "since_s": row["since_s"],
                "sleeps_at_s": row["sleeps_at_s"],
                "decisions": _decisions(self._manager, key),
                "cold_starts": [
                    asdict(r) for r in await self._stored_history.cold_starts(name, ITEMS)
                ],
                "intervals": [asdict(r) for r in await self._stored_history.intervals(name, ITEMS)],
                "operation": self._operation(name),
                **await self._connected(deployed),
            }
        )

    def _operation(self, name: str) -> dict[str, Any] | None:
        """Return the operation of a function that runs: of several, the one that began first."""
        running = self._deploys.runner.running()
        found = next((one for one in running if one.name == name and one.state == "running"), None)
        return None if found is None else operation_json(found)

    def _not_deployed(self, operation: Operation) -> dict[str, Any]:
        """Return what `why` tells about a function without a revision: its trial, which runs or has
        failed."""
        keys = trial_keys(operation)
        key = next((one for one in keys if self._manager.pool(one) is not None), keys[0])
        return {
            "state": "not_deployed",
            "reason": _why_not_deployed(operation, self._manager.awaited(key)),
            "phase": None,
            "ready_in_ms": None,
            "park": None,
            "blocked": self._manager.blocked(key),
            "kept_by": self._manager.kept_by(key),
            "batching": "",
            "since_s": operation.ended_s or operation.created_s,
            "sleeps_at_s": None,
            "decisions": _decisions(self._manager, key),
            "cold_starts": [],
            "intervals": [],
            "operation": operation_json(operation),
        }

    async def _connected(self, deployed: Deployed) -> dict[str, Any]:
        """Return who is connected to a server function; {} for a model."""
        if deployed.revision.server is None:
            return {}
        function = deployed.function
        found = await self._connections(function.namespace, function.name)
        return connections_json(found, self._ring)

    async def sample(self, request: web.Request) -> web.Response:
        """Return a sample request body for the function, with its content type."""
        deployed = self._catalog.resolve(request.match_info["name"])
        kind, body = await self._samples.body(deployed)
        return web.Response(body=body, headers={"Content-Type": kind, "Cache-Control": "no-store"})

    def _revisions(self, name: str) -> list[dict[str, Any]]:
        return [
            revision_json(deployed, self._bundles[deployed.revision.bundle])
            for deployed in self._catalog.revisions(name)
        ]


def _decisions(manager: Manager, key: str) -> list[dict[str, Any]]:
    """Return the latest decisions about a pool, oldest first."""
    found = manager.decisions(key)[-ITEMS:]
    return [{"at_s": decision.at_s, "text": decision.text} for decision in found]


def _why_not_deployed(operation: Operation, awaited: Awaited | None) -> str:
    """Return what a function's first operation does, with what its trial waits for, or how it has
    ended."""
    if operation.state == "running":
        return f"its {operation.kind} is running: {awaited or operation.phase}"
    if operation.state == "cancelled":
        return f"its {operation.kind} was cancelled"
    return f"its {operation.kind} failed: {operation.error.get('detail', 'no reason given')}"
