"""Tests of the routes, the error boundary and the listening socket."""

from __future__ import annotations

import asyncio
import json
import shlex
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from yarl import URL

from gateway.http.app import Gateway, Site, stop_serving
from gateway.openapi.descriptions import describe, example
from registry.catalog import Deployed
from registry.errors import FunctionFailing
from registry.exchange import PoolEndpoints
from registry.model.functions import Limits
from registry.model.keys import Key
from registry.store.keys import fingerprint
from runtime_image.codecs.request import RequestHead, parse
from runtime_image.contract.model import InputRule
from runtime_image.contract.samples import SampleRequest
from runtime_image.contract.signature import Signature, TensorSpec
from tests.support import nouns
from tests.support.peers import published
from tests.unit.gateway.http.conftest import Front

BEARER = {"Authorization": "Bearer fn_the-admin-token"}


async def test_a_function_describes_itself(front: Front) -> None:
    """GET /fn/digits@1 describes the revision, with the state that the manager last published."""
    front.delivery.receive_endpoints(published())

    status, document, _ = await front.ask("GET", "/fn/digits@1")

    assert status == 200
    assert (document["revision"], document["state"]) == ("digits@1", "waking")
    assert document["example"].startswith(f"curl {front.url}/fn/digits ")


async def test_describing_causes_no_demand(front: Front) -> None:
    """GET and HEAD of a function wake no pool."""
    for method in ("GET", "HEAD"):
        status, _, _ = await front.ask(method, "/fn/digits")
        assert status == 200

    assert front.delivery.loads() == {}


async def test_health_and_readiness(front: Front) -> None:
    """/healthz answers while the process runs; /readyz lists the reasons of a degraded state, in
    words only for callers with the scope read: they name paths, hosts and devices."""
    assert (await front.ask("GET", "/healthz"))[:2] == (200, {"status": "ok"})
    assert (await front.ask("GET", "/readyz"))[:2] == (200, {"status": "ok", "reasons": []})
    front.reasons += ["disk: full: /srv/data", "device gpu0: lost", "device gpu1: lost"]
    for scope, reasons in (
        ("", ["disk", "device"]),
        ("invoke", ["disk", "device"]),
        ("read", front.reasons),
        ("admin", front.reasons),
    ):
        ring = front.gateway.boundary.access.ring
        ring.put(Key(scope, fingerprint(scope), (scope,)))
        headers = {"Authorization": f"Bearer {scope}"} if scope else {}
        async with front.session.get(f"{front.url}/readyz", headers=headers) as response:
            assert response.status == 200
            assert await response.json() == {"status": "degraded", "reasons": reasons}


async def test_metrics_are_prometheus_text(front: Front) -> None:
    """/metrics declares its format and contains the counters."""
    front.metrics.count_reply("default", "digits", "ok", "", 0.1)

    async with front.session.get(f"{front.url}/metrics") as response:
        page = await response.text()

    assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert (
        'fngate_requests_total{function="digits",namespace="default",outcome="ok",reason=""} 1.0'
        in page
    )


async def test_a_closed_gate_is_not_ready(front: Front) -> None:
    """A stopping server answers 503 on /readyz and to calls, and closes their connections."""
    await front.gateway.gate.close()

    ready, document, _ = await front.ask("GET", "/readyz")
    called, problem, headers = await front.call(b"{}")

    assert (ready, document) == (503, {"status": "stopping", "reasons": ["shutting down"]})
    assert (called, problem["code"]) == (503, "shutting_down")
    assert (headers["Retry-After"], headers["Connection"]) == ("5", "close")


@pytest.mark.parametrize("path", ["/", "/fn", "/fn/digits/more", "/favicon.ico"])
async def test_an_unknown_route_is_a_problem(front: Front, path: str) -> None:
    """The 404 problem names method and path."""
    status, problem, headers = await front.ask("GET", path)

    assert (status, problem["detail"]) == (404, f"no route GET {path}")
    assert headers["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize("path", ["/a%0Ab", "/fn/f%08/%0A", "/v2/%0A"])
async def test_a_line_break_in_a_path_is_no_way_out(front: Front, path: str) -> None:
    """A path with a line break has no route either: the answer is ours, not the framework's."""
    async with front.session.put(URL(front.url + path, encoded=True)) as response:
        assert response.status in (400, 404)
        assert "json" in response.content_type


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_other_methods_get_405_with_allow(front: Front, method: str) -> None:
    """The 405 answer lists the allowed methods."""
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
    """Return what the error boundary answers for a handler."""
    request = make_mocked_request("GET", "/x", headers={"Host": "localhost", **headers})
    return await front.gateway.boundary.wrap(handler)(request)


async def test_the_boundary_turns_errors_into_problems(front: Front) -> None:
    """An FnError becomes its problem document; admin detail is shown to administrators only."""
    for headers, shown in (({}, False), (BEARER, True)):
        response = await wrap(front, refuse, **headers)
        assert response.status == 503
        assert isinstance(response.body, bytes)
        assert (b"secret" in response.body) is shown


async def test_the_boundary_hides_a_defect(front: Front) -> None:
    """An unexpected exception becomes a 500 without its text; the log has the exception."""
    response = await wrap(front, break_down)

    assert response.status == 500
    assert isinstance(response.body, bytes)
    assert b"see the server's log" in response.body
    assert b"insides" not in response.body


async def test_the_boundary_lets_a_cancelled_request_end(front: Front) -> None:
    """The boundary re-raises cancellation."""
    with pytest.raises(asyncio.CancelledError):
        await wrap(front, be_cancelled)


async def test_stopping_waits_for_active_requests(front: Front) -> None:
    """`stop_serving` waits for active requests, up to its timeout."""
    front.gateway.gate.enter()
    await stop_serving(front.gateway, front.delivery, 0.0)
    assert front.gateway.gate.active == 1
    stopping = asyncio.create_task(stop_serving(front.gateway, front.delivery, 60.0))
    await asyncio.sleep(0)
    assert not stopping.done()
    front.gateway.gate.exit()
    await stopping


ORIGIN = "http://127.0.0.1:8080"


def deployed(**fields: Any) -> Deployed:
    """Return a revision of the function digits."""
    return Deployed(nouns.function(), nouns.revision(**fields))


def takes(dtype: str, shape: tuple[int, ...]) -> Signature:
    """Return a signature with one input called x."""
    return Signature("tensors", (TensorSpec("x", dtype, shape),), ())


def test_a_description_has_all_that_a_caller_needs() -> None:
    """A description has signature, content types, limits, state and an example."""
    shown = PoolEndpoints([], "waking", "1 held")
    function = nouns.function(limits=Limits(timeout_s=5.0, wait_s=10.0, body_mib=1))
    found = describe(Deployed(function, nouns.revision()), shown, ORIGIN)

    assert (found["name"], found["revision"]) == ("digits", "digits@1")
    assert (found["state"], found["reason"]) == ("waking", "1 held")
    assert found["signature"]["inputs"] == [{"name": "x", "dtype": "FP32", "shape": [-1, 4]}]
    assert found["content_types"][0] == "application/json"
    assert found["limits"] == {"timeout_s": 5.0, "wait_s": 10.0, "body_mib": 1}
    assert found["example"].startswith(f"curl {ORIGIN}/fn/digits ")
    assert json.dumps(found)


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("FP32", (-1, 4)),
        ("INT64", (2, 2)),
        ("BOOL", (-1,)),
        ("BYTES", (3,)),
        ("FP64", ()),
        ("UINT8", (1, 16, 16)),
    ],
)
def test_an_example_fits_the_signature_it_is_for(dtype: str, shape: tuple[int, ...]) -> None:
    """The body of the example command is valid input for the function."""
    signature = takes(dtype, shape)
    words = shlex.split(example(deployed(signature=signature), ORIGIN))
    body = words[words.index("-d") + 1].encode()

    parsed = parse(RequestHead("application/json"), body, signature, {})

    assert set(parsed.inputs) == {"x"}


def test_a_large_input_is_only_described() -> None:
    """The example for a large input has a placeholder instead of data."""
    text = example(deployed(signature=takes("FP32", (-1, 3, 224, 224))), ORIGIN)

    assert "<FP32 [1, 3, 224, 224]>" in text


@pytest.mark.parametrize(
    ("rule", "content_type"),
    [
        (InputRule(kind="image"), "image/png"),
        (InputRule(kind="audio"), "audio/wav"),
        (InputRule(kind="bytes"), "application/octet-stream"),
    ],
)
def test_a_file_is_sent_as_a_file(rule: InputRule, content_type: str) -> None:
    """For an image, audio or bytes input the example sends a file of that type."""
    text = example(deployed(inputs={"x": rule}), ORIGIN)

    assert f"Content-Type: {content_type}" in text
    assert "--data-binary @" in text


async def test_a_port_in_use_fails_at_once(front: Front) -> None:
    """Starting raises OSError, and no socket stays open."""
    taken = urlsplit(front.url).port or 0
    settings = front.gateway.invoker.settings
    invoker = front.gateway.invoker._replace(
        settings=type(settings)(port=taken, fast_front=settings.fast_front)
    )
    runner = web.AppRunner(web.Application())
    await runner.setup()
    site = Site(Gateway(invoker), runner)
    with pytest.raises(OSError, match="in use"):
        await site.start()
    await site.close()
    await runner.cleanup()


async def test_a_stopped_site_lets_its_connections_finish(front: Front) -> None:
    """After `stop` new connections are refused while an open one stays."""
    runner = web.AppRunner(web.Application())
    await runner.setup()
    site = Site(front.gateway, runner)
    port = await site.start()
    with socket.create_connection(("127.0.0.1", port)):
        await site.stop()
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", port)).close()
    await site.close()
    await runner.cleanup()


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ((), [f"{ORIGIN}/fn/web/"]),
        ((SampleRequest("/up?a=1"),), [f"{ORIGIN}/fn/web/up?a=1"]),
        (
            (SampleRequest("/x", "PUT", {"A": "b c"}, "it's"), SampleRequest("/y")),
            ["-X", "PUT", "-H", "A: b c", "--data-binary", "it's", f"{ORIGIN}/fn/web/x"],
        ),
        (
            (SampleRequest("/x", "POST", body="@q.json"),),
            ["--data-binary", "@q.json", f"{ORIGIN}/fn/web/x"],
        ),
    ],
)
def test_an_example_of_a_server_is_its_sample(
    samples: tuple[SampleRequest, ...], words: list[str]
) -> None:
    """The example repeats the request that the deploy tried; without one it gets `/`."""
    text = example(nouns.server_deployed(samples=samples), ORIGIN)

    assert shlex.split(text) == ["curl", *words]
