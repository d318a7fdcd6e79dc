"""Limits of requests' heads through both client sides."""

from __future__ import annotations

import re
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from pathlib import Path

import pytest

from registry.model.servers import ModelApi
from tests.support.proxied import gate, quiet

HOST = b"Host: 127.0.0.1\r\n"


async def echo(reader: Reader, writer: Writer) -> None:
    """Answer with the request line."""
    line = (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")[0]
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(line), line))
    await writer.drain()


LONG = {
    "a field of 30 KiB": (b"/fn/web/x", b"X-Long: " + b"v" * 30_000, 200),
    "a target of 30 KiB": (b"/fn/web/" + b"l" * 30_000, b"X: y", 200),
    "a field beyond a head": (b"/fn/web/x", b"X-Long: " + b"v" * 33_000, 431),
    "a name beyond a head": (b"/fn/web/x", b"X" * 33_000 + b": y", 431),
    "a target beyond a head": (b"/fn/web/" + b"l" * 33_000, b"X: y", 431),
    "many fields": (b"/fn/web/x", b"\r\n".join([b"X-A: b"] * 97), 200),
    "too many fields": (b"/fn/web/x", b"\r\n".join([b"X-A: b"] * 101), 431),
    "far too many fields": (b"/fn/web/x", b"\r\n".join([b"X-A: b"] * 500), 431),
}


@pytest.mark.parametrize("what", LONG)
@pytest.mark.parametrize("is_split", [False, True])
async def test_the_limits_of_heads_are_those_of_both_readers(
    tmp_path: Path, is_fast: bool, what: str, is_split: bool
) -> None:
    """A head that arrives in two reads, or on a connection that aiohttp has, may be as long."""
    target, lines, status = LONG[what]
    asked = b"GET %b HTTP/1.1\r\n%b%b\r\nConnection: close\r\n\r\n" % (target, HOST, lines)
    async with gate(tmp_path, echo, is_fast=is_fast) as one:
        wire = await one.connect()
        if is_split:
            wire.send(asked[:10])
            await quiet(lambda: 0, 20)
        wire.send(asked[10 if is_split else 0 :])
        head, body = await wire.answer()
        assert head.startswith((b"HTTP/1.1 %d " % status, b"HTTP/1.0 %d " % status))
        if status == 200:
            assert body.startswith(b"GET " + target.removeprefix(b"/fn/web"))
        else:
            assert b'"code":"head_too_large"' in body
        wire.close()
        await one.settled()


@pytest.mark.parametrize("target", [b"/fn/web/x", b"/v1/chat/completions"])
async def test_a_head_that_takes_too_long_is_refused_once(
    tmp_path: Path, is_fast: bool, target: bytes
) -> None:
    """The time limits of all other connections hold on, while the client of such a head neither
    sends more nor closes."""
    async with gate(tmp_path, echo, is_fast=is_fast, api=ModelApi()) as one:
        seconds = int(one.gateway.invoker.settings.head_read_s)
        wires = []
        for _ in range(2):
            wires.append(await one.connect())
            wires[-1].send(b"POST %b HTTP/1.1\r\n%b" % (target, HOST))
            await quiet(lambda: 0, 20)
            for _ in range(seconds + 1):
                one.sweep()
        for wire in wires:
            answer = await wire.rest()
            assert re.findall(rb"HTTP/1\.1 (\d{3}) ", answer) == [b"408"]
            wire.close()
        one.sweep()
        await one.settled()
