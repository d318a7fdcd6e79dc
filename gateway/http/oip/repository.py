"""Routes of /v2 that list, load and unload models: Triton's extension "Model Repository"."""

from __future__ import annotations

from aiohttp import web

from gateway.admission.calls import requested_wait_s
from gateway.http.call_route import credential_in
from gateway.http.oip.table import Row, Serving
from gateway.oip.repository import check_load, check_unload, read_index
from gateway.problems import json_answer
from gateway.waits import OpenWaits

_MODEL = "/repository/models/{model}"


class RepositoryRoutes:
    """Handlers of the index, of loading and of unloading."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self.invoker = serving.invoker
        self.waits = OpenWaits()

    def rows(self) -> list[Row]:
        """Return the routes."""
        return [
            Row("POST", "/repository/index", self._index),
            Row("POST", f"{_MODEL}/load", self._load),
            Row("POST", f"{_MODEL}/unload", self._unload),
        ]

    async def _index(self, request: web.Request) -> web.Response:
        """List every version of the models that the caller may invoke."""
        self._serving.check_caller(request)
        asked = read_index(await self._serving.body(request))
        entries = self._serving.models.index(credential_in(request), only_ready=asked.ready)
        return json_answer(entries)

    async def _load(self, request: web.Request) -> web.Response:
        """Answer once a replica of the model is ready, within the wait budget of a call."""
        found = self._serving.model(request, "deploy")
        check_load(await self._serving.body(request))
        self._serving.models.check_open()
        most_s = self.invoker.settings.wait_max_s
        wait_s, _ = requested_wait_s(
            request.headers.get("Prefer"), found.function.limits.wait_s, most_s
        )
        party = self._serving.party(request)
        await self.waits.run(self._serving.models.control.load(found, wait_s), party)
        return web.Response()

    async def _unload(self, request: web.Request) -> web.Response:
        """Answer at once; the replicas stop when they are idle."""
        found = self._serving.model(request, "deploy")
        check_unload(await self._serving.body(request))
        await self._serving.models.control.unload(found)
        return web.Response()
