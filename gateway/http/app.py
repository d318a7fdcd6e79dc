"""Routes, error boundary and listening socket of the gateway.

`Gateway` adds the routes that every gateway process serves, `StatePages` those that only one
process per server has. `Site` owns the listening socket.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final

import msgspec
import structlog
from aiohttp import web

from gateway import problems, statuses
from gateway.admission.credentials import Realm
from gateway.delivery import Delivery
from gateway.http.bodies import continue_later
from gateway.http.boundary import ErrorBoundary
from gateway.http.call_route import credential_in, head_of, invoke, route_calls
from gateway.http.connected import Connections, connections_of
from gateway.http.connections import ConnectionLimit, connections_max
from gateway.http.context import Invoker
from gateway.http.exchange_client import make_parts
from gateway.http.exchange_route import asks_for_websocket, proxy
from gateway.http.fast_path import FastPath
from gateway.http.handler import HandlerFactory
from gateway.http.models.lists import ModelRoutes
from gateway.http.oip.routes import OipRoutes
from gateway.http.page_route import route_pages
from gateway.metrics.counters import PageFormat, negotiate_format
from gateway.oip import shapes
from gateway.openapi.descriptions import (
    describe,
    describe_python,
    describe_server,
    prefers_page,
)
from gateway.openapi.function_document import function_document
from gateway.replies import Writer
from gateway.settings import GatewaySettings
from gateway.v1.endpoints import is_realtime
from registry.catalog import Deployed
from registry.errors import MethodNotAllowed, Unknown
from registry.tasks import Tasks, every

log = structlog.get_logger()

_KIND: Final = re.compile("[ :]")
"""What follows the first word of a reason of `/readyz`: what kind of thing has a problem."""

VARIES: Final = {"Vary": "Accept"}
BACKLOG: Final = 1024
SWEEP_S: Final = 1.0
EVENTS_FLUSH_S: Final = 0.25
TRACES_FLUSH_S: Final = 1.0
"""Longer than EVENTS_FLUSH_S: each batch is an HTTP request, as expensive as 20 traces."""


class Gateway:
    """The routes `/fn`, `/v1`, `/v2` and `/healthz`."""

    def __init__(self, invoker: Invoker) -> None:
        self.invoker = invoker
        self.boundary = ErrorBoundary(invoker.access)
        self.writer = Writer(invoker.wall)
        self.gate = invoker.gate
        self.parts = make_parts(invoker, self.writer)
        self.models = ModelRoutes(invoker)
        self.origins = invoker.admission.origins
        shaped = ErrorBoundary(invoker.access, shapes.reply)
        self.oip = OipRoutes(invoker, self.writer, shaped.wrap)

    def add_routes(self, app: web.Application) -> None:
        """Add the routes."""
        function, healthz = self._function, self.boundary.wrap(_healthz)
        app.router.add_route("*", "/fn/{ref}", function, expect_handler=continue_later)
        document = self._document
        app.router.add_get("/fn/{ref}/openapi.json", document, expect_handler=continue_later)
        app.router.add_route(
            "*", "/fn/{ref}/{rest:(?s:.*)}", self._proxy, expect_handler=continue_later
        )
        app.router.add_post("/v1/{rest:(?s:.*)}", self._proxy, expect_handler=continue_later)
        app.router.add_get(
            "/v1/realtime", self._realtime, allow_head=False, expect_handler=continue_later
        )
        for path in ("/v1", "/v1/{rest:(?s:.*)}"):
            app.router.add_route("*", path, self.models.handle, expect_handler=continue_later)
        self.oip.add_routes(app)
        app.router.add_get("/healthz", healthz, expect_handler=continue_later)
        app.on_response_prepare.append(self._end_connection)
        app.on_response_prepare.append(self._share)
        app.on_response_prepare.append(problems.guard)

    def connections(self, namespace: str, name: str) -> Connections:
        """Return the open exchanges of a function in this process."""
        epoch_s = self.invoker.wall() - monotonic()
        exchanges, closed = self.parts.exchanges.all(), self.invoker.closed_websockets
        last = self.invoker.last_exchanges.get(namespace, name)
        return connections_of(exchanges, namespace, name, epoch_s, closed, last)

    async def close(self, _app: web.Application) -> None:
        """Stop the threads that the routes use (aiohttp clean-up signal)."""
        self.invoker.cold_check.close()
        self.invoker.inflation.close()
        if self.invoker.access_log is not None:
            self.invoker.access_log.close()
        if self.invoker.tracer is not None:
            self.invoker.tracer.close()

    async def _end_connection(self, _request: web.Request, response: web.StreamResponse) -> None:
        """At shutdown, make this response the last of its connection (aiohttp signal)."""
        if self.gate.headers:
            response.force_close()
            response.headers.update(self.gate.headers)

    async def _share(self, request: web.Request, response: web.StreamResponse) -> None:
        """Let pages of listed origins read this response (aiohttp signal)."""
        fields = self.origins.fields(request.rel_url.raw_path, request.headers.get("Origin"))
        for name, value in fields:
            if name == "Vary" and name in response.headers:
                value = f"{response.headers[name]}, {value}"
            response.headers[name] = value

    async def _function(self, request: web.Request) -> web.StreamResponse:
        is_server = self.parts.exchanges.is_server(request.match_info["ref"])
        is_read = request.method in ("GET", "HEAD")
        if is_server and (not is_read or asks_for_websocket(request)):
            return await self._proxy(request)
        if request.method == "POST":
            head = head_of(request, request.match_info["ref"])
            return await invoke(self.invoker, self.writer, request, head)
        return await self.boundary.wrap(self._describe)(request)

    async def _document(self, request: web.Request) -> web.StreamResponse:
        """Answer with the OpenAPI document of a function. A server has a path of that name, or
        not, unless it is ours of a Python function."""
        if self.parts.exchanges.has_document(request.match_info["ref"]):
            return await self._proxy(request)
        return await self.boundary.wrap(self._describe_calls)(request)

    async def _describe_calls(self, request: web.Request) -> web.Response:
        deployed = self._resolve(request)
        document = msgspec.json.encode(function_document(deployed))
        return problems.json_document(request, document)

    def _resolve(self, request: web.Request) -> Deployed:
        """Return the function that a request names. Raises FnError."""
        ref = request.match_info["ref"]
        name = ref.partition("@")[0]
        caller = self.invoker.admission.enter(credential_in(request), "invoke", name)
        return self.invoker.catalog.resolve(ref, may_see=caller.may_invoke)

    async def _realtime(self, request: web.Request) -> web.StreamResponse:
        """Answer a request whose path may be an encoded form of the endpoint's, which is none."""
        is_exact = is_realtime(b"GET", request.rel_url.raw_path.encode("utf-8", "replace"))
        return await (self._proxy if is_exact else self.models.handle)(request)

    async def _proxy(self, request: web.Request) -> web.StreamResponse:
        return await proxy(self.parts, request)

    async def _describe(self, request: web.Request) -> web.Response:
        if request.method not in ("GET", "HEAD"):
            allow = ["GET", "HEAD", "POST"]
            raise MethodNotAllowed(
                f"expected {', '.join(allow)}, got {request.method}", detail={"allow": allow}
            )
        deployed = self._resolve(request)
        is_python, is_server = deployed.revision.is_python, deployed.revision.server is not None
        if is_server and not is_python and prefers_page(request.headers.get("Accept", "")):
            # Relative: a proxy before this server may offer it below a path of its own.
            url = request.rel_url
            query = f"?{url.raw_query_string}" if url.raw_query_string else ""
            location = {"Location": f"{url.raw_path.rpartition('/')[2]}/{query}"}
            return web.Response(status=statuses.MOVED, headers=location)
        endpoints = self.invoker.delivery.endpoints(deployed.revision.key)
        origin = f"{request.scheme}://{request.host}"
        by_kind = describe_python if is_python else describe_server if is_server else describe
        described = by_kind(deployed, endpoints, origin)
        return problems.json_answer(described)


MetricsPage = Callable[[PageFormat], Awaitable[bytes]]
"""Returns the page `/metrics` of this moment."""


class StatePages:
    """Health and metrics routes; unknown paths get a 404 problem document.

    `reasons()` lists the current problems of the server, `is_open()` returns whether calls are
    accepted.
    """

    def __init__(
        self,
        boundary: ErrorBoundary,
        page: MetricsPage,
        reasons: Callable[[], list[str]],
        is_open: Callable[[], bool],
    ) -> None:
        self._boundary = boundary
        self._page = page
        self._reasons = reasons
        self._is_open = is_open

    def add_routes(self, app: web.Application) -> None:
        """Add the routes.

        They must be the application's last ones, because they match every path.
        """
        wrap, add = self._boundary.wrap, app.router.add_get
        add("/readyz", wrap(self._readyz), expect_handler=continue_later)
        add("/metrics", wrap(self._metrics), expect_handler=continue_later)
        rest = wrap(_not_found)
        app.router.add_route("*", "/{rest:(?s:.*)}", rest, expect_handler=continue_later)

    async def _readyz(self, request: web.Request) -> web.Response:
        """Return 200 while calls are accepted, even if the server is degraded. The reasons in words
        are for callers with the scope read; others get the kinds of things that have a problem."""
        if not self._is_open():
            stopping = {"status": "stopping", "reasons": ["shutting down"]}
            return problems.json_answer(stopping, statuses.NOT_READY)
        reasons = self._reasons()
        if reasons and not self._may_read(request):
            reasons = list(dict.fromkeys(_KIND.split(reason, 1)[0] for reason in reasons))
        return problems.json_answer({"status": "degraded" if reasons else "ok", "reasons": reasons})

    def _may_read(self, request: web.Request) -> bool:
        holder = self._boundary.access.holder(credential_in(request))
        return holder is not None and holder.may("read")

    async def _metrics(self, request: web.Request) -> web.Response:
        credential = credential_in(request)
        if not self._boundary.access.lets_in(credential):
            self._boundary.access.identify(credential, Realm.CALLS).require("read")
        form = negotiate_format(request.headers.get("Accept", ""))
        page = await self._page(form)
        return web.Response(body=page, headers={"Content-Type": form.content_type, **VARIES})


class Site:
    """The listening socket. `stop` ends accepting; connections remain open until `close`."""

    def __init__(self, gateway: Gateway, runner: web.AppRunner) -> None:
        """Create the connection handlers. `runner` has been set up."""
        assert runner.server is not None
        invoker, writer = gateway.invoker, gateway.writer
        self._settings: GatewaySettings = invoker.settings
        self._events = invoker.access_log
        self._tracer = invoker.tracer
        others = runner.server.request_handler
        calls = route_calls(others, invoker, writer)
        runner.server.request_handler = route_pages(calls, invoker, gateway.parts)
        seconds = self._settings.head_read_s
        most = connections_max(self._settings.connections)
        invoker.delivery.limit_connections(most)
        limit = ConnectionLimit(most, monotonic)
        self._handlers = HandlerFactory(runner.server, writer, invoker.body_budget, seconds, limit)
        self._fast_path = FastPath(invoker, gateway.parts, self._handlers.adopt, limit)
        self._parts = gateway.parts
        self._budget, self._metrics = invoker.body_budget, invoker.metrics
        self._tasks = Tasks("site")
        self._server: asyncio.Server | None = None

    async def start(self, *, reuse_port: bool = False) -> int:
        """Start accepting connections and return the port.

        Raises OSError if the port is not available.
        """
        factory = self._fast_path if self._settings.fast_front else self._handlers
        self._server = await asyncio.get_running_loop().create_server(
            factory,
            self._settings.listen,
            self._settings.port,
            backlog=BACKLOG,
            reuse_port=reuse_port or None,
        )
        self._tasks.spawn("uploads", every(SWEEP_S, self._sweep))
        if self._events is not None:
            self._tasks.spawn("access log", every(EVENTS_FLUSH_S, self._events.flush))
        if self._tracer is not None:
            self._tasks.spawn("traces", every(TRACES_FLUSH_S, self._tracer.flush))
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def _sweep(self) -> None:
        self._fast_path.sweep()
        self._handlers.sweep()
        self._parts.exchanges.sweep()
        self._parts.models.sweep()
        answers = self._budget.answers
        answers.sweep()
        self._metrics.held.update(self._budget.held, answers.cuts)

    async def stop(self) -> None:
        """Stop accepting connections."""
        if self._server is not None:
            self._server.close()

    async def close(self) -> None:
        """Close the fast path's connections; aiohttp's runner closes its own."""
        await self._tasks.close()
        self._fast_path.close()
        await self._fast_path.wait_closed(self._settings.shutdown_s)


async def stop_serving(
    gateway: Gateway, delivery: Delivery, seconds: float, *, is_orphaned: bool = False
) -> None:
    """Close the gate, and wait for accepted requests, at most `seconds`.

    `is_orphaned`: the pool manager is gone. Requests on open connections are then still served by
    ready replicas, until none is active.
    """
    try:
        async with asyncio.timeout(seconds):
            if is_orphaned:
                delivery.on_manager_lost()
                await gateway.gate.drain()
            await gateway.gate.close()
            await delivery.wait_idle()
    except TimeoutError:
        log.error("requests are left at shutdown", inside=gateway.gate.active)


async def _healthz(_request: web.Request) -> web.Response:
    return problems.json_answer({"status": "ok"})


async def _not_found(request: web.Request) -> web.Response:
    raise Unknown(f"no route {request.method} {request.path[:200]}")
