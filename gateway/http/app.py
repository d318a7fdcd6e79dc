"""The gateway's routes, readable as a table."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog
from aiohttp import web

from gateway import problems
from gateway.delivery import Delivery
from gateway.http.describe import describe
from gateway.http.invoke import Door, Invoker, invoke
from registry.errors import FnError, MethodNotAllowed, Unknown

log = structlog.get_logger()

Handler = Callable[[web.Request], Awaitable[web.Response]]


class Gateway:
    """Serves `/fn`, health and metrics. `reasons()` says what is wrong at present, if anything."""

    def __init__(self, invoker: Invoker, reasons: Callable[[], list[str]]) -> None:
        self._invoker = invoker
        self._reasons = reasons
        self.door = Door()

    def add_routes(self, app: web.Application) -> None:
        """Every route of the gateway; what is not here is answered 404 as a problem."""
        app.router.add_route("*", "/fn/{ref}", self._function)
        app.router.add_get("/healthz", self.bordered(self._healthz))
        app.router.add_get("/readyz", self.bordered(self._readyz))
        app.router.add_get("/metrics", self.bordered(self._metrics))
        app.router.add_route("*", "/{rest:.*}", self.bordered(self._nowhere))

    def bordered(self, handler: Handler) -> Handler:
        """The border for every route but invoking: host, origin, errors to problems."""
        access = self._invoker.access

        async def guarded(request: web.Request) -> web.Response:
            try:
                access.check_host(request.host)
                access.check_origin(request.headers, request.host)
                return await handler(request)
            except FnError as error:
                is_admin = access.is_admin(request.headers.get("Authorization"))
                return problems.answer(error, for_admin=is_admin)
            except Exception:  # the border: a defect must not show its insides
                log.exception("a request failed", path=request.path)
                return problems.answer(FnError("see the server's log"))

        return guarded

    async def close(self, _app: web.Application) -> None:
        """aiohttp's clean-up signal: end what the routes hold."""
        self._invoker.cold_check.close()

    async def _function(self, request: web.Request) -> web.Response:
        if request.method == "POST":
            return await invoke(self._invoker, self.door, request)
        return await self.bordered(self._describe)(request)

    async def _describe(self, request: web.Request) -> web.Response:
        if request.method not in ("GET", "HEAD"):
            allow = ["GET", "HEAD", "POST"]
            raise MethodNotAllowed(
                f"expected {', '.join(allow)}, got {request.method}", detail={"allow": allow}
            )
        ref = request.match_info["ref"]
        authorization = request.headers.get("Authorization")
        self._invoker.access.check(authorization, "invoke", ref.partition("@")[0])
        deployed = self._invoker.catalog.resolve(ref)
        shown = self._invoker.delivery.shown(deployed.revision.key)
        return problems.json_answer(describe(deployed, shown, f"{request.scheme}://{request.host}"))

    async def _healthz(self, _request: web.Request) -> web.Response:
        return problems.json_answer({"status": "ok"})

    async def _readyz(self, _request: web.Request) -> web.Response:
        """200 once calls can be accepted; what is wrong does not stop it from serving the rest."""
        if not self.door.is_open:
            stopping = {"status": "stopping", "reasons": ["shutting down"]}
            return problems.json_answer(stopping, problems.NOT_READY)
        reasons = self._reasons()
        return problems.json_answer({"status": "degraded" if reasons else "ok", "reasons": reasons})

    async def _metrics(self, request: web.Request) -> web.Response:
        access = self._invoker.access
        if not access.is_open:
            access.check(request.headers.get("Authorization"), "read")
        self._invoker.metrics.look()
        page = await asyncio.to_thread(self._invoker.metrics.render)
        return web.Response(body=page, headers={"Content-Type": METRICS_TYPE})

    async def _nowhere(self, request: web.Request) -> web.Response:
        raise Unknown(f"no route {request.method} {request.path[:200]}")


METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


async def stop_serving(gateway: Gateway, delivery: Delivery, seconds: float) -> None:
    """Finish what was accepted, for at most so long."""
    try:
        async with asyncio.timeout(seconds):
            await gateway.door.shut()
            await delivery.wait_idle()
    except TimeoutError:
        log.error("requests are left at shutdown", inside=gateway.door.inside)
