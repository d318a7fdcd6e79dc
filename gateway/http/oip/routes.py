"""All routes below /v2 together, inside one error boundary of the protocol's form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from aiohttp import web

from gateway.http.bodies import continue_later
from gateway.http.call_route import head_of, invoke
from gateway.http.oip.extensions import ExtensionRoutes
from gateway.http.oip.models import ONE_MODEL, ModelRoutes
from gateway.http.oip.repository import RepositoryRoutes
from gateway.http.oip.statistics import StatisticsRoutes
from gateway.http.oip.table import PREFIX, Handler, Row, Serving
from registry.errors import MethodNotAllowed, Unknown

if TYPE_CHECKING:
    from gateway.http.context import Invoker
    from gateway.replies import Writer

SHOWN_MAX: Final = 200


class Boundary(Protocol):
    """The checks that all routes share, and their answers to errors."""

    def wrap(self, handler: Handler) -> Handler:
        """Return `handler` behind the boundary."""


class OipRoutes:
    """The routes of the Open Inference Protocol. Event loop thread only."""

    def __init__(self, invoker: Invoker, writer: Writer, boundary: Boundary) -> None:
        """`boundary` answers errors in the protocol's form."""
        self._invoker = invoker
        self._writer = writer
        self._boundary = boundary
        serving = Serving(invoker)
        self.repository = RepositoryRoutes(serving)
        self.rows: Final = [
            *ModelRoutes(serving).rows(),
            *self.repository.rows(),
            *StatisticsRoutes(serving).rows(),
            *ExtensionRoutes(serving).rows(),
            *(Row("POST", f"{path}/infer", self._infer) for path in ONE_MODEL),
        ]

    def add_routes(self, app: web.Application) -> None:
        """Add all routes, also that of every other path below /v2; a shutdown ends all waits."""
        paths: dict[str, dict[str, Handler]] = {}
        for row in self.rows:
            paths.setdefault(row.path, {})[row.method] = row.handler
        for path, handlers in paths.items():
            self._add(app, path, by_method(handlers))
        self._add(app, "/{rest:(?s:.*)}", _no_route)
        app.on_shutdown.append(self.stop_waiting)

    async def stop_waiting(self, _app: object = None) -> None:
        """Answer all requests that wait for a model (handler of aiohttp's shutdown signal)."""
        await self.repository.waits.stop()

    def _add(self, app: web.Application, path: str, handler: Handler) -> None:
        guarded = self._boundary.wrap(handler)
        app.router.add_route("*", PREFIX + path, guarded, expect_handler=continue_later)

    async def _infer(self, request: web.Request) -> web.StreamResponse:
        """Answer an inference whose path is not in its plain form, as with an escaped name."""
        model, version = request.match_info["model"], request.match_info.get("version", "")
        head = head_of(request, model, version)
        return await invoke(self._invoker, self._writer, request, head)


def by_method(handlers: dict[str, Handler]) -> Handler:
    """Return a handler that calls the one of the request's method; GET takes HEAD, too."""
    allow = sorted({"HEAD", *handlers} if "GET" in handlers else handlers)

    async def handle(request: web.Request) -> web.StreamResponse:
        method = "GET" if request.method == "HEAD" else request.method
        if method not in handlers:
            text = f"expected {' or '.join(allow)}, got {request.method[:SHOWN_MAX]}"
            raise MethodNotAllowed(text, detail={"allow": allow})
        return await handlers[method](request)

    return handle


async def _no_route(request: web.Request) -> web.StreamResponse:
    raise Unknown(f"no route {request.method[:SHOWN_MAX]} {request.path[:SHOWN_MAX]}")
