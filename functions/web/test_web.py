"""Tests of the application alone, in an environment of its own, and of its folder."""

from __future__ import annotations

import io
import shlex
import signal
import socket
import subprocess
import tomllib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, ClientTimeout

from tests.support.process_server import ServerProcess, server_process
from tests.support.server_environment import environment_of

FOLDER = Path(__file__).parent
UNTIL_S = 60.0

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of uvicorn, in an environment made for this test."""
    return environment_of(FOLDER / "requirements.txt", tmp_path_factory.mktemp("web") / "venv")


@pytest.fixture(scope="module")
def manifest() -> dict[str, Any]:
    return tomllib.loads((FOLDER / "function.toml").read_text("utf-8"))


@pytest.fixture(scope="module")
def url(programs: Path, manifest: dict[str, Any]) -> Iterator[str]:
    """The application, started by the manifest's command as fngate would."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = manifest["server"]["command"].replace("${PORT}", str(port))
    environment = {**manifest["server"]["env"], "PATH": f"{programs}:/usr/bin:/bin"}
    server = subprocess.Popen(
        shlex.split(command), cwd=FOLDER, env=environment, stderr=subprocess.PIPE, text=True
    )
    assert server.stderr is not None
    with server, server.stderr as lines:
        assert any("Uvicorn running" in line for line in lines), f"it ended: {server.wait(UNTIL_S)}"
        yield f"http://127.0.0.1:{port}"
        server.terminate()
        assert server.wait(UNTIL_S) in (0, -signal.SIGTERM)


@pytest.fixture
async def session(url: str) -> AsyncIterator[ClientSession]:
    """A client of the application."""
    async with ClientSession(url, timeout=ClientTimeout(total=UNTIL_S)) as session:
        yield session


async def test_it_is_ready(session: ClientSession, manifest: dict[str, Any]) -> None:
    """The manifest's readiness path is one of the application."""
    async with session.get(manifest["server"]["ready"]) as answer:
        assert (answer.status, await answer.json()) == (200, {"status": "ok"})


async def test_plain_routes(session: ClientSession) -> None:
    """JSON, a query, an error of the application and a counted upload."""
    async with session.get("/items", params={"q": "an"}) as answer:
        assert await answer.json() == {"items": ["banana"]}
    async with session.get("/items/9") as answer:
        assert (answer.status, await answer.json()) == (404, {"detail": "there are 3 items"})
    async with session.post("/count", data=b"one\ntwo\n" * 100_000) as answer:
        assert await answer.json() == {"bytes": 800_000, "lines": 200_000}


async def test_a_stream_of_events(session: ClientSession) -> None:
    """The events come one by one and end with an event that says so."""
    async with session.get("/ticks", params={"n": "2", "pause_s": "0"}) as answer:
        assert answer.content_type == "text/event-stream"
        text = await answer.text()

    assert text.split("\n\n") == [
        'event: tick\ndata: {"tick": 0}',
        'event: tick\ndata: {"tick": 1}',
        "event: end\ndata: {}",
        "",
    ]


async def test_a_websocket(session: ClientSession) -> None:
    """Each message is answered, and the client ends the connection."""
    async with session.ws_connect("/shout") as shout:
        await shout.send_str("hello")
        assert await shout.receive_str() == "HELLO"


async def test_the_samples_are_answered(session: ClientSession, manifest: dict[str, Any]) -> None:
    """The requests of the deploy's trial succeed."""
    assert len(manifest["sample"]) == 2
    for one in manifest["sample"]:
        data = one.get("body", "").encode()
        async with session.request(one.get("method", "GET"), one["path"], data=data) as answer:
            assert answer.status == 200


@pytest.fixture(scope="module")
def gateway(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """fngate with the function deployed; nothing has called it yet."""
    environment = {"FN_SERVER_PATH": f"{programs}:/usr/bin:/bin"}
    data = tmp_path_factory.mktemp("gateway") / "data"
    with server_process(data, environment=environment) as server:
        server.fnctl_json("deploy", str(FOLDER), "--trust")
        yield server


async def test_a_request_starts_it(gateway: ServerProcess) -> None:
    """The first request is held while the server starts; the answer names the cold start."""
    async with gateway.session() as session:
        async with session.get("/fn/web/items?q=an") as answer:
            assert await answer.json() == {"items": ["banana"]}
            assert "cold;" in answer.headers["Server-Timing"]
        async with session.get("/fn/web/items/9") as answer:
            assert (answer.status, await answer.json()) == (404, {"detail": "there are 3 items"})
            assert "cold;" not in answer.headers["Server-Timing"]


async def test_an_upload_passes(gateway: ServerProcess) -> None:
    """A body of 16 MB reaches the application whole."""
    body = io.BytesIO(b"one\ntwo\n" * 2_000_000)
    async with gateway.session() as session, session.post("/fn/web/count", data=body) as answer:
        assert await answer.json() == {"bytes": 16_000_000, "lines": 4_000_000}


async def test_events_pass_one_by_one(gateway: ServerProcess) -> None:
    """The first event is here while the second is still minutes away; leaving ends the stream."""
    path = "/fn/web/ticks?n=2&pause_s=600"
    async with gateway.session() as session, session.get(path) as answer:
        assert answer.content_type == "text/event-stream"
        assert await answer.content.readline() == b"event: tick\n"
        assert await answer.content.readline() == b'data: {"tick": 0}\n'


async def test_a_websocket_passes(gateway: ServerProcess) -> None:
    """Messages pass in both directions."""
    async with gateway.session() as session, session.ws_connect("/fn/web/shout") as shout:
        await shout.send_str("hello")
        assert await shout.receive_str() == "HELLO"
