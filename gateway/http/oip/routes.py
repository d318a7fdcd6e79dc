"""The routes below /v2, inside one error boundary of the protocol's form.

Sources: KServe Open Inference Protocol; Triton's extensions "Model Configuration", "Model
Repository", "Statistics", "Shared Memory", "Trace", "Logging", "Generate".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import TYPE_CHECKING, Final, NamedTuple

from aiohttp import web

from gateway.admission.calls import requested_wait_s
from gateway.http.bodies import UncountedBody, continue_later, receive
from gateway.http.call_route import credential_in, head_of, invoke
from gateway.http.oip.served import ServedModels
from gateway.oip import documents
from gateway.oip.names import served_name
from gateway.oip.repository import IndexRequest, Settings, read_repository_request
from gateway.problems import json_answer
from registry.errors import (
    Asleep,
    BadRequest,
    FunctionFailing,
    MethodNotAllowed,
    NotServed,
    Unknown,
)

if TYPE_CHECKING:
    from gateway.http.context import Invoker
    from gateway.http.reservations import BodyReservation, OnEvicted
    from gateway.replies import Writer
    from registry.catalog import Deployed
    from registry.model.keys import Need

PREFIX: Final = "/v2"
BODY_MAX: Final = 64 * 1024
"""Max bytes of a request's body, except of inferences."""
SHOWN_MAX: Final = 200
_BASES: Final = ("/models/{model}", "/models/{model}/versions/{version}")
"""Paths of a model, without and with a version."""
_MEMORIES: Final = ("/systemsharedmemory", "/cudasharedmemory")
_TRACES: Final = ("/trace/setting", "/models/{model}/trace/setting")
_STRICT: Final = {"": False, "0": False, "false": False, "1": True, "true": True}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Row(NamedTuple):
    """A route."""

    method: str
    """GET stands for HEAD, too."""
    path: str
    """Below PREFIX."""
    handler: Handler


class OipRoutes:
    """The routes of the Open Inference Protocol. Event loop thread only."""

    def __init__(
        self, invoker: Invoker, writer: Writer, guarded: Callable[[Handler], Handler]
    ) -> None:
        """`guarded` returns a handler behind the checks that all routes share, and whose errors are
        answered in the protocol's form."""
        self._invoker = invoker
        self._writer = writer
        self._guarded = guarded
        self._server = documents.server_metadata(version("fngate"))
        self.models = ServedModels(invoker)
        self.rows: Final = self._rows()

    def _rows(self) -> list[Row]:
        rows = [
            Row("GET", "", self._metadata),
            Row("GET", "/health/live", self._live),
            Row("GET", "/health/ready", self._ready),
            Row("POST", "/repository/index", self._index),
            Row("POST", "/repository/models/{model}/load", self._load),
            Row("POST", "/repository/models/{model}/unload", self._unload),
            Row("GET", "/models/stats", self._all_stats),
            Row("GET", "/logging", self._get_logging),
            Row("POST", "/logging", self._set_logging),
        ]
        for path in _BASES:
            rows += [
                Row("GET", path, self._model),
                Row("GET", f"{path}/config", self._config),
                Row("GET", f"{path}/ready", self._model_ready),
                Row("GET", f"{path}/stats", self._stats),
                Row("POST", f"{path}/infer", self._infer),
                Row("POST", f"{path}/generate", self._generate),
                Row("POST", f"{path}/generate_stream", self._generate),
            ]
        # Triton's examples begin by unregistering all regions, and must not fail there.
        for path in _MEMORIES:
            rows += [
                Row("GET", f"{path}/status", self._no_regions),
                Row("GET", f"{path}/region/{{name}}/status", self._no_region),
                Row("POST", f"{path}/unregister", self._unregistered),
                Row("POST", f"{path}/region/{{name}}/unregister", self._unregistered),
                Row("POST", f"{path}/region/{{name}}/register", self._register),
            ]
        for path in _TRACES:
            rows += [Row("GET", path, self._get_trace), Row("POST", path, self._set_trace)]
        return rows

    def add_routes(self, app: web.Application) -> None:
        """Add all routes, also that of every other path below /v2; a shutdown ends all waits."""
        paths: dict[str, dict[str, Handler]] = {}
        for row in self.rows:
            paths.setdefault(row.path, {})[row.method] = row.handler
        for path, handlers in paths.items():
            self._add(app, path, by_method(handlers))
        self._add(app, "/{rest:(?s:.*)}", _no_route)
        app.on_shutdown.append(self.models.waits.stop)

    def _add(self, app: web.Application, path: str, handler: Handler) -> None:
        guarded = self._guarded(handler)
        app.router.add_route("*", PREFIX + path, guarded, expect_handler=continue_later)

    # What the handlers share

    def _identify(self, request: web.Request) -> str:
        """Return whose request it is, as in `Shares`: its key's, or its address's. Raises NoKey
        unless the caller has any key, or needs none."""
        return self.models.identify(credential_in(request)).id or request.remote or ""

    def _check(self, request: web.Request, need: Need) -> None:
        """Raise NoKey or WrongScope unless the caller has the scope `need`."""
        self.models.check(credential_in(request), need)

    def _find(self, request: web.Request, need: Need) -> Deployed:
        """Return the revision that a path names; see `ServedModels.find`."""
        name, version = request.match_info["model"], request.match_info.get("version", "")
        return self.models.find(credential_in(request), need, name, version)

    async def _body(self, request: web.Request) -> bytes:
        """Return the body of a request of an authorized caller. Raises FnError."""
        invoker, counted = self._invoker, _CountedBody(self._invoker)
        seconds = invoker.settings.body_read_s
        try:
            return bytes(await receive(request, BODY_MAX, seconds, counted, invoker.inflation))
        finally:
            counted.release()

    # The server and its models: nothing wakes, and nothing waits

    async def _metadata(self, request: web.Request) -> web.Response:
        self._identify(request)
        return json_answer(self._server)

    async def _live(self, _request: web.Request) -> web.Response:
        return json_answer({"live": True})

    async def _ready(self, _request: web.Request) -> web.Response:
        self.models.check_open()
        return json_answer({"ready": True})

    async def _model(self, request: web.Request) -> web.Response:
        return json_answer(self.models.metadata(self._find(request, "invoke")))

    async def _config(self, request: web.Request) -> web.Response:
        return json_answer(self.models.config(self._find(request, "invoke")))

    async def _model_ready(self, request: web.Request) -> web.Response:
        """Answer whether a call would be accepted; with `strict=1`, whether a replica is ready."""
        found = self._find(request, "invoke")
        needs_replica = is_strict(request.query.get("strict", ""))
        self.models.check_open()
        shown, name = self._invoker.delivery.endpoints(found.revision.key), served_name(found)
        if shown.state == "failing":
            wait_s = shown.retry_after_s or None
            raise FunctionFailing(f"{name} fails to load: {shown.told}", retry_after_s=wait_s)
        if needs_replica and shown.state != "warm":
            raise Asleep(f"{name} is {shown.state}, and the request asks for a ready replica")
        return json_answer({"name": name, "ready": True})

    async def _all_stats(self, request: web.Request) -> web.Response:
        self._check(request, "read")
        return json_answer(await self.models.statistics())

    async def _stats(self, request: web.Request) -> web.Response:
        found = self._find(request, "read")
        is_one = "version" in request.match_info
        return json_answer(await self.models.statistics(found, is_one=is_one))

    # Calls

    async def _infer(self, request: web.Request) -> web.StreamResponse:
        """Answer an inference whose path is not in its plain form, as with an escaped name."""
        model, version = request.match_info["model"], request.match_info.get("version", "")
        head = head_of(request, model, version)
        return await invoke(self._invoker, self._writer, request, head)

    async def _generate(self, request: web.Request) -> web.Response:
        self._find(request, "invoke")
        raise NotServed("generate and generate_stream are not served: call infer")

    # The model repository

    async def _index(self, request: web.Request) -> web.Response:
        self._identify(request)
        asked = read_repository_request(await self._body(request), IndexRequest)
        return json_answer(self.models.index(credential_in(request), only_ready=asked.ready))

    async def _load(self, request: web.Request) -> web.Response:
        found = self._find(request, "deploy")
        body = await self._body(request)
        most_s, own_s = self._invoker.settings.wait_max_s, found.function.limits.wait_s
        wait_s, _ = requested_wait_s(request.headers.get("Prefer"), own_s, most_s)
        await self.models.load(found, body, wait_s, self._identify(request))
        return web.Response()

    async def _unload(self, request: web.Request) -> web.Response:
        found = self._find(request, "deploy")
        await self.models.unload(found, await self._body(request))
        return web.Response()

    # Extensions that this server has not, or only in part

    async def _no_regions(self, request: web.Request) -> web.Response:
        self._identify(request)
        return json_answer([])

    async def _no_region(self, request: web.Request) -> web.Response:
        self._identify(request)
        name = request.match_info["name"][:100]
        raise Unknown(f"no shared memory region {name!r}, as this server uses none")

    async def _unregistered(self, request: web.Request) -> web.Response:
        self._identify(request)
        return web.Response()

    async def _register(self, request: web.Request) -> web.Response:
        self._identify(request)
        raise BadRequest("this server uses no shared memory of clients: send tensors in the body")

    async def _get_trace(self, request: web.Request) -> web.Response:
        self._check(request, "admin")
        if "model" in request.match_info:
            self._find(request, "admin")
        return json_answer(documents.trace_settings(self._invoker.settings))

    async def _set_trace(self, request: web.Request) -> web.Response:
        shown = await self._get_trace(request)
        await self._refuse_changes(request, documents.TRACES_FIXED)
        return shown

    async def _get_logging(self, request: web.Request) -> web.Response:
        self._check(request, "admin")
        return json_answer(documents.LOG_SETTINGS)

    async def _set_logging(self, request: web.Request) -> web.Response:
        shown = await self._get_logging(request)
        await self._refuse_changes(request, documents.LOGS_FIXED)
        return shown

    async def _refuse_changes(self, request: web.Request, text: str) -> None:
        """Raise BadRequest if a body wants to change settings; null is Triton's "as before"."""
        asked = read_repository_request(await self._body(request), Settings)
        if any(value is not None for value in asked.values()):
            raise BadRequest(text)


class _CountedBody(UncountedBody):
    """Sink of a small body that is counted in the memory for bodies."""

    def __init__(self, invoker: Invoker) -> None:
        self._budget = invoker.body_budget
        self._reservation: BodyReservation | None = None

    def count(self, count: int, on_evicted: OnEvicted) -> None:
        """Implement `BodySink.count`."""
        if self._reservation is None:
            self._reservation = self._budget.open(on_evicted)
        self._reservation.grow(count)

    def release(self) -> None:
        """Release the memory."""
        if self._reservation is not None:
            self._reservation.release()


def is_strict(given: str) -> bool:
    """Return the value of `strict` in a query. Raises BadRequest."""
    if given not in _STRICT:
        raise BadRequest(f"strict: expected 0 or 1, got {given[:40]!r}")
    return _STRICT[given]


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
