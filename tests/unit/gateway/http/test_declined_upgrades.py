"""Tests of requests that follow one whose upgrade is declined, in the same bytes."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.support.proxied import gate

OPTIONS = b"Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
TOKENS = [b"h2c", b"websocket", b"foo/1, bar", b"TLS/1.0", b"HTTP/2.0", b""]
FIELDS = [b"Upgrade: ", b"uPGRADE:\t", b"X: \r\nupgrade:"]
TEXT = b"\r\n\r\n\nupgrade: h2c\r\n\r\nnot yet"
BODIES = {
    "none": b"\r\n",
    "empty": b"Content-Length: 0\r\n\r\n",
    "sized": b"Content-Length: %d\r\n\r\n%b" % (len(TEXT), TEXT),
    "chunks": b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(TEXT), TEXT),
    "trailers": b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: y\r\n\r\n",
}
PATHS = [b"/healthz", b"/v2/health/live", b"/v2"]
LAST = b"GET /nothing HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


async def unused(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve nothing: no request of this file is for a server."""


def request(rng: random.Random, token: bytes, body: bytes) -> bytes:
    """Return a request that offers an upgrade to `token`, if there is one."""
    upgrade = OPTIONS + rng.choice(FIELDS) + token + b"\r\n" if token else b""
    line = b"GET " + rng.choice(PATHS) + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    return line + upgrade + body


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("token", TOKENS)
async def test_what_follows_a_declined_upgrade_is_answered(
    tmp_path: Path, is_fast: bool, token: bytes, kind: str
) -> None:
    """Each pipelined request has its answer, wherever the bytes are cut."""
    rng = random.Random(f"{token!r} {kind}")
    async with gate(tmp_path, unused, is_fast=is_fast) as one:
        for _ in range(8):
            others = [
                request(rng, rng.choice(TOKENS), rng.choice(list(BODIES.values())))
                for _ in range(rng.randrange(3))
            ]
            data = b"".join([*others, request(rng, token, BODIES[kind]), *others, LAST])
            cuts = sorted(rng.sample(range(1, len(data)), rng.choice([0, 1, 2, 9])))
            wire = await one.connect()
            for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
                wire.send(data[begin:end])
                await asyncio.sleep(0.001)
            answers = await wire.rest()
            wire.close()
            assert answers.count(b"HTTP/1.1 ") == 2 * len(others) + 2, data
            assert b"HTTP/1.1 400 " not in answers, data
