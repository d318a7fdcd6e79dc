"""Routes of one function on a simulated server, and calls to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from time import time
from typing import Any, Final

from aiohttp import web

from gateway.problems import json_answer, reply, response_of
from registry.errors import BadInput, Unknown
from tests.support.dashboard import details, servers
from tests.support.dashboard.world import PHASES, Event, World

WARM: Final = (
    'replica;desc="1f00c2aa", queue;dur=0.018, decode;dur=0.061,'
    ' batch;dur=0.402;desc="3 rows", compute;dur=1.204, encode;dur=0.033'
)


class FunctionRoutes:
    """Answers built by `details`. `tell` sends events to all subscribers. `pace_s`: duration of a
    cold-start phase that a call waits for; `line_s`: seconds between log lines."""

    def __init__(self, world: World, tell: Callable[[list[Event]], None]) -> None:
        self._world = world
        self._tell = tell
        self.pace_s = 0.4
        self.line_s = 0.5
        self.etag = '"1"'
        self.calls: list[tuple[str, bytes]] = []
        """Content type and body of every call received."""
        self.exchanges: list[tuple[str, str, bytes]] = []
        """Method, path with query, and body of every exchange with a server function."""
        self.tick = asyncio.Semaphore(0)
        """Lets one event of an open stream go out per release."""
        self.ended = asyncio.Semaphore(0)
        """Released at the end of each stream."""

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Register all routes."""
        one = "/admin/v1/functions/{name}"
        router.add_get(one, self._detail)
        router.add_get(f"{one}/why", self._why)
        router.add_get(f"{one}/errors", self._errors)
        router.add_get(f"{one}/logs", self._logs)
        router.add_get(f"{one}/sample", self._sample)
        router.add_get(f"{one}/timeline", self._timeline)
        router.add_get(f"{one}/advice", self._advice)
        router.add_get("/admin/v1/timeline", self._all)
        router.add_get("/admin/v1/usage", self._usage)
        router.add_post("/fn/{name}", self._invoke)
        router.add_route("*", "/fn/{name}/{path:.*}", self._exchange)

    def _line(self, request: web.Request) -> dict[str, Any]:
        name = request.match_info["name"]
        if name not in self._world.functions:
            raise Unknown(f"no function is called {name!r}")
        return self._world.functions[name]

    async def _detail(self, request: web.Request) -> web.Response:
        origin = f"{request.scheme}://{request.host}"
        return json_answer(details.detail(self._line(request), origin), headers={"ETag": self.etag})

    async def _why(self, request: web.Request) -> web.Response:
        return json_answer(details.why(self._line(request), self._world.started_s))

    async def _errors(self, request: web.Request) -> web.Response:
        return json_answer({"items": details.errors(self._line(request), self._world.started_s)})

    async def _sample(self, request: web.Request) -> web.Response:
        kind, body = details.sample(self._line(request)["name"])
        return web.Response(body=body, headers={"Content-Type": kind})

    async def _timeline(self, request: web.Request) -> web.Response:
        name = self._line(request)["name"]
        return json_answer(details.function_timeline(name, _hours(request), time()))

    async def _advice(self, request: web.Request) -> web.Response:
        return json_answer(details.advice(self._line(request), time()))

    async def _all(self, request: web.Request) -> web.Response:
        names, devices = list(self._world.functions), list(self._world.devices)
        return json_answer(details.timeline(names, devices, _hours(request), time()))

    async def _usage(self, request: web.Request) -> web.Response:
        query = request.query
        return json_answer(servers.usage(query["function"], days=int(query["since"] == "7d") * 6))

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        name = self._line(request)["name"]
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        with suppress(ConnectionError):
            first = "\n".join(f"{name} began: line {at} of its replica" for at in range(300))
            await _event(response, "lines", {"replica": "1f00c2aa", "text": first})
            for at in range(1_000_000):
                text = f"\x1b[32mINFO\x1b[0m request {at} of {name} took {at % 7}.{at % 10} ms"
                await _event(response, "lines", {"replica": "77ab01cd", "text": text})
                await elapse(self.line_s)
        return response

    async def _invoke(self, request: web.Request) -> web.StreamResponse:
        line, body = self._line(request), await request.read()
        name = line["name"]
        self.calls.append((request.content_type, body))
        if b"refuse" in body:
            fields = {"input": "x", "expected": "FP32 of shape [-1, 4]", "got": "shape [1, 3]"}
            error = BadInput("x: expected FP32 of shape [-1, 4], got [1, 3]", detail=fields)
            return response_of(reply(error))
        timing = WARM
        if line["state"] != "warm":
            timing = await self._wake(name)
        labels = [{"label": details.LABELS[7], "score": 0.9123}]
        labels += [{"label": details.LABELS[1], "score": 0.061}]
        outputs = {"probabilities": [[0.01] * 10]}
        shown = {"outputs": outputs, "revision": line["revision"], "top": [labels]}
        headers = {"Fn-Revision": line["revision"], "Server-Timing": timing}
        return json_answer(shown, headers={**headers, "X-Request-Id": "req-7f3a"})

    async def _exchange(self, request: web.Request) -> web.StreamResponse:
        name = self._line(request)["name"]
        self.exchanges.append((request.method, request.path_qs, await request.read()))
        if self._world.functions[name]["state"] != "warm":
            await self._wake(name)
        return await servers.exchange(request, self.tick, self.ended)

    async def _wake(self, name: str) -> str:
        world = self._world
        if world.functions[name]["state"] != "waking":
            self._tell(world.wake(name))
        while world.functions[name]["state"] == "waking":
            await elapse(self.pace_s)
            world.now_s = time()
            if world.functions[name]["state"] == "waking":
                self._tell(world.advance(name))
        replica = next(one for one in world.replicas.values() if one["function"] == name)
        phases = ", ".join(f"{phase};dur={replica['phases'][phase]}" for phase in PHASES[:-1])
        queue_ms = sum(replica["phases"][phase] for phase in PHASES[:-1])
        cold = f'cold;desc="{replica["revision"]} on {replica["device"]}"'
        rest = f"first_run;dur={replica['phases']['first_run']}, encode;dur=0.05"
        return f'{cold}, replica;desc="{replica["id"]}", queue;dur={queue_ms}, {phases}, {rest}'


async def _event(response: web.StreamResponse, kind: str, data: dict[str, Any]) -> None:
    await response.write(f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode())


def _hours(request: web.Request) -> int:
    return int(request.query.get("hours", "1"))


async def elapse(seconds: float) -> None:
    """Wait for `seconds`, as work would."""
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, over.set)
    await over.wait()
