"""Requests to /fn/NAME without a slash: handshakes, the redirect of browsers, descriptions."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest

from gateway.openapi.answers import PythonDescription
from tests.support.interfaces import interface, named
from tests.support.proxied import gate

UPGRADE = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
SWITCHED = (
    b"HTTP/1.1 101 S\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
)


@pytest.mark.parametrize("is_fast", [True, False])
@pytest.mark.parametrize(
    ("target", "seen"),
    [
        (b"/fn/web", b"/"),
        (b"/fn/web?token=1", b"/?token=1"),
        (b"/fn/web@1", b"/"),
        (b"/fn/web/", b"/"),
    ],
)
async def test_a_websocket_is_the_servers(
    tmp_path: Path, target: bytes, seen: bytes, is_fast: bool
) -> None:
    """The server gets the handshake at its `/`, with the query."""
    lines: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lines.append(head.split(b"\r\n")[0])
        writer.write(SWITCHED)
        await reader.read(-1)

    async with gate(tmp_path, serve, is_fast=is_fast) as one:
        wire = await one.connect()
        wire.send(b"GET " + target + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n" + UPGRADE + b"\r\n")
        head = await wire.head()

        assert b" 101 " in head.split(b"\r\n")[0]
        assert lines == [b"GET " + seen + b" HTTP/1.1"]
        wire.close()
        await one.settled()


@pytest.mark.parametrize("is_fast", [True, False])
@pytest.mark.parametrize("query", [b"", b"?a=1&b=%2F%20&c"])
async def test_the_redirect_keeps_the_query(tmp_path: Path, query: bytes, is_fast: bool) -> None:
    """As it was sent, undecoded."""

    async def serve(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)

    async with gate(tmp_path, serve, is_fast=is_fast) as one:
        wire = await one.connect()
        line = b"GET /fn/web" + query + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/html\r\n\r\n"
        wire.send(line)
        head = await wire.head()

        assert b" 308 " in head.split(b"\r\n")[0]
        assert b"\r\nLocation: web/" + query + b"\r\n" in head
        wire.close()
        await one.settled()


@pytest.mark.parametrize("is_fast", [True, False])
async def test_a_python_function_is_described(tmp_path: Path, is_fast: bool) -> None:
    """By the gateway, as JSON also to browsers, with its OpenAPI document; its server gets the
    calls, and nothing of the answers begins with Fn- but what the gateway says."""
    lines: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lines.append(head.split(b"\r\n")[0])
        answer = b"HTTP/1.1 500 E\r\nContent-Length: 2\r\nFn-Traceback: c2VjcmV0\r\n\r\n{}"
        writer.write(answer)

    said = interface(named("text", text={"type": "string"}))
    async with gate(tmp_path, serve, is_fast=is_fast, interface=said) as one:
        host = b"Host: 127.0.0.1\r\nConnection: close\r\n"
        for path in (b"/fn/web", b"/fn/web@1?a=1"):
            answer = await one.ask(b"GET %b HTTP/1.1\r\nAccept: text/html\r\n%b\r\n" % (path, host))
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            found = msgspec.json.decode(body, type=PythonDescription)
            assert found.schema == json.loads(said.schema)
            assert json.loads(body).keys() == set(PythonDescription.__struct_fields__)
        document = await one.ask(b"GET /fn/web/openapi.json HTTP/1.1\r\n%b\r\n" % host)
        assert b'"/fn/web":{"post":' in document
        assert lines == []
        for door in (b"127.0.0.1", b"web.gpu.example"):
            target = b"/" if door.startswith(b"web") else b"/fn/web"
            call = b"POST %b HTTP/1.1\r\nHost: %b\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
            answer = await one.ask(call % (target, door))
            assert answer.startswith(b"HTTP/1.1 500"), answer
            assert b"Fn-Revision: web@1" in answer
            assert b"traceback" not in answer.lower()
        post = b"POST /fn/web/openapi.json HTTP/1.1\r\n%bContent-Length: 0\r\n\r\n" % host
        await one.ask(post)
        assert lines == [b"POST / HTTP/1.1"] * 2 + [b"POST /openapi.json HTTP/1.1"]
        await one.settled()
