"""Keys of functions' servers at /v1, on a real server with one gateway process and with several:
they reach the server that they are for, and nothing else."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from aiohttp import ClientSession, ClientTimeout

from tests.integration.test_secrets import ROUTES, events, everywhere, forms_of
from tests.support.caller import UNTIL_S, Answer, Caller
from tests.support.process_server import ServerProcess, server_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

ASKS = 16
"""Requests on connections of their own: the kernel spreads them over the gateway processes."""
APP = b"""
import hashlib
import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def digest(values):
    return [hashlib.sha256(value.encode()).hexdigest() for value in values]


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.do_POST()

    def do_POST(self):
        asked = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if b"die" in asked:
            os._exit(3)
        got = {
            "bearer": digest(self.headers.get_all("Authorization") or []),
            "x-api-key": digest(self.headers.get_all("X-Api-Key") or []),
        }
        content = json.dumps(got).encode()
        self.send_response(500 if b"fail" in asked else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
FILES = {"app.py": APP}
MANIFEST = 'schema = 1\n[server]\ncommand = "python3 app.py ${PORT}"\n[openai]\n'
KEYED = f'{MANIFEST}upstream_key = "vllm"\n'


@pytest.fixture(params=["1", "2"], ids=["one-process", "workers"])
def process(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerProcess]:
    """A server in a process of its own, whose log is kept."""
    logged = {"FN_ACCESS_LOG": "true"}
    options = ("--workers", request.param, "--cpu-slots", "2")
    with server_process(tmp_path / "data", *options, environment=logged) as process:
        yield process


@pytest.fixture
async def server(process: ServerProcess) -> AsyncIterator[Caller]:
    async with ClientSession(timeout=ClientTimeout(total=UNTIL_S)) as session:
        yield Caller(process.url, process.token, session)


async def put(server: Caller, value: str) -> None:
    answer = await server.admin("POST", "/secrets", {"name": "vllm", "value": value})
    assert answer.status in (200, 201), answer


async def ask(
    server: Caller, path: str = "/v1/chat/completions", model: str = "web", text: str = "hi"
) -> Answer:
    """Send a request with a key of the caller's."""
    body = {"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": text}]}
    field = "x-api-key" if "messages" in path else "Authorization"
    value = server.token if "messages" in path else f"Bearer {server.token}"
    headers = {field: value, "Connection": "close", "Content-Type": "application/json"}
    return await server.request("POST", path, body, headers)


def sha256(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()


async def keys_of(server: Caller) -> set[str]:
    """Return what all gateway processes send to the server as bearer key, by digest."""
    found = set()
    for _ in range(ASKS):
        answer = await ask(server)
        assert answer.status == 200, answer
        got = answer.json()
        assert got["x-api-key"] == []
        found.update(got["bearer"])
    return found


async def test_the_server_gets_its_key_and_no_other(process: ServerProcess, server: Caller) -> None:
    """In the protocol's field, from every gateway process, also one that has started since. A new
    value counts from the next call, a removed one refuses calls, and others get nothing."""
    refused = await server.try_deploy(FILES, name="web", manifest=KEYED)
    assert "openai.upstream_key: no secret vllm" in refused.problem["detail"]
    await put(server, "one")
    await server.deploy(FILES, name="web", manifest=KEYED)
    await server.deploy(FILES, name="plain", manifest=MANIFEST)

    assert await keys_of(server) == {sha256("Bearer one")}
    got = (await ask(server, "/v1/messages")).json()
    assert got == {"bearer": [], "x-api-key": [sha256("one")]}
    plain = (await ask(server, model="plain")).json()
    assert plain == {"bearer": [], "x-api-key": []}
    direct = await server.get("/fn/web/", Authorization=f"Bearer {server.token}")
    assert sha256("Bearer one") not in direct.body.decode()

    await put(server, "two")
    assert await keys_of(server) == {sha256("Bearer two")}

    removed = await server.admin("DELETE", "/secrets/vllm?force=true")
    assert removed.json()["needed_by"] == ["web@1"]
    for path, kind in (("/v1/chat/completions", "server_error"), ("/v1/messages", "overloaded")):
        answer = await ask(server, path)
        assert (answer.status, answer.headers["Content-Type"]) == (503, "application/json")
        assert answer.json()["error"]["type"].startswith(kind)
        assert "no secret vllm" in answer.json()["error"]["message"]
    assert (await ask(server, model="plain")).status == 200

    async def is_told() -> bool:
        errors = (await server.admin("GET", "/functions/web/errors")).json()["items"]
        return any("no secret vllm" in one["detail"] for one in errors)

    await server.until(is_told)

    await put(server, "three")
    await asyncio.to_thread(process.stop)
    await asyncio.to_thread(process.start)
    server.url = process.url
    assert await keys_of(server) == {sha256("Bearer three")}


async def test_a_redeploy_under_load_never_lacks_its_key(server: Caller) -> None:
    """Of calls while a function gets a key, and then another one, each has a key of its
    revision or none was needed."""
    await put(server, "one")
    assert (await server.admin("POST", "/secrets", {"name": "other", "value": "two"})).status == 201
    await server.deploy(FILES, name="web", manifest=MANIFEST)
    found: set[tuple[str, ...]] = set()
    ends = asyncio.Event()

    async def calls() -> None:
        while not ends.is_set():
            answer = await ask(server)
            assert answer.status == 200, answer
            found.add(tuple(answer.json()["bearer"]))

    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(calls())
        await server.deploy(FILES, name="web", manifest=KEYED)
        await server.deploy(FILES, name="web", manifest=KEYED.replace("vllm", "other"))
        ends.set()
    assert {()} < found <= {(), (sha256("Bearer one"),), (sha256("Bearer two"),)}


async def test_a_key_is_nowhere_after_a_storm_of_errors(
    process: ServerProcess, server: Caller
) -> None:
    """Calls, failures, deaths, rotations and removals leave the value in no file, log, command
    line, event or answer."""
    first, second = secrets.token_hex(24), secrets.token_hex(24)
    forms = forms_of(first, second)
    await put(server, first)
    await server.deploy(FILES, name="web", manifest=KEYED)
    for text in ("hi", "fail", "die", "die", "hi"):
        await ask(server, text=text)
        await ask(server, "/v1/messages", text=text)
    await put(server, f"{second}\nX-Evil: 1")
    assert (await ask(server)).status == 503
    refused = await server.try_deploy(FILES, name="more", manifest=KEYED)
    assert not any(form in refused.body for form in forms)
    assert (await server.admin("DELETE", "/secrets/vllm?force=true")).status == 200
    assert (await ask(server)).status == 503
    await put(server, second)
    assert sha256(f"Bearer {second}") in await keys_of(server)

    for route in ROUTES:
        answer = await server.admin("GET", route)
        assert answer.status == 200, route
        assert not any(form in answer.body for form in forms), route
    for path in ("/metrics", "/readyz", "/v1/models"):
        body = (await server.get(path, Authorization=f"Bearer {server.token}")).body
        assert not any(form in body for form in forms), path
    for words in (("why", "web"), ("show", "web"), ("backup", str(process.data / "copy.db"))):
        said = await asyncio.to_thread(process.fnctl, *words)
        assert not any(form.decode() in said.stdout + said.stderr for form in forms), words
    shown = await events(server)
    assert b"web" in shown
    assert not any(form in shown for form in forms)
    found = [where for where, data in everywhere(process) if any(form in data for form in forms)]
    assert found == []
    places = [where for where, _ in everywhere(process)]
    assert any(where.endswith("fngate.db") for where in places)
    assert any(where.endswith("copy.db") for where in places)
    assert json.dumps(list(process.complaints)) == "[]"
