"""The Host that a function's server gets, through both client sides and by every way."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from registry.model.servers import ModelApi
from tests.support.proxied import Gate, gate

ACCEPT = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
UPGRADE = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nOrigin: http://gpu.example\r\n"
)
HOST = re.compile(rb"\r\n(?i:host): ([^\r]*)\r\n")
SEEN = re.compile(rb"\r\n(?i:x-forwarded-host): ([^\r]*)\r\n")


class Guarded:
    """A server that notes the heads of its requests, and redirects to its own Host."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            if b"Upgrade: websocket" in head:
                writer.write(
                    b"HTTP/1.1 101 S\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                    b"Sec-WebSocket-Accept: " + ACCEPT + b"\r\n\r\n"
                )
                await reader.read(-1)
                return
            size = re.search(rb"(?i)content-length: (\d+)", head)
            await reader.readexactly(int(size[1]) if size else 0)
            place = b"Location: http://%b/next\r\n" % HOST.findall(head)[0]
            writer.write(b"HTTP/1.1 302 F\r\n" + place + b"Content-Length: 0\r\n\r\n")

    def hosts(self) -> list[bytes]:
        """Return the Host of each request, which has one."""
        found = [HOST.findall(head) for head in self.heads]
        assert all(len(hosts) == 1 for hosts in found)
        return [hosts[0] for hosts in found]


def expected(host: str, one: Gate, sent: bytes) -> bytes:
    """Return the Host that the server gets."""
    address = b"127.0.0.1:%d" % one.sidecar.port
    return {"client": sent, "loopback": address}.get(host, host.encode())


@pytest.mark.parametrize("is_fast", [True, False])
@pytest.mark.parametrize("host", ["client", "loopback", "app.example:81"])
async def test_calls(tmp_path: Path, host: str, is_fast: bool) -> None:
    """Below /fn and on the function's own host, also with a head that is known; redirects to that
    host come back to the function."""
    server = Guarded()
    async with gate(tmp_path, server.serve, is_fast=is_fast, host=host) as one:
        for sent, path, place in (
            (b"gpu.example", b"/fn/web/x", b"/fn/web/next"),
            (b"web.gpu.example", b"/x", b"/next"),
        ):
            for _ in range(4):
                wire = await one.connect()
                wire.send(b"GET " + path + b" HTTP/1.1\r\nHost: " + sent + b"\r\n\r\n")
                head = await wire.head()
                wire.close()
                told = b"http://" + sent if host == "client" else b""
                assert b"\r\nLocation: " + told + place + b"\r\n" in head
            assert server.hosts() == [expected(host, one, sent)] * 4
            assert [SEEN.findall(head) for head in server.heads] == [[sent]] * 4
            server.heads.clear()
        await one.settled()


@pytest.mark.parametrize("is_fast", [True, False])
@pytest.mark.parametrize("host", ["client", "loopback", "app.example:81"])
async def test_models(tmp_path: Path, host: str, is_fast: bool) -> None:
    """At /v1, too."""
    server, body = Guarded(), b'{"model":"web","messages":[]}'
    async with gate(tmp_path, server.serve, is_fast=is_fast, host=host, api=ModelApi()) as one:
        wire = await one.connect()
        wire.send(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: gpu.example\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        await wire.head()

        assert server.hosts() == [expected(host, one, b"gpu.example")]
        wire.close()
        await one.settled()


@pytest.mark.parametrize("is_fast", [True, False])
@pytest.mark.parametrize("host", ["client", "loopback", "app.example:81"])
async def test_websockets(tmp_path: Path, host: str, is_fast: bool) -> None:
    """A handshake has the client's Origin beside the other Host."""
    server = Guarded()
    async with gate(tmp_path, server.serve, is_fast=is_fast, host=host) as one:
        wire = await one.connect()
        wire.send(b"GET /fn/web/ws HTTP/1.1\r\nHost: gpu.example\r\n" + UPGRADE + b"\r\n")

        assert b" 101 " in (await wire.head()).split(b"\r\n")[0]
        assert server.hosts() == [expected(host, one, b"gpu.example")]
        assert b"\r\nOrigin: http://gpu.example\r\n" in server.heads[0]
        wire.close()
        await one.settled()
