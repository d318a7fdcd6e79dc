"""Odd requests to every route that the OpenAPI document has: no answer that it has not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from gateway.openapi.routes import Route
from pool_manager.drivers.fake import FakeDriver, Script
from runtime_image.contract.signature import Signature, TensorSpec
from tests.support.described import check_answer, described_routes
from tests.support.server import ServingServer, serving

TENSOR = TensorSpec("x", "FP32", (-1, 2))
SIGNATURE = Signature("tensors", (TENSOR,), (TENSOR,))
ENDLESS = re.compile(r"/admin/v1/(events|functions/\{name\}/warm)")
"""Routes whose answers do not end, or wait by design; they have tests of their own."""
VALUES = ("f", "f@1", "a" * 300, "%00", "~", "%F0%9F%98%80", "0" * 64, "1")
BODIES: tuple[Any, ...] = (
    b"",
    b"{",
    b"\xff\xfe",
    b"[" * 2000,
    b'{"a":1e999}',
    [],
    None,
    {"inputs": {"x": [[1, 2]]}},
    {"scopes": [1], "to": "x", "files": [], "parameters": 3, "path": "//", "model": "f"},
)
QUERIES = ("", "?limit=0&hours=0&wait=-1&lines=x", "?next=%00&since=1&by=x&size=x", "?alias=%ff")


async def send(server: ServingServer, route: Route, value: str, number: int) -> None:
    """Send one odd request and check its answer."""
    path = re.sub(r"\{\w+\}", value.replace("\\", ""), route.path)
    body = BODIES[number % len(BODIES)] if route.request else None
    query = QUERIES[number % len(QUERIES)]
    headers = {"Authorization": f"Bearer {server.token}"}
    if route.request and number % 3:
        headers["Content-Type"] = "application/json"
    answer = await server.request(route.method, path + query, body, headers)
    kind = answer.headers.get("Content-Type", "").partition(";")[0]
    if answer.status not in (404, 405):  # the path may be another route's
        check_answer(route, answer.status, kind, answer.body)


async def test_every_answer_is_described(tmp_path: Path) -> None:
    """Odd paths, queries and bodies get no status and no problem code that the document does not
    have, and no 500."""
    driver = FakeDriver(Script(signature=SIGNATURE))
    routes = [one for one in described_routes().values() if not ENDLESS.match(one.path)]
    routes = [one for one in routes if all(answer.status for answer in one.answers)]
    async with serving(tmp_path, driver, standbys=0) as server:
        await server.deploy({"m.onnx": b"\x3a\x00"}, name="f")
        # Last those that remove something.
        for route in sorted(routes, key=lambda one: one.method == "DELETE"):
            for number, value in enumerate(VALUES):
                await send(server, route, value, number)
        assert (await server.get("/healthz")).status == 200
