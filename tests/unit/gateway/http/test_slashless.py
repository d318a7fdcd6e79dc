"""Requests to /fn/NAME without a slash: handshakes, and the redirect of browsers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

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
