"""Routes of /v2 that ask about the server and its models. Nothing wakes, and nothing waits."""

from __future__ import annotations

from importlib.metadata import version

from aiohttp import web

from gateway.http.oip.table import Row, Serving
from gateway.oip import documents
from gateway.oip.names import served_name
from gateway.problems import json_answer
from registry.errors import Asleep, BadRequest, FunctionFailing

ONE_MODEL = ("/models/{model}", "/models/{model}/versions/{version}")
"""Paths of a model, without and with a version."""
_STRICT = {"": False, "0": False, "false": False, "1": True, "true": True}


class ModelRoutes:
    """Handlers of health, metadata, configuration and readiness."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._delivery = serving.invoker.delivery
        self._server = documents.server_metadata(version("fngate"))

    def rows(self) -> list[Row]:
        """Return the routes."""
        return [
            Row("GET", "", self._metadata),
            Row("GET", "/health/live", self._live),
            Row("GET", "/health/ready", self._ready),
            *(Row("GET", path, self._model) for path in ONE_MODEL),
            *(Row("GET", f"{path}/config", self._config) for path in ONE_MODEL),
            *(Row("GET", f"{path}/ready", self._model_ready) for path in ONE_MODEL),
        ]

    async def _metadata(self, request: web.Request) -> web.Response:
        self._serving.check_caller(request)
        return json_answer(self._server)

    async def _live(self, _request: web.Request) -> web.Response:
        return json_answer({"live": True})

    async def _ready(self, _request: web.Request) -> web.Response:
        self._serving.models.check_open()
        return json_answer({"ready": True})

    async def _model(self, request: web.Request) -> web.Response:
        found = self._serving.model(request, "invoke")
        return json_answer(documents.model_metadata(found, self._serving.models.versions(found)))

    async def _config(self, request: web.Request) -> web.Response:
        found = self._serving.model(request, "invoke")
        return json_answer(documents.model_config(found, self._serving.models.versions(found)))

    async def _model_ready(self, request: web.Request) -> web.Response:
        """Answer whether a call would be accepted; with `strict=1`, whether a replica is ready."""
        found = self._serving.model(request, "invoke")
        needs_replica = is_strict(request.query.get("strict", ""))
        self._serving.models.check_open()
        shown, name = self._delivery.endpoints(found.revision.key), served_name(found)
        if shown.state == "failing":
            wait_s = shown.retry_after_s or None
            raise FunctionFailing(f"{name} fails to load: {shown.told}", retry_after_s=wait_s)
        if needs_replica and shown.state != "warm":
            raise Asleep(f"{name} is {shown.state}, and the request asks for a ready replica")
        return json_answer({"name": name, "ready": True})


def is_strict(given: str) -> bool:
    """Return the value of `strict` in a query. Raises BadRequest."""
    if given not in _STRICT:
        raise BadRequest(f"strict: expected 0 or 1, got {given[:40]!r}")
    return _STRICT[given]
