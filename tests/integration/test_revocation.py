"""Tests of what a revoked key has open, at real servers with one and with two gateway processes."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import pytest

from tests.support import chat_server, faulty_server
from tests.support.process_server import ServerProcess, server_process
from tests.support.raw_http import Connection, connected, request
from tests.support.raw_websocket import handshake, masked, read

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

LINES = "/sse?n=100000&ms=20"
"""A stream that lasts longer than any test."""
LIMITS = "concurrency = 16"


@pytest.fixture(scope="module", params=["1", "2"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A server with one or two gateway processes, a server function and a model at /v1."""
    folder = tmp_path_factory.mktemp("revocation")
    with server_process(folder / "data", "--workers", request.param, "--cpu-slots", "4") as server:
        faulty_server.deploy(server, folder, "web", limits=LIMITS)
        chat_server.deploy(server, folder, "chat", limits=LIMITS)
        yield server
        complaints = list(server.complaints)
    assert complaints == []


class Holder:
    """A key and the connections that it has open."""

    def __init__(self, server: ServerProcess, stack: AsyncExitStack) -> None:
        made = server.fnctl_json("key", "add", "--scope", "invoke", "--scope", "deploy")
        self.id = str(made["id"])
        self.bearer = {"Authorization": f"Bearer {made['secret']}"}
        self._port = urlsplit(server.url).port or 0
        self._stack = stack

    async def open(self, method: str, path: str, **fields: str) -> Connection:
        """Send a request over a connection of its own."""
        connection = await self._stack.enter_async_context(connected(self._port))
        await connection.send(request(method, path, None, {**self.bearer, **fields}))
        return connection

    async def chat(self) -> Connection:
        """Open a stream of a model."""
        asked = {"role": "user", "content": "go on [tokens=100000] [rate=50]"}
        body = json.dumps({"model": "chat", "stream": True, "messages": [asked]}).encode()
        connection = await self._stack.enter_async_context(connected(self._port))
        kind = {"Content-Type": "application/json"}
        await connection.send(
            request("POST", "/v1/chat/completions", body, {**self.bearer, **kind})
        )
        return connection

    async def upload(self) -> Connection:
        """Begin to upload a file of a function."""
        digest, size = hashlib.sha256(b"x").hexdigest(), {"Content-Length": "1000000"}
        connection = await self.open("PUT", f"/admin/v1/blobs/{digest}", **size)
        await connection.send(b"x" * 1000)
        return connection

    async def websocket(self) -> Connection:
        """Open a WebSocket that echoes."""
        connection = await self._stack.enter_async_context(connected(self._port))
        await handshake(connection, "/fn/web/ws", fields=self.bearer)
        return connection


@pytest.fixture
async def holders(server: ServerProcess) -> AsyncIterator[tuple[Holder, Holder]]:
    """The holders of two keys: one that is revoked, and one that stays."""
    async with AsyncExitStack() as stack:
        gone, stays = Holder(server, stack), Holder(server, stack)
        yield gone, stays
    server.fnctl_json("key", "rm", stays.id)


async def test_what_a_revoked_key_has_open_is_cut(
    server: ServerProcess, holders: tuple[Holder, Holder]
) -> None:
    """Streams, followers, WebSockets and uploads end at once and never look whole; another key's go
    on."""
    gone = holders[0]
    async with asyncio.TaskGroup() as group:
        opened = [group.create_task(start(holder)) for holder in holders for _ in range(2)]
    cut = [*opened[0].result(), *opened[1].result()]
    kept = [*opened[2].result(), *opened[3].result()]

    await asyncio.to_thread(server.fnctl_json, "key", "rm", gone.id)

    for name, connection in cut:
        if name == "upload":
            got = await connection.answer()
            assert (got.status, got.code) == (401, "no_key")
            continue
        rest = await connection.rest()
        if name == "socket":
            assert rest == b"\x88\x15\x03\xf0the key was removed"
        else:
            assert not rest.endswith(b"0\r\n\r\n"), name
        assert connection.reader.at_eof() or connection.reader.exception(), name
    for name, connection in kept:
        assert not connection.reader.at_eof(), name
        if name == "socket":
            await connection.send(masked(1, b"still"))
            assert await read(connection) == (1, b"still")
        elif name == "lines":
            await connection.reader.readuntil(b"data: ")
    again = await (await gone.open("GET", "/fn/web/")).answer()
    assert (again.status, again.code) == (401, "no_key")


async def start(holder: Holder) -> list[tuple[str, Connection]]:
    """Open everything that lasts, once."""
    lasting = {"Accept": "text/event-stream"}
    opened = [
        ("lines", await holder.open("GET", f"/fn/web{LINES}")),
        ("chat", await holder.chat()),
        ("events", await holder.open("GET", "/admin/v1/events", **lasting)),
        ("logs", await holder.open("GET", "/admin/v1/functions/web/logs", **lasting)),
    ]
    for _, connection in opened:
        await connection.reader.readuntil(b"\r\n\r\n")
    return [*opened, ("socket", await holder.websocket()), ("upload", await holder.upload())]
