"""Proxies in front of the gateway, through both client sides."""

from __future__ import annotations

import asyncio
import json
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from pathlib import Path

import pytest

from gateway.settings import GatewaySettings
from tests.support.proxied import Gate, gate

CLAIMS = (
    b"X-Forwarded-For: 203.0.113.9\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: ml.example\r\n"
    b"X-Forwarded-Prefix: /gw\r\nForwarded: for=spoofed\r\nX-Real-IP: 203.0.113.9\r\n"
)
ASKED = b"GET /fn/web/x HTTP/1.1\r\nHost: 127.0.0.1:9\r\n%bConnection: close\r\n\r\n"


async def moved(reader: Reader, writer: Writer) -> None:
    """Answer with the fields of the request, a link, a cookie and an own address."""
    port = writer.get_extra_info("sockname")[1]
    while True:
        _, *lines, _, _ = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        fields = {k.lower(): v.strip() for k, v in (line.split(":", 1) for line in lines)}
        body = json.dumps(fields).encode()
        writer.write(
            b"HTTP/1.1 302 Found\r\nLocation: http://localhost:%d/y\r\nContent-Location: "
            b"https://ml.example/z\r\nSet-Cookie: a=b; Path=/\r\nContent-Length: %d\r\n\r\n%b"
            % (port, len(body), body)
        )


def settings(*proxies: str, is_fast: bool) -> GatewaySettings:
    """Return the settings of a gateway behind `proxies`."""
    return GatewaySettings(port=0, fast_front=is_fast, trusted_proxies=proxies)


async def ask(one: Gate, claims: bytes) -> tuple[bytes, dict[str, str]]:
    """Return the head of the answer, and the fields that the function's server got."""
    head, _, body = (await one.ask(ASKED % claims)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 302 ")
    fields: dict[str, str] = json.loads(body)
    return head + b"\r\n", fields


@pytest.mark.parametrize("proxy", ["127.0.0.1", "127.0.0.0/8"])
async def test_a_trusted_proxy_is_continued(tmp_path: Path, is_fast: bool, proxy: str) -> None:
    """The function's server learns the client, and its links lead through the proxy; also where
    the same head came before."""
    known = settings("10.0.0.0/8", proxy, is_fast=is_fast)
    async with gate(tmp_path, moved, is_fast=is_fast, settings=known) as one:
        for _ in range(3):
            head, got = await ask(one, CLAIMS)
            assert got["x-forwarded-for"] == "203.0.113.9, 127.0.0.1"
            assert got["x-forwarded-proto"] == "https"
            assert got["x-forwarded-host"] == "ml.example"
            assert got["x-forwarded-prefix"] == "/gw/fn/web"
            assert got["x-real-ip"] == "203.0.113.9"
            assert got["forwarded"] == (
                'for=203.0.113.9;host="ml.example";proto=https, '
                'for=127.0.0.1;host="127.0.0.1:9";proto=http'
            )
            assert b"\r\nLocation: /gw/fn/web/y\r\n" in head
            assert b"\r\nContent-Location: https://ml.example/gw/fn/web/z\r\n" in head
            assert b"\r\nSet-Cookie: a=b; Path=/gw/fn/web\r\n" in head
            _, plain = await ask(one, b"")
            assert plain["x-forwarded-for"] == "127.0.0.1"
        await one.settled()


@pytest.mark.parametrize("proxies", [(), ("10.0.0.0/8", "::1")])
async def test_anybody_elses_claims_are_replaced(
    tmp_path: Path, is_fast: bool, proxies: tuple[str, ...]
) -> None:
    """A client that is in no trusted network can claim nothing."""
    known = settings(*proxies, is_fast=is_fast)
    async with gate(tmp_path, moved, is_fast=is_fast, settings=known) as one:
        for _ in range(3):
            head, got = await ask(one, CLAIMS)
            assert got["x-forwarded-for"] == "127.0.0.1"
            assert got["x-forwarded-proto"] == "http"
            assert got["x-forwarded-host"] == "127.0.0.1:9"
            assert got["x-forwarded-prefix"] == "/fn/web"
            assert got["forwarded"] == 'for=127.0.0.1;host="127.0.0.1:9";proto=http'
            assert "x-real-ip" not in got
            assert b"\r\nLocation: /fn/web/y\r\n" in head
            assert b"\r\nContent-Location: https://ml.example/z\r\n" in head
            assert b"\r\nSet-Cookie: a=b; Path=/fn/web\r\n" in head
        await one.settled()


async def test_the_same_head_of_two_clients(tmp_path: Path, is_fast: bool) -> None:
    """Whether a client is trusted is decided by its connection, not by what it sends."""
    known = settings("127.0.0.2", is_fast=is_fast)
    async with gate(tmp_path, moved, is_fast=is_fast, settings=known) as one:
        for _ in range(3):
            for client, outer in (("127.0.0.2", b"/gw"), ("127.0.0.3", b"")):
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", one.port, local_addr=(client, 0)
                )
                writer.write(ASKED % CLAIMS)
                answer = await reader.read()
                writer.close()
                assert b"\r\nLocation: %b/fn/web/y\r\n" % outer in answer
                assert (b'"x-real-ip"' in answer) == bool(outer)
        await one.settled()


async def test_the_page_of_a_name_is_found_below_any_prefix(tmp_path: Path, is_fast: bool) -> None:
    """A browser is redirected relatively, so the path before the name stays."""
    async with gate(tmp_path, moved, is_fast=is_fast) as one:
        for name in (b"web", b"web@1", b"web%401"):
            page = b"GET /fn/%b?q HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/html\r\n" % name
            answer = await one.ask(page + b"Connection: close\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 308 ")
            assert b"\r\nLocation: %b/?q\r\n" % name in answer
