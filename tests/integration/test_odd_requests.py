"""Odd requests to every route that the OpenAPI document has, about functions of every kind: no
answer that it has not, and no error of the server's own."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import get_args

import pytest
from structlog.testing import capture_logs

from gateway.openapi.routes import Route
from registry.model.keys import Need
from tests.support.described import check_answer, described_routes
from tests.support.fake_driver.driver import Script
from tests.support.odd_requests import (
    KINDS,
    MANIFESTS,
    NAMES,
    SIGNATURE,
    deploy_all,
    driver_of_all,
    odd_bodies,
    odd_queries,
    send,
)
from tests.support.server import ServingServer, serving

LEFT_OUT = re.compile(r"/admin/v1/(events|access/token|functions/\{name\}/warm)$")
"""Routes whose answers do not end, or wait by design, or refuse the token of all that follows; they
have tests of their own."""
ODD_NAMES = ("a" * 300, "%00", "~", "%F0%9F%98%80", "0" * 64, "1")
CALL = {"inputs": {"x": [[1.0, 2.0]]}}
# Last those that remove something.
ROUTES = sorted(
    (one for one in described_routes().values() if not LEFT_OUT.match(one.path)),
    key=lambda one: one.method == "DELETE",
)


class Sweep:
    """Requests to a server, each with a check of its answer and of what the server logs."""

    def __init__(self, server: ServingServer) -> None:
        self.server = server

    async def send(
        self, route: Route, name: str, query: str = "", body: bytes | None = None, key: str = ""
    ) -> None:
        """Send one request; its answer must be one of the route's, and the log without an error."""
        with capture_logs() as lines:
            answer = await send(self.server, route, name, query, body, key or self.server.token)
        about = f"{route.method} {route.path} {name} {query[:200]} {(body or b'')[:200]!r}"
        failed = [line for line in lines if "exc_info" in line or line["log_level"] == "critical"]
        assert not failed, f"{about}: {failed}"
        assert answer.status != 500, f"{about}: {answer.body[:200]!r}"
        # A path may be another route's, and a server function answers as it likes.
        kind = answer.headers.get("Content-Type", "").partition(";")[0]
        is_foreign = not all(one.status for one in route.answers) or route.path.startswith(
            "/fn/{name}"
        )
        if answer.status not in (404, 405) and not is_foreign:
            check_answer(route, answer.status, kind, answer.body)

    async def send_all(self, names: Iterable[str], key: str = "") -> None:
        """Send a usual request to every route, about each of `names` where a path has one."""
        for route in ROUTES:
            for name in names if "{" in route.path else ("",):
                await self.send(route, name, "", b"{}" if route.request else None, key)


@asynccontextmanager
async def sweeping(folder: Path, script: Script) -> AsyncIterator[Sweep]:
    """Open a server whose replicas follow a script."""
    driver = driver_of_all(script)
    async with serving(folder, driver, standbys=0, cpu_slots=8) as server:
        yield Sweep(server)


@pytest.fixture
async def sweep(tmp_path: Path) -> AsyncIterator[Sweep]:
    """A server with every function of NAMES."""
    async with sweeping(tmp_path, Script(signature=SIGNATURE)) as sweep:
        await deploy_all(sweep.server)
        yield sweep


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["", "unknown", *get_args(Need)])
async def test_every_kind_of_function_at_every_route(sweep: Sweep, scope: str) -> None:
    """Whatever a function is, and whatever a key may do, each route answers as the document says;
    also after the functions are removed, which a sweep does last."""
    key = scope
    if scope in get_args(Need):
        answer = await sweep.server.admin("POST", "/keys", {"scopes": [scope]})
        key = answer.json()["secret"]

    await sweep.send_all(NAMES, key)
    await sweep.send_all(("model", "web"), key)


@pytest.mark.slow  # five loads in a row fail, with 1, 2, 4 and 8 s between them
async def test_functions_that_fail(tmp_path: Path) -> None:
    """A function whose replicas do not start is described at every route all the same."""
    async with sweeping(tmp_path, Script(signature=SIGNATURE)) as sweep:
        await deploy_all(sweep.server)
    async with sweeping(tmp_path, Script(refuse_load="no such file")) as sweep:
        wakes = [asyncio.ensure_future(sweep.server.call(name, CALL)) for name in KINDS]
        for name in KINDS:
            await sweep.server.until_shown(name, state="failing")
        for one in wakes:
            one.cancel()
        await sweep.send_all(NAMES)


async def test_odd_paths(sweep: Sweep) -> None:
    """Names that no function can have get no status and no code beyond the document's."""
    await sweep.send_all(ODD_NAMES)


async def test_odd_queries(sweep: Sweep) -> None:
    """Each parameter of a route may have an odd value, or come twice."""
    for route in ROUTES:
        for name in ("model", "web") if "{" in route.path else ("",):
            for query in odd_queries(route):
                await sweep.send(route, name, query, b"{}" if route.request else None)


@pytest.mark.parametrize("name", ["model", "web", "new"])
async def test_odd_manifests(sweep: Sweep, name: str) -> None:
    """A function.toml with numbers and nesting of any size is refused, or deployed."""
    route = next(one for one in ROUTES if one.path.endswith("/revisions") and one.request)
    for text in MANIFESTS:
        body = json.dumps({"files": [], "manifest": text, "trust": True})
        await sweep.send(route, name, "", body.encode())


@pytest.mark.slow
async def test_odd_bodies(sweep: Sweep) -> None:
    """A body may be anything, and so may each member of one that is otherwise usual."""
    for route in ROUTES:
        for body in odd_bodies(route):
            await sweep.send(route, "web", "", body)
    assert (await sweep.server.get("/healthz")).status == 200
