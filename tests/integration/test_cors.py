"""Pages of listed origins over HTTP: every kind of route, with each reader of requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runtime_image.contract.signature import Signature, TensorSpec
from tests.support.fake_driver.driver import FakeDriver, Script
from tests.support.server import Answer, ServingServer, serving

APP, OWN, EVIL = "https://app.example", "https://own.example", "https://evil.example"
TENSOR = TensorSpec("x", "FP32", (-1, 1))
SIGNATURE = Signature("tensors", (TENSOR,), (TENSOR,))
SERVER = f'schema = 1\n[server]\ncommand = "serve ${{PORT}}"\norigins = ["{OWN}"]\n[openai]\n'
BODY = {"inputs": {"x": [[1.0]]}}
GETS = ("/fn/f", "/fn/f/openapi.json", "/v1/models", "/v2/models/f", "/v2", "/openapi.json")
ALLOWED = "Access-Control-Allow-Origin"


@pytest.fixture(params=[True, False], ids=["fast", "plain"])
async def server(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[ServingServer]:
    """A server that lists an origin, with a model and a server function that lists another one."""
    driver = FakeDriver(Script(signature=SIGNATURE))
    given = {"cors_origins": (APP,), "fast_front": request.param, "standbys": 0}
    async with serving(tmp_path, driver, **given) as server:
        await server.deploy({"m.onnx": b"\x3a\x00"}, name="f")
        await server.deploy({"app.py": b""}, name="web", manifest=SERVER)
        yield server


async def ask(
    server: ServingServer, method: str, path: str, origin: str, body: object = None, **more: str
) -> Answer:
    """Send a request as a browser does for a page; `_` in a name stands for `-`."""
    headers = {name.replace("_", "-"): value for name, value in more.items()}
    sent = {"Origin": origin, "Sec-Fetch-Site": "cross-site", **headers}
    return await server.request(method, path, body, sent)


async def test_answers_can_be_read_by_listed_pages_alone(server: ServingServer) -> None:
    """Answers and errors carry the fields for a listed page. Another page is refused, and may not
    read that either."""
    for path in GETS:
        found = await ask(server, "GET", path, APP)
        assert (found.status, found.headers[ALLOWED]) == (200, APP), path
        assert "Origin" in found.headers["Vary"]
        assert (await server.get(path)).headers["Vary"] == "Origin"
        refused = await ask(server, "GET", path, EVIL)
        assert ALLOWED not in refused.headers
        assert refused.status == (200 if path == "/openapi.json" else 403)


async def test_calls_and_their_errors(server: ServingServer) -> None:
    """A call of a listed page is answered, on /fn and on /v2, and an error can be read."""
    infer = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}]}
    for path, body in (("/fn/f", BODY), ("/v2/models/f/infer", infer)):
        answer = await ask(server, "POST", path, APP, body)
        assert (answer.status, answer.headers[ALLOWED]) == (200, APP)
        assert "Server-Timing" in answer.headers["Access-Control-Expose-Headers"]
        wrong = await ask(server, "POST", path, APP, body, Content_Encoding="br")
        assert (wrong.status, wrong.headers[ALLOWED]) == (415, APP)
        assert (await ask(server, "POST", path, EVIL, body)).status == 403
    unknown = await ask(server, "POST", "/fn/nobody", APP, BODY)
    assert (unknown.status, unknown.headers[ALLOWED]) == (404, APP)
    missing = await ask(server, "POST", "/v1/chat/completions", APP, {"model": "none"})
    assert (missing.status, missing.headers[ALLOWED]) == (404, APP)


async def test_preflights_wake_nothing_and_need_no_key(server: ServingServer) -> None:
    """A preflight is answered without a key for every kind of route, and nothing wakes."""
    await server.admin("POST", "/keys", {"scopes": ["invoke"]})
    asks = {"Access_Control_Request_Method": "POST"}
    for path in (*GETS, "/fn/nobody", "/fn/web/x", "/v1/chat/completions", "/v2/models/f/infer"):
        answer = await ask(server, "OPTIONS", path, APP, **asks)
        assert (answer.status, answer.headers[ALLOWED]) == (200, APP), path
        assert answer.headers["Access-Control-Allow-Methods"] == "POST"
        assert ALLOWED not in (await ask(server, "OPTIONS", path, EVIL, **asks)).headers
    assert not server.bound()


async def test_a_functions_own_origins(server: ServingServer) -> None:
    """The origin that a function lists may ask below it and at /v1, and nowhere else; answers to
    its requests with cookies may be read below the function only."""
    asks = {"Access_Control_Request_Method": "POST"}
    own = await ask(server, "OPTIONS", "/fn/web/x", OWN, **asks)
    assert own.headers["Access-Control-Allow-Credentials"] == "true"
    shared = await ask(server, "OPTIONS", "/v1/chat/completions", OWN, **asks)
    assert shared.headers[ALLOWED] == OWN
    assert "Access-Control-Allow-Credentials" not in shared.headers
    assert (await ask(server, "POST", "/fn/f", OWN, BODY)).status == 403
    assert (await ask(server, "GET", "/v2", OWN)).status == 403
    listed = await ask(server, "GET", "/v1/models", OWN)
    assert [one["id"] for one in listed.json()["data"]] == ["web"]


async def test_the_admin_api_is_closed(server: ServingServer) -> None:
    """No page of another origin gets to the admin API, the metrics or the health pages, whatever
    its key."""
    bearer = {"Authorization": f"Bearer {server.token}"}
    for path in ("/admin/v1/session", "/metrics", "/readyz"):
        for origin in (APP, OWN):
            answer = await ask(server, "GET", path, origin, **bearer)
            assert answer.status == 403
            assert ALLOWED not in answer.headers
            asks = {"Access_Control_Request_Method": "GET"}
            assert ALLOWED not in (await ask(server, "OPTIONS", path, origin, **asks)).headers
