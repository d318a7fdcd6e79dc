"""Routes of /v2 for statistics of models: Triton's extension "Statistics"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from gateway.http.oip.models import ONE_MODEL
from gateway.http.oip.table import Row, Serving
from gateway.oip.documents import all_served, current_revisions
from gateway.oip.names import served_name, served_version
from gateway.oip.statistics import Served, document
from gateway.problems import json_answer

if TYPE_CHECKING:
    from registry.catalog import Deployed


class StatisticsRoutes:
    """Handlers of statistics. Nothing wakes; a cold model has those since the server's start."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._catalog = serving.invoker.catalog

    def rows(self) -> list[Row]:
        """Return the routes."""
        rows = [Row("GET", f"{path}/stats", self._of_model) for path in ONE_MODEL]
        return [Row("GET", "/models/stats", self._of_all), *rows]

    async def _of_all(self, request: web.Request) -> web.Response:
        self._serving.check(request, "read")
        return await self._answer(all_served(self._catalog))

    async def _of_model(self, request: web.Request) -> web.Response:
        """Answer for one version, or for every version of a model."""
        found = self._serving.model(request, "read")
        is_one = "version" in request.match_info
        return await self._answer([found] if is_one else current_revisions(self._catalog, found))

    async def _answer(self, revisions: list[Deployed]) -> web.Response:
        pools = [one.revision.key for one in revisions]
        found = await self._serving.invoker.statistics.statistics(pools)
        pairs = zip(revisions, found, strict=True)
        served = [Served(served_name(one), served_version(one), took) for one, took in pairs]
        return json_answer(document(served))
