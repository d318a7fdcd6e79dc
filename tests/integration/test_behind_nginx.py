"""nginx in front of the gateway, configured as the guide says."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import ClientSession, WSMsgType

from gateway.proxy.websocket import accept_of
from gateway.settings import GatewaySettings
from registry.openness import Openness
from tests.chaos.footprint import until
from tests.support.documents import blocks
from tests.support.foreign_servers import missing
from tests.support.proxied import gate

GUIDE = Path(__file__).parents[2] / "docs/guides/servers.md"
CONFIGURATION = """
{user}
daemon off;
error_log stderr error;
pid {folder}/nginx.pid;
events {{ worker_connections 64; }}
http {{
    access_log off;
    {paths}
    {map}
    server {{
        listen 127.0.0.1:{port};
        {location}
    }}
}}
"""
SPOOFED = {
    "X-Forwarded-For": "198.51.100.1",
    "X-Forwarded-Proto": "https",
    "X-Forwarded-Host": "evil.example",
    "X-Forwarded-Prefix": "/evil",
    "X-Real-IP": "198.51.100.1",
    "Forwarded": "for=198.51.100.1",
}


@pytest.fixture(params=[True, False], ids=["fast", "aiohttp"])
def is_fast(request: pytest.FixtureRequest) -> bool:
    """Which of the two client sides reads the requests."""
    return bool(request.param)


def configuration(folder: Path, port: int, upstream: int) -> str:
    """Return nginx's configuration around the blocks of the guide."""
    _, _, section = GUIDE.read_text().partition("\n## Behind another proxy\n")
    location, mapping = [
        "\n".join(block.lines) for block in blocks(section) if block.language == "nginx"
    ]
    assert "127.0.0.1:8080" in location
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    return CONFIGURATION.format(
        user="user root;" if os.getuid() == 0 else "",
        folder=folder,
        port=port,
        paths=" ".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds),
        map=mapping,
        location=location.replace("127.0.0.1:8080", f"127.0.0.1:{upstream}"),
    )


@asynccontextmanager
async def nginx(folder: Path, upstream: int) -> AsyncIterator[str]:
    """Run nginx in front of `upstream`; yield its URL."""
    path = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if path is None:
        missing("nginx")
    assert path is not None
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = int(reserved.getsockname()[1])
    file = folder / "nginx.conf"
    file.write_text(configuration(folder, port, upstream))
    words = ["-e", "stderr", "-p", str(folder), "-c", str(file)]
    process = await asyncio.create_subprocess_exec(path, *words)
    try:
        assert await until(lambda: _listens(port), 20)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionError:
        return False
    writer.close()
    return True


class App:
    """A function's server: fields of requests, a redirect, events and WebSockets.

    Each event waits for `released`.
    """

    def __init__(self) -> None:
        self.released = asyncio.Event()

    async def __call__(self, reader: Reader, writer: Writer) -> None:
        """Answer one request."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        line, *lines = head.strip().split("\r\n")
        fields = {k.lower(): v.strip() for k, v in (line.split(":", 1) for line in lines)}
        close = b"Connection: close\r\n"
        if line.startswith("GET /events "):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n" + close)
            writer.write(b"\r\ndata: 1\n\n")
            await self.released.wait()
            writer.write(b"data: 2\n\n")
        elif line.startswith("GET /ws "):
            accept = accept_of(fields["sec-websocket-key"].encode())
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n")
            writer.write(b"Upgrade: websocket\r\nSec-WebSocket-Accept: " + accept + b"\r\n\r\n")
            writer.write(b"\x81\x02hi")
            await reader.readexactly(1)
            writer.write(b"\x88\x00")
        else:
            body = json.dumps(fields).encode()
            writer.write(b"HTTP/1.1 302 Found\r\nLocation: /y\r\nSet-Cookie: a=b; Path=/\r\n")
            writer.write(close + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()


async def test_the_guides_configuration_without_a_key(tmp_path: Path, is_fast: bool) -> None:
    """A server that nobody has closed or opened refuses what nginx passes on, though nginx runs on
    the same machine, and its name is a public host."""
    async with (
        gate(tmp_path / "gate", App(), is_fast=is_fast) as one,
        nginx(tmp_path, one.port) as url,
        ClientSession(f"{url}/ml/fn/web/") as session,
    ):
        one.gateway.invoker.access.ring.decide(Openness.LOCAL)
        for path in ("x", "events", "ws"):
            async with session.get(path) as answer:
                assert answer.status == 401
                assert "fnctl access open" in (await answer.json(content_type=None))["detail"]


async def test_the_guides_configuration(tmp_path: Path, is_fast: bool) -> None:
    """Programs learn who asked and where, whatever the client claims; redirects and cookies lead
    through nginx; events and WebSockets pass at once."""
    app = App()
    known = GatewaySettings(port=0, fast_front=is_fast, trusted_proxies=("127.0.0.1",))
    async with (
        gate(tmp_path / "gate", app, is_fast=is_fast, settings=known) as one,
        nginx(tmp_path, one.port) as url,
        ClientSession(f"{url}/ml/fn/web/") as session,
    ):
        async with session.get("x", headers=SPOOFED, allow_redirects=False) as answer:
            got, host = await answer.json(content_type=None), url.removeprefix("http://")
            assert (answer.status, answer.headers["Location"]) == (302, "/ml/fn/web/y")
            assert answer.headers["Set-Cookie"] == "a=b; Path=/ml/fn/web"
        assert got["x-forwarded-for"] == "127.0.0.1, 127.0.0.1"
        assert (got["x-forwarded-proto"], got["x-forwarded-host"]) == ("http", host)
        assert (got["x-forwarded-prefix"], got["x-real-ip"]) == ("/ml/fn/web", "127.0.0.1")
        element = f'for=127.0.0.1;host="{host}";proto=http'
        assert (got["host"], got["forwarded"]) == (host, f"{element}, {element}")

        async with session.get("events") as answer:
            assert await answer.content.readuntil(b"\n\n") == b"data: 1\n\n"
            app.released.set()
            assert await answer.content.read() == b"data: 2\n\n"

        async with session.ws_connect("ws") as websocket:
            message = await websocket.receive()
            assert (message.type, message.data) == (WSMsgType.TEXT, "hi")
        await one.settled()
