"""Tests of secrets with real processes: they reach servers, and nothing else."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from aiohttp import ClientSession, ClientTimeout

from admin.settings import run_dir
from tests.support.caller import UNTIL_S, Caller
from tests.support.process_server import ServerProcess, server_process

pytestmark = pytest.mark.slow

APP = b"""
import hashlib
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/die":
            os._exit(3)
        value = os.environ.get("TOKEN", "")
        content = hashlib.sha256(value.encode()).hexdigest().encode()
        self.send_response(500 if self.path == "/fail" else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


if len(sys.argv) > 2:
    sys.exit("the app refuses to start")
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
FILES = {"app.py": APP}


def manifest(command: str = "python3 app.py ${PORT}", variable: str = "TOKEN") -> str:
    return f'schema = 1\n[server]\ncommand = "{command}"\n[server.secrets]\n{variable} = "hf"\n'


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server in a process of its own, whose log is kept."""
    logged = {"FN_ACCESS_LOG": "true"}
    with server_process(tmp_path / "data", "--cpu-slots", "2", environment=logged) as process:
        yield process


@pytest.fixture
async def server(process: ServerProcess) -> AsyncIterator[Caller]:
    async with ClientSession(timeout=ClientTimeout(total=UNTIL_S)) as session:
        yield Caller(process.url, process.token, session)


async def put(server: Caller, value: str) -> dict[str, object]:
    answer = await server.admin("POST", "/secrets", {"name": "hf", "value": value})
    assert answer.status in (200, 201), answer
    found: dict[str, object] = answer.json()
    return found


async def digest_of_token(server: Caller) -> str:
    answer = await server.get("/fn/web/")
    assert answer.status == 200, answer
    return answer.body.decode()


def sha256(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()


async def test_a_server_gets_the_value_of_its_start(server: Caller) -> None:
    """The value arrives as it was set, also text that env values would replace. A new value counts
    from the next start."""
    first, second = "one ${PORT} naïve\nline", "two"
    await put(server, first)
    await server.deploy(FILES, name="web", manifest=manifest())
    assert await digest_of_token(server) == sha256(first)

    assert (await put(server, second))["stale"] == ["web"]
    assert await digest_of_token(server) == sha256(first)

    async def sleeps() -> bool:
        answer = await server.admin("POST", "/functions/web/sleep")
        return not answer.json()["asked"] and not answer.json()["stay"]

    await server.until(sleeps)
    assert await digest_of_token(server) == sha256(second)


def everywhere(process: ServerProcess) -> Iterator[tuple[str, bytes]]:
    """Yield every file of the data folder and of the run folder, all command lines, the variables
    of the server and of the sidecars, and the server's log."""
    for folder in (process.data, run_dir(process.data)):
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                yield str(path), path.read_bytes()
    ours = {process.process.pid if process.process else 0, *process.replica_pids()}
    assert len(ours) > 1, "no sidecar runs"
    for entry in Path("/proc").iterdir():
        for name in ("cmdline", "environ") if entry.name in map(str, ours) else ("cmdline",):
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):
                    yield f"{entry}/{name}", (entry / name).read_bytes()
    yield "log", "".join(process.log).encode()


def forms_of(*parts: str) -> list[bytes]:
    """Return what shows that a text has one of `parts`, whatever it is encoded as: its beginning,
    plain, in hex and in base64, at each of the three places that a byte has in it. Quoting for
    JSON, URLs and shells changes none of its characters."""
    found = []
    for part in (one.encode()[:24] for one in parts):
        shifted = (base64.b64encode(b"x" * shift + part)[4:-4] for shift in range(3))
        found += [part, part.hex().encode(), *shifted]
    return found


ROUTES = (
    "/functions",
    "/functions/web",
    "/functions/web/revisions",
    "/functions/web/why",
    "/functions/web/logs",
    "/functions/web/errors",
    "/functions/web/timeline",
    "/functions/web/sample",
    "/functions/web/advice",
    "/timeline",
    "/operations",
    "/pools",
    "/replicas",
    "/devices",
    "/secrets",
    "/keys",
    "/session",
    "/backup",
)


async def events(server: Caller) -> bytes:
    """Return the first two seconds of the event stream."""
    read = bytearray()
    headers = {"Authorization": f"Bearer {server.token}"}
    async with server.session.get(f"{server.url}/admin/v1/events", headers=headers) as answer:
        try:
            async with asyncio.timeout(2.0):
                async for chunk in answer.content.iter_any():
                    read += chunk
        except TimeoutError:
            pass
    return bytes(read)


async def test_a_value_is_nowhere_after_a_storm_of_errors(
    process: ServerProcess, server: Caller
) -> None:
    """Refused requests, trials, deaths and failing starts leave the value in no file, log, command
    line, event or answer."""
    first, second = secrets.token_hex(24), secrets.token_hex(24)
    value = f'{first}"\n%20\\ü {second}'
    forms = forms_of(first, second)

    async def set_body(body: bytes) -> None:
        assert (await server.admin("POST", "/secrets", body)).status == 400

    await put(server, value)
    for body in (f'{{"name": "hf", "value": "{value}', f'["{first}"]', f'{{"{first}": 1}}'):
        await set_body(body.encode())
    await set_body(json.dumps({"name": "NOT A NAME", "value": value}).encode())
    await set_body(json.dumps({"name": "hf", "value": value * 1000}).encode())
    await set_body(json.dumps({"name": "hf", "value": f"{value}\0"}).encode())
    await set_body(json.dumps({"name": "hf", "value": f"{value}\ud800"}).encode())
    await server.deploy(FILES, name="web", manifest=manifest())
    for wrong in ("python3 app.py ${PORT} x", "no-such-program ${PORT}", "python3 none.py ${PORT}"):
        refused = await server.try_deploy(FILES, name="web", manifest=manifest(wrong))
        assert refused.json()["state"] == "failed", refused
    for path in ("/", "/fail", "/die", "/die", "/"):
        await server.get(f"/fn/web{path}")
    assert (await server.admin("DELETE", "/secrets/hf")).status == 409
    assert (await server.admin("DELETE", "/secrets/hf?force=true")).status == 200
    await server.get("/fn/web/die")
    await server.until_shown("web", ready=0)
    assert (await server.get("/fn/web/")).status >= 500
    await put(server, value)
    assert await digest_of_token(server) == sha256(value)

    for route in ROUTES:
        answer = await server.admin("GET", route)
        assert answer.status == 200, route
        assert not any(form in answer.body for form in forms), route
    for path in ("/metrics", "/readyz", "/ui/"):
        body = (await server.get(path)).body
        assert not any(form in body for form in forms), path
    for words in (("why", "web"), ("advise", "web"), ("backup", str(process.data / "copy.db"))):
        said = await asyncio.to_thread(process.fnctl, *words)
        assert not any(form.decode() in said.stdout + said.stderr for form in forms), words
    assert (process.data / "copy.db").exists()
    shown = await events(server)
    assert b"web" in shown
    assert not any(form in shown for form in forms)
    found = [where for where, data in everywhere(process) if any(form in data for form in forms)]
    assert found == []
    assert any(where.endswith("fngate.db") for where, _ in everywhere(process))
