"""HTTP server of a `World`: the built dashboard, and the part of the admin API that it reads."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from time import time
from typing import Any, Final

from aiohttp import web

from admin.ui.files import UiPages, read_files
from gateway.admission.access import Access
from gateway.http.boundary import ErrorBoundary
from gateway.problems import json_answer, reply, response_of
from registry.errors import FnError, NoKey, Unknown
from registry.store.keys import KeyRing
from registry.tasks import every
from tests.support.dashboard.function_routes import FunctionRoutes
from tests.support.dashboard.world import Event, World

KEY: Final = "dev-key"
READER: Final = "read-key"
"""A read-only key."""
CHECKS: Final = [
    {"level": "ok", "name": "commands", "found": "run as nn", "todo": ""},
    {
        "level": "fail",
        "name": "forwarding",
        "found": "sockets cannot be forwarded",
        "todo": "AllowStreamLocalForwarding yes",
    },
]
"""What a check of any host finds."""
KEPT: Final = 2000
"""Events kept for resumption."""
TURN_S: Final = 0.02


class Dashboard:
    """A world behind HTTP. `tell` sends events to all subscribers."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.routes = FunctionRoutes(world, self.tell)
        self.url = ""
        self.requests: list[str] = []
        """Method and path of every request."""
        self.streams = 0
        """Number of event streams opened so far."""
        self._boot = "b1"
        self._seq = 0
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=KEPT)
        self._queues: set[asyncio.Queue[bytes | None]] = set()
        self._is_away = False

    @property
    def told(self) -> int:
        """Return the number of events sent to all subscribers, without beats."""
        return self._seq

    def tell(self, events: list[Event]) -> None:
        """Send events to all subscribers now."""
        for kind, data in events:
            text = f"event: {kind}\ndata: {json.dumps(data)}\n\n"
            if kind != "beat":
                self._seq += 1
                text = f"id: {self._boot}-{self._seq}\n{text}"
                self._kept.append((self._seq, text.encode()))
            for queue in self._queues:
                queue.put_nowait(text.encode())

    def cut(self, *, stays_away: bool = False) -> None:
        """End every stream. With `stays_away` refuse new streams until `come_back`."""
        self._is_away = stays_away
        for queue in self._queues:
            queue.put_nowait(None)

    def restart(self) -> None:
        """End every stream and invalidate all earlier event ids."""
        self._boot += "1"
        self._kept.clear()
        self.cut()

    def come_back(self) -> None:
        """Accept streams again."""
        self._is_away = False

    def application(self) -> web.Application:
        """Return the application with all routes."""
        boundary = ErrorBoundary(Access("127.0.0.1", (), KeyRing((), KEY)))
        app = web.Application(middlewares=[self._checked])
        UiPages(boundary, read_files()).add_routes(app)
        router = app.router
        router.add_get("/admin/v1/session", self._session)
        router.add_get("/admin/v1/events", self._events)
        self.routes.add_routes(router)
        router.add_get("/admin/v1/hosts/{name}", self._host)
        router.add_post("/admin/v1/hosts/{name}/check", self._check)
        router.add_patch("/admin/v1/functions/{name}", self._scale)
        router.add_delete("/admin/v1/functions/{name}", self._act(self.world.remove))
        router.add_post("/admin/v1/functions/{name}/warm", self._act(self.world.warm))
        router.add_post("/admin/v1/functions/{name}/sleep", self._act(self.world.rest))
        router.add_post("/admin/v1/functions/{name}/park", self._act(self.world.park))
        router.add_post("/admin/v1/functions/{name}/unpark", self._act(self.world.unpark))
        router.add_post("/admin/v1/functions/{name}/rollback", self._act(lambda _name: []))
        return app

    @web.middleware
    async def _checked(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path}")
        try:
            if request.path.startswith("/admin/") and _scopes(request) is None:
                raise NoKey("the key is unknown")
            return await handler(request)
        except FnError as error:
            return response_of(reply(error))

    async def _session(self, request: web.Request) -> web.Response:
        about = {key: self.world.server[key] for key in ("version", "driver", "workers")}
        return json_answer({"scopes": _scopes(request), **about})

    async def _host(self, request: web.Request) -> web.Response:
        host = self.world.hosts[request.match_info["name"]]
        stored = {
            "kind": "ssh",
            "identity": "",
            "engine": "/var/run/docker.sock",
            "files_mib": 51_200,
        }
        return json_answer({**host, "settings": {"host_key": "", **stored}})

    async def _check(self, _request: web.Request) -> web.Response:
        return json_answer({"items": CHECKS, "next": None})

    def _line(self, request: web.Request) -> dict[str, Any]:
        name = request.match_info["name"]
        if name not in self.world.functions:
            raise Unknown(f"no function is called {name!r}")
        return self.world.functions[name]

    async def _scale(self, request: web.Request) -> web.Response:
        change = await request.json()
        line = self._line(request)
        self.tell(self.world.change(line["name"], **change))
        return json_answer({key: {**line, **change}[key] for key in ("min", "max", "idle_s")})

    def _act(self, do: Callable[[str], list[Event]]) -> Any:
        async def handle(request: web.Request) -> web.Response:
            line = self._line(request)
            self.tell(do(line["name"]))
            operation = {"id": "op-1", "kind": "rollback", "state": "running"}
            slept = {"asked": 1, "stay": 0, "parked": 1, "reasons": []}
            return json_answer({**operation, **slept, "was_warm": False, "took_ms": 2_100.0})

        return handle

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if self._is_away:
            return web.Response(status=503)
        self.streams += 1
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(10_000)
        for text in self._first(request.headers.get("Last-Event-ID", "")):
            queue.put_nowait(text)
        self._queues.add(queue)
        try:
            with suppress(ConnectionError):
                while (text := await queue.get()) is not None:
                    await response.write(text)
        finally:
            self._queues.discard(queue)
        return response

    def _first(self, last: str) -> list[bytes]:
        boot, _, number = last.partition("-")
        oldest = self._kept[0][0] if self._kept else self._seq + 1
        if boot == self._boot and number.isdecimal() and oldest - 1 <= int(number) <= self._seq:
            return [text for seq, text in self._kept if seq > int(number)]
        texts = [
            f"event: {kind}\ndata: {json.dumps(data)}\n\n" for kind, data in self.world.snapshot()
        ]
        texts[-1] = f"id: {self._boot}-{self._seq}\n{texts[-1]}"
        return [text.encode() for text in texts]


def _scopes(request: web.Request) -> list[str] | None:
    secret = request.headers.get("Authorization", "").removeprefix("Bearer ")
    return {KEY: ["admin"], READER: ["read"]}.get(secret)


@asynccontextmanager
async def serving_dashboard(
    functions: int = 20, devices: int = 4, port: int = 0, hosts: int = 0
) -> AsyncIterator[Dashboard]:
    """Serve the dashboard on this machine until the block ends. `hosts` as in `World`."""
    dashboard = Dashboard(World(functions, devices, time(), hosts=hosts))
    runner = web.AppRunner(
        dashboard.application(), handler_cancellation=True, access_log=None, shutdown_timeout=0
    )
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    dashboard.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield dashboard
    finally:
        dashboard.cut(stays_away=True)
        await runner.cleanup()


class Player:
    """Drives the world: `rate` events per second, and one beat per second."""

    def __init__(self, dashboard: Dashboard, rate: float) -> None:
        self._dashboard = dashboard
        self._rate = rate
        self._begin_s = time()
        self._told = 0
        self._beats = 0

    async def play(self) -> None:
        """Run until cancelled."""
        await every(TURN_S, self._turn)

    def _turn(self) -> None:
        dashboard, now_s = self._dashboard, time()
        dashboard.world.now_s = now_s
        if now_s - self._begin_s >= self._beats:
            dashboard.tell([dashboard.world.beat()])
            self._beats += 1
        while self._told < (now_s - self._begin_s) * self._rate:
            batch = dashboard.world.step()
            dashboard.tell(batch)
            self._told += max(1, len(batch))
