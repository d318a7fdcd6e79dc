"""Routes of /v2 for statistics of models: Triton's extension "Statistics"."""

from __future__ import annotations

from aiohttp import web

from gateway.http.oip.models import ONE_MODEL
from gateway.http.oip.table import Row, Serving
from gateway.problems import json_answer


class StatisticsRoutes:
    """Handlers of statistics. Nothing wakes; a cold model has those since the server's start."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._models = serving.models

    def rows(self) -> list[Row]:
        """Return the routes."""
        rows = [Row("GET", f"{path}/stats", self._of_model) for path in ONE_MODEL]
        return [Row("GET", "/models/stats", self._of_all), *rows]

    async def _of_all(self, request: web.Request) -> web.Response:
        self._serving.check(request, "read")
        return json_answer(await self._models.statistics(self._models.all()))

    async def _of_model(self, request: web.Request) -> web.Response:
        """Answer for one version, or for every version of a model."""
        found = self._serving.model(request, "read")
        asked = [found] if "version" in request.match_info else self._models.versions(found)
        return json_answer(await self._models.statistics(asked))
