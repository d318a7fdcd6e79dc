"""Routes for functions and revisions. Lists are paged: `?next=CURSOR` requests the next page."""

from __future__ import annotations

import msgspec
from aiohttp import web

from admin.api.answers import json_answer, page_of
from admin.api.context import AskConnections
from admin.deploy.changes import etag
from admin.deploy.deploys import Deploys
from admin.deploy.verify import Samples, trial_keys
from admin.documents.deploys import OperationRow
from admin.documents.functions import Exchanges, Items, RevisionRow, Why
from admin.documents.server import Removed
from admin.events.snapshot import FunctionRows
from admin.history import ServerHistory
from admin.store import Store
from admin.views import exchanges_of, function_detail, neighbours, operation_row, revision_row
from gateway.openapi.descriptions import example
from gateway.statuses import OK
from pool_manager.core.starts import Awaited
from pool_manager.manager import Manager
from registry.batching import summary
from registry.catalog import Deployed
from registry.model.operations import Operation

ITEMS = 20


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
            (deployed.function.name, self._rows.row(deployed, loads))
            for deployed in self._catalog.walk(page.start)
        )

    async def get_function(self, request: web.Request) -> web.Response:
        """Return one function with all details; `previous` is the target of a rollback."""
        await self._rows.gateways.refresh()
        deployed = self._catalog.resolve(request.match_info["name"])
        loads = self._rows.gateways.loads()
        name = deployed.function.name
        detail = function_detail(deployed, self._rows.row(deployed, loads))
        detail.build, detail.builds = self._rows.builds(deployed)
        detail.revisions = self._revisions(name)
        detail.previous = await self._traffic.previous(name)
        detail.cold_starts = self._history.table(deployed.revision.key)
        detail.example = example(deployed, f"{request.scheme}://{request.host}")
        detail.neighbours = neighbours(deployed, self._manager.devices())
        return json_answer(detail, OK, {"ETag": etag(deployed.function)})

    async def list_revisions(self, request: web.Request) -> web.Response:
        """Return the callable revisions, oldest first."""
        name = self._catalog.resolve(request.match_info["name"]).function.name
        return json_answer(Items(self._revisions(name), None))

    async def remove_function(self, request: web.Request) -> web.Response:
        """Remove a function. Requests in flight finish; queued requests get an error."""
        name = request.match_info["name"]
        await self._deploys.remove(name)
        return json_answer(Removed(name))

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
            Why(
                state=row.state,
                reason=row.reason,
                phase=row.phase,
                ready_in_ms=row.ready_in_ms,
                park=row.park,
                blocked=self._manager.blocked(key),
                kept_by=self._manager.kept_by(key),
                batching=summary(deployed.revision, deployed.profile),
                since_s=row.since_s,
                sleeps_at_s=row.sleeps_at_s,
                decisions=self._manager.decisions(key)[-ITEMS:],
                cold_starts=await self._stored_history.cold_starts(name, ITEMS),
                intervals=await self._stored_history.intervals(name, ITEMS),
                operation=self._operation(name),
                **msgspec.structs.asdict(await self._exchanges(deployed)),
            )
        )

    def _operation(self, name: str) -> OperationRow | None:
        """Return the operation of a function that runs: of several, the one that began first."""
        running = self._deploys.runner.running()
        found = next((one for one in running if one.name == name and one.state == "running"), None)
        return None if found is None else operation_row(found)

    def _not_deployed(self, operation: Operation) -> Why:
        """Return what `why` tells about a function without a revision: its trial, which runs or has
        failed."""
        keys = trial_keys(operation)
        key = next((one for one in keys if self._manager.pool(one) is not None), keys[0])
        return Why(
            state="not_deployed",
            reason=_why_not_deployed(operation, self._manager.awaited(key)),
            phase=None,
            ready_in_ms=None,
            park=None,
            blocked=self._manager.blocked(key),
            kept_by=self._manager.kept_by(key),
            batching="",
            since_s=operation.ended_s or operation.created_s,
            sleeps_at_s=None,
            decisions=self._manager.decisions(key)[-ITEMS:],
            cold_starts=[],
            intervals=[],
            operation=operation_row(operation),
        )

    async def _exchanges(self, deployed: Deployed) -> Exchanges:
        """Return who is connected to a server function; nothing for a model."""
        if deployed.revision.server is None:
            return Exchanges()
        function = deployed.function
        found = await self._connections(function.namespace, function.name)
        return exchanges_of(found, self._ring)

    async def sample(self, request: web.Request) -> web.Response:
        """Return a sample request body for the function, with its content type."""
        deployed = self._catalog.resolve(request.match_info["name"])
        kind, body = await self._samples.body(deployed)
        return web.Response(body=body, headers={"Content-Type": kind, "Cache-Control": "no-store"})

    def _revisions(self, name: str) -> list[RevisionRow]:
        return [
            revision_row(deployed, self._bundles[deployed.revision.bundle])
            for deployed in self._catalog.revisions(name)
        ]


def _why_not_deployed(operation: Operation, awaited: Awaited | None) -> str:
    """Return what a function's first operation does, with what its trial waits for, or how it has
    ended."""
    if operation.state == "running":
        return f"its {operation.kind} is running: {awaited or operation.phase}"
    if operation.state == "cancelled":
        return f"its {operation.kind} was cancelled"
    return f"its {operation.kind} failed: {operation.error.get('detail', 'no reason given')}"
