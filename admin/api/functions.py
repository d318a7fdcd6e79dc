"""What is deployed and why it is as it is."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from aiohttp import web

from admin.api.paging import page_of
from admin.deploy.deploys import Deploys
from admin.deploy.etag import etag
from admin.deploy.samples import Samples
from admin.events.lines import Lines
from admin.past import Past
from admin.store import Store
from admin.views import call_json, revision_json
from gateway.http.describe import example
from gateway.problems import OK, json_answer
from pool_manager.manager import Manager
from registry.batching import summary

ITEMS = 20


class FunctionRoutes:
    """Functions, revisions, decisions."""

    def __init__(
        self, store: Store, manager: Manager, lines: Lines, deploys: Deploys, past: Past
    ) -> None:
        self._catalog = store.catalog
        self._bundles = store.bundles
        self._history = store.history
        self._traffic = store.traffic
        self._manager = manager
        self._lines = lines
        self._deploys = deploys
        self._past = past
        self._samples = Samples(store.bundles, store.blobs)

    async def list_functions(self, request: web.Request) -> web.Response:
        """The functions as they are now, a page of them, by name."""
        page = page_of(request.query)
        loads = self._lines.held.loads()
        return page.answer(
            self._catalog.walk(page.start),
            lambda deployed: deployed.function.name,
            lambda deployed: self._lines.line(deployed, loads),
        )

    async def get_function(self, request: web.Request) -> web.Response:
        """One function with all there is to know; `previous` is where a rollback goes."""
        deployed = self._catalog.resolve(request.match_info["name"])
        loads = self._lines.held.loads()
        origin = f"{request.scheme}://{request.host}"
        return json_answer(
            {
                **self._lines.line(deployed, loads),
                "limits": asdict(deployed.function.limits),
                **call_json(deployed),
                "revisions": self._revisions(deployed.function.name),
                "previous": await self._traffic.previous(deployed.function.name),
                "cold_starts": self._past.table(deployed.revision.key),
                "example": example(deployed, origin),
            },
            OK,
            {"ETag": etag(deployed.function)},
        )

    async def list_revisions(self, request: web.Request) -> web.Response:
        """The revisions that can be called, oldest first."""
        name = self._catalog.resolve(request.match_info["name"]).function.name
        return json_answer({"items": self._revisions(name), "next": None})

    async def remove_function(self, request: web.Request) -> web.Response:
        """Remove a function; what it is running finishes, who waits is told."""
        name = request.match_info["name"]
        await self._deploys.remove(name)
        return json_answer({"removed": name})

    async def why(self, request: web.Request) -> web.Response:
        """State, reason, the last decisions and cold starts."""
        deployed = self._catalog.resolve(request.match_info["name"])
        name, key = deployed.function.name, deployed.revision.key
        line = self._lines.line(deployed, self._lines.held.loads())
        decisions = [
            {"at_s": decision.at_s, "text": decision.text}
            for decision in self._manager.decisions(key)[-ITEMS:]
        ]
        return json_answer(
            {
                "state": line["state"],
                "reason": line["reason"],
                "blocked": self._manager.blocked(key),
                "batching": summary(deployed.revision, deployed.profile),
                "since_s": line["since_s"],
                "decisions": decisions,
                "cold_starts": [asdict(r) for r in await self._history.cold_starts(name, ITEMS)],
                "intervals": [asdict(r) for r in await self._history.intervals(name, ITEMS)],
            }
        )

    async def sample(self, request: web.Request) -> web.Response:
        """A body to try the function with, and the content type that it is sent with."""
        deployed = self._catalog.resolve(request.match_info["name"])
        kind, body = await self._samples.body(deployed)
        return web.Response(body=body, headers={"Content-Type": kind, "Cache-Control": "no-store"})

    def _revisions(self, name: str) -> list[dict[str, Any]]:
        return [
            revision_json(deployed, self._bundles[deployed.revision.bundle])
            for deployed in self._catalog.revisions(name)
        ]
