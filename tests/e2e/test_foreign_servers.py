"""Tests of servers of others as functions, by their own clients: every answer equals that of a
direct call, warm and cold."""

from __future__ import annotations

import asyncio
import gzip
import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from aiohttp import ClientSession, WSMsgType

from tests.chaos.footprint import until
from tests.support import foreign_servers
from tests.support.foreign_servers import Foreign
from tests.support.process_server import ServerProcess, server_process
from tests.support.raw_http import Got, ask

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ROOT = Path(__file__).parent.parent.parent
ASK_S = 60.0
CHANGING = {"date", "connection", "server", "transfer-encoding", "keep-alive"}
"""Fields that differ between two direct calls, or belong to one connection."""
ADDED = {"fn-revision", "content-security-policy", "x-request-id", "server-timing", "traceparent"}
"""Fields that the gateway adds."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server."""
    data = tmp_path_factory.mktemp("foreign") / "data"
    options, environment = ("--cpu-slots", "2"), {"FN_STANDBYS": "0"}
    with server_process(data, *options, environment=environment) as server:
        yield server
        complaints = list(server.complaints)
    assert complaints == []


class Pair:
    """One server as a function and as a process: `ours` and `direct` are URLs."""

    def __init__(self, server: ServerProcess, name: str, direct: str) -> None:
        self._server = server
        self._name = name
        self.direct = direct
        self.ours = f"{server.url}/fn/{name}"

    async def go_cold(self) -> None:
        """Stop the function's replica and wait for its end. A replica that has just been called
        stays awake, so the request is repeated."""

        async def is_cold() -> bool:
            done = await asyncio.to_thread(self._server.fnctl, "sleep", self._name)
            assert done.returncode == 0, done.stderr
            return not self._server.replica_pids()

        assert await until(is_cold, ASK_S)

    async def same(
        self,
        path: str,
        method: str = "GET",
        body: bytes | None = None,
        fields: dict[str, str] | None = None,
    ) -> Got:
        """Call both; status, body and fields must be equal. Return the function's answer."""
        wanted = await _ask(self.direct, method, path, body, fields)
        got = await _ask(self.ours, method, path, body, fields)
        assert (got.status, got.end) == (wanted.status, "whole"), (got, wanted)
        assert got.body == wanted.body
        assert _kept(got) == _kept(wanted)
        return got


def _kept(got: Got) -> list[tuple[str, str]]:
    fields = [one for one in got.fields if one[0] not in CHANGING | ADDED]
    return sorted((name, "" if name == "location" else value) for name, value in fields)


async def _ask(
    url: str, method: str, path: str, body: bytes | None, fields: dict[str, str] | None
) -> Got:
    parts = urlsplit(url)
    assert parts.port is not None
    return await ask(parts.port, method, parts.path + path, body, fields, ASK_S)


def pair(
    server: ServerProcess, tmp_path: Path, foreign: Foreign, direct: Foreign
) -> Iterator[Pair]:
    """Deploy `foreign`, and run `direct` beside it."""
    bundle = foreign.bundle(tmp_path / "bundle")
    done = server.fnctl("deploy", str(bundle), "--trust")
    assert done.returncode == 0, done.stderr + done.stdout
    with foreign_servers.running(direct, tmp_path / "direct") as url:
        yield Pair(server, foreign.name, url)
    server.fnctl("rm", foreign.name, "--yes")


@pytest.fixture
def asgi(server: ServerProcess, tmp_path: Path) -> Iterator[Pair]:
    """FastAPI on uvicorn."""
    foreign = foreign_servers.asgi()
    yield from pair(server, tmp_path, foreign, foreign)


@pytest.fixture
def nginx(server: ServerProcess, tmp_path: Path) -> Iterator[Pair]:
    """nginx with static files."""
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = int(reserved.getsockname()[1])
    (tmp_path / "served").mkdir()
    (tmp_path / "beside").mkdir()
    foreign = foreign_servers.nginx(tmp_path / "served", 8000)
    direct = foreign_servers.nginx(tmp_path / "beside", port)
    # Equal files: a file's random bytes are chosen by the port.
    shutil.copytree(tmp_path / "served/root", tmp_path / "beside/root", dirs_exist_ok=True)
    yield from pair(server, tmp_path, foreign, direct)


@pytest.fixture
def prometheus(server: ServerProcess, tmp_path: Path) -> Iterator[Pair]:
    """Prometheus."""
    foreign = foreign_servers.prometheus(tmp_path / "served")
    direct = foreign_servers.prometheus(tmp_path / "beside")
    yield from pair(server, tmp_path, foreign, direct)


async def test_fastapi_answers_as_without_fngate(asgi: Pair) -> None:
    """JSON, errors, uploads, streams, pages and WebSockets of FastAPI on uvicorn, warm and cold."""
    for _ in range(2):
        await asgi.same("/items/lamp?q=21")
        await asgi.same("/items/lamp?q=none")
        await asgi.same("/nowhere")
        await asgi.same("/openapi.json")
        await asgi.same("/digest", "POST", bytes(range(256)) * 8192)
        streamed = await asgi.same("/events?n=30")
        assert streamed.body.endswith(b"data: [DONE]\n\n")
        async with ClientSession() as session, session.ws_connect(f"{asgi.ours}/ws") as socket:
            await socket.send_str("hello")
            assert (await socket.receive()).data == "HELLO"
            await socket.close()
            assert socket.closed
        await asgi.go_cold()
    async with ClientSession() as session, session.ws_connect(f"{asgi.ours}/ws") as socket:
        await socket.send_str("cold")
        message = await socket.receive()
        assert (message.type, message.data) == (WSMsgType.TEXT, "COLD")


async def test_nginx_answers_as_without_fngate(nginx: Pair) -> None:
    """Files, ranges, conditional requests, compression, HEAD and redirects of nginx, warm and
    cold."""
    for _ in range(2):
        whole = await nginx.same("/random.bin")
        assert len(whole.body) == 8 << 20
        await nginx.same("/index.html")
        await nginx.same("/random.bin", fields={"Range": "bytes=1000-1999"})
        await nginx.same("/plain.txt", fields={"Accept-Encoding": "gzip"})
        assert (await nginx.same("/plain.txt", "HEAD")).get("content-length") == "150000"
        unchanged = await nginx.same("/index.html", fields={"If-None-Match": await _tag(nginx)})
        assert unchanged.status == 304
        await nginx.same("/gone")
        await nginx.same("/index.html", "POST", b"not allowed")
        moved = await _ask(nginx.ours, "GET", "/moved", None, None)
        assert (moved.status, moved.get("location")) == (302, "/fn/nginx/index.html")
        await nginx.go_cold()


async def _tag(nginx: Pair) -> str:
    return (await _ask(nginx.ours, "GET", "/index.html", None, None)).get("etag")


async def test_the_folder_of_files_is_a_function(server: ServerProcess) -> None:
    """functions/files deploys as it is: its samples pass, and ranges, compression, listings and
    tags, which outlive a cold start, come as nginx makes them."""
    folder = ROOT / "functions/files"
    foreign_servers.nginx_program()
    server.fnctl_json("deploy", str(folder), "--trust")
    files = Pair(server, "files", "")

    async def got(path: str, **fields: str) -> Got:
        return await _ask(files.ours, "GET", path, None, fields)

    style = (folder / "public/style.css").read_bytes()
    whole, part = await got("/style.css"), await got("/style.css", Range="bytes=-10")
    packed = await got("/style.css", **{"Accept-Encoding": "gzip"})
    await files.go_cold()
    unchanged = await got("/style.css", **{"If-None-Match": whole.get("etag")})

    assert (whole.get("content-type"), packed.get("content-encoding")) == ("text/css", "gzip")
    assert whole.body == gzip.decompress(packed.body) == style
    assert (part.status, unchanged.status) == (206, 304)
    assert part.body == style[-10:]
    server.fnctl("rm", "files", "--yes")


async def test_prometheus_answers_its_own_client(prometheus: Pair) -> None:
    """promtool queries Prometheus through its function, warm and cold, and gets what it gets
    directly."""
    promtool = shutil.which("promtool")
    if promtool is None:
        foreign_servers.missing("promtool")
    for _ in range(2):
        await prometheus.same("/-/healthy")
        await prometheus.same("/api/v1/status/config")
        said = []
        for url in (prometheus.direct, prometheus.ours):
            command = [str(promtool), "query", "instant", "-o", "json", url, "vector(42)"]
            done = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, check=False, timeout=ASK_S
            )
            assert done.returncode == 0, done.stderr
            said.append([one["value"][1] for one in json.loads(done.stdout)])
        assert said == [["42"], ["42"]]
        await prometheus.go_cold()
