"""Routes of /v2 for extensions that this server has not, or only in part.

Sources: Triton's extensions "Shared Memory", "Trace", "Logging", "Generate".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from gateway.http.oip.models import ONE_MODEL
from gateway.http.oip.table import Row, Serving
from gateway.oip.repository import read_settings
from gateway.problems import json_answer
from registry.errors import BadRequest, NotServed, Unknown

if TYPE_CHECKING:
    from gateway.settings import GatewaySettings

MEMORIES: Final = ("systemsharedmemory", "cudasharedmemory")
LOG_SETTINGS: Final[dict[str, Any]] = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}


class ExtensionRoutes:
    """Handlers of shared memory, trace settings, log settings and generation."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._settings = serving.invoker.settings

    def rows(self) -> list[Row]:
        """Return the routes."""
        rows = [row for memory in MEMORIES for row in self._memory_rows(f"/{memory}")]
        for path in ("/trace/setting", "/models/{model}/trace/setting"):
            rows.append(Row("GET", path, self._get_trace))
            rows.append(Row("POST", path, self._set_trace))
        rows.append(Row("GET", "/logging", self._get_logging))
        rows.append(Row("POST", "/logging", self._set_logging))
        for path in ONE_MODEL:
            rows.append(Row("POST", f"{path}/generate", self._generate))
            rows.append(Row("POST", f"{path}/generate_stream", self._generate))
        return rows

    def _memory_rows(self, path: str) -> list[Row]:
        """Return the routes of one kind of shared memory. Triton's examples begin by unregistering
        all regions, and must not fail there."""
        region = f"{path}/region/{{name}}"
        return [
            Row("GET", f"{path}/status", self._no_regions),
            Row("GET", f"{region}/status", self._no_region),
            Row("POST", f"{path}/unregister", self._unregistered),
            Row("POST", f"{region}/unregister", self._unregistered),
            Row("POST", f"{region}/register", self._register),
        ]

    async def _no_regions(self, request: web.Request) -> web.Response:
        self._serving.check_caller(request)
        return json_answer([])

    async def _no_region(self, request: web.Request) -> web.Response:
        self._serving.check_caller(request)
        name = request.match_info["name"][:100]
        raise Unknown(f"no shared memory region {name!r}, as this server uses none")

    async def _unregistered(self, request: web.Request) -> web.Response:
        self._serving.check_caller(request)
        return web.Response()

    async def _register(self, request: web.Request) -> web.Response:
        self._serving.check_caller(request)
        raise BadRequest("this server uses no shared memory of clients: send tensors in the body")

    async def _get_trace(self, request: web.Request) -> web.Response:
        self._check_traced(request)
        return json_answer(trace_settings(self._settings))

    async def _set_trace(self, request: web.Request) -> web.Response:
        self._check_traced(request)
        await self._refuse_changes(request, "FN_TRACES and FN_TRACES_SAMPLE")
        return json_answer(trace_settings(self._settings))

    def _check_traced(self, request: web.Request) -> None:
        self._serving.check(request, "admin")
        if "model" in request.match_info:
            self._serving.model(request, "admin")

    async def _get_logging(self, request: web.Request) -> web.Response:
        self._serving.check(request, "admin")
        return json_answer(LOG_SETTINGS)

    async def _set_logging(self, request: web.Request) -> web.Response:
        self._serving.check(request, "admin")
        await self._refuse_changes(request, "FN_LOG_FORMAT and FN_ACCESS_LOG")
        return json_answer(LOG_SETTINGS)

    async def _refuse_changes(self, request: web.Request, names: str) -> None:
        """Raise BadRequest if a body wants to change settings; null is Triton's "as before"."""
        asked = read_settings(await self._serving.body(request))
        if any(value is not None for value in asked.values()):
            raise BadRequest(f"these settings cannot be changed while the server runs: set {names}")

    async def _generate(self, request: web.Request) -> web.Response:
        self._serving.model(request, "invoke")
        raise NotServed("generate and generate_stream are not served: call infer")


def trace_settings(settings: GatewaySettings) -> dict[str, Any]:
    """Return the settings of traces in the form of Triton's extension."""
    is_on = bool(settings.traces) and settings.traces_sample > 0
    rate = round(1 / settings.traces_sample) if is_on else 0
    return {
        "trace_level": ["TIMESTAMPS" if is_on else "OFF"],
        "trace_rate": str(rate),
        "trace_count": "-1",
        "log_frequency": "0",
        "trace_file": "",
        "trace_mode": "opentelemetry",
    }
