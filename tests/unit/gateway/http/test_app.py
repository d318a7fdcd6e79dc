"""Tests of the gateway's routes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from gateway.http.app import stop_serving
from registry.errors import FunctionFailing
from tests.support.peers import published

if TYPE_CHECKING:
    from tests.unit.gateway.http.conftest import Front

BEARER = {"Authorization": "Bearer fn_the-admin-token"}


async def test_a_function_describes_itself(front: Front) -> None:
    """GET /fn/NAME and its revisions; the state is what the manager last said."""
    front.delivery.receive_endpoints(published())

    status, document, _ = await front.ask("GET", "/fn/digits@1")

    assert status == 200
    assert (document["revision"], document["state"]) == ("digits@1", "waking")
    assert document["example"].startswith(f"curl {front.url}/fn/digits ")


async def test_describing_wakes_nothing(front: Front) -> None:
    """Whoever only looks causes no demand; HEAD looks, too."""
    for method in ("GET", "HEAD"):
        status, _, _ = await front.ask(method, "/fn/digits")
        assert status == 200

    assert front.delivery.loads() == {}


async def test_health_is_what_it_is(front: Front) -> None:
    """/healthz says that the process answers, /readyz what is wrong with it."""
    assert (await front.ask("GET", "/healthz"))[:2] == (200, {"status": "ok"})
    assert (await front.ask("GET", "/readyz"))[:2] == (200, {"status": "ok", "reasons": []})
    front.reasons.append("disk: full")
    degraded = {"status": "degraded", "reasons": ["disk: full"]}
    assert (await front.ask("GET", "/readyz"))[:2] == (200, degraded)


async def test_metrics_are_prometheus_text(front: Front) -> None:
    """/metrics names its format and what was counted."""
    front.metrics.count_reply("default", "digits", "ok", "", 0.1)

    async with front.session.get(f"{front.url}/metrics") as response:
        page = await response.text()

    assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert (
        'fngate_requests_total{function="digits",namespace="default",outcome="ok",reason=""} 1.0'
        in page
    )


async def test_a_shut_door_is_not_ready(front: Front) -> None:
    """A server that goes answers 503 on /readyz and to calls, and closes their connections."""
    await front.gateway.gate.close()

    ready, document, _ = await front.ask("GET", "/readyz")
    called, problem, headers = await front.call(b"{}")

    assert (ready, document) == (503, {"status": "stopping", "reasons": ["shutting down"]})
    assert (called, problem["code"]) == (503, "shutting_down")
    assert (headers["Retry-After"], headers["Connection"]) == ("5", "close")


@pytest.mark.parametrize("path", ["/", "/fn", "/fn/digits/more", "/favicon.ico"])
async def test_what_is_not_there_is_a_problem(front: Front, path: str) -> None:
    """404 names method and path."""
    status, problem, headers = await front.ask("GET", path)

    assert (status, problem["detail"]) == (404, f"no route GET {path}")
    assert headers["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_other_methods_are_told_what_there_is(front: Front, method: str) -> None:
    """405 with Allow, for a function that exists or not."""
    status, problem, headers = await front.ask(method, "/fn/digits")

    assert (status, problem["code"]) == (405, "method_not_allowed")
    assert headers["Allow"] == "GET, HEAD, POST"


async def refuse(_request: web.Request) -> web.Response:
    raise FunctionFailing("no", admin_detail={"log_tail": ["secret"]})


async def break_down(_request: web.Request) -> web.Response:
    raise ZeroDivisionError("the insides")


async def be_cancelled(_request: web.Request) -> web.Response:
    raise asyncio.CancelledError


async def wrap(front: Front, handler: Any, **headers: str) -> web.Response:
    """What the boundary makes of a handler."""
    request = make_mocked_request("GET", "/x", headers={"Host": "localhost", **headers})
    return await front.gateway.boundary.wrap(handler)(request)


async def test_the_boundary_turns_errors_into_problems(front: Front) -> None:
    """An error of the tree is told; what is for admins only to them."""
    for headers, shown in (({}, False), (BEARER, True)):
        response = await wrap(front, refuse, **headers)
        assert response.status == 503
        assert isinstance(response.body, bytes)
        assert (b"secret" in response.body) is shown


async def test_the_boundary_hides_a_defect(front: Front) -> None:
    """500 without anything of the exception; the log has it."""
    response = await wrap(front, break_down)

    assert response.status == 500
    assert isinstance(response.body, bytes)
    assert b"see the server's log" in response.body
    assert b"insides" not in response.body


async def test_the_boundary_lets_a_cancelled_request_end(front: Front) -> None:
    """A client that left is no error to answer."""
    with pytest.raises(asyncio.CancelledError):
        await wrap(front, be_cancelled)


async def test_stopping_waits_for_whoever_is_inside(front: Front) -> None:
    """Accepted requests are finished, but only for so long."""
    front.gateway.gate.enter()
    await stop_serving(front.gateway, front.delivery, 0.0)
    assert front.gateway.gate.active == 1
    stopping = asyncio.create_task(stop_serving(front.gateway, front.delivery, 60.0))
    await asyncio.sleep(0)
    assert not stopping.done()
    front.gateway.gate.exit()
    await stopping
