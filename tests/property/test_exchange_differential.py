"""Differential tests: both client sides of exchanges understand the same bytes alike.

Requests are generated with all that is usual, unusual and malformed; two gateways in front of the
same server must answer alike, and the server must get the same.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import re
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
import uvloop

from gateway.pages.cookies import make_value
from registry.model.servers import PathRules
from tests.support.doses import amount
from tests.support.proxied import SECRET, Gate, gate, quiet

pytestmark = pytest.mark.slow

KEYS = {"fn_key-of-a-caller": ("invoke:web",), "fn_key-of-another": ("invoke:digits",)}
PATHS = PathRules(deny=("/secret/*",), free=("/free/*",))
METHODS = (
    b"GET",
    b"GET",
    b"HEAD",
    b"POST",
    b"PUT",
    b"DELETE",
    b"OPTIONS",
    b"PATCH",
    b"PROPFIND",
    b"TRACE",
)
TARGETS = (
    *(
        b"/fn/web/x",
        b"/fn/web/",
        b"/fn/web/a/b?c=d&e",
        b"/fn/web@1/x",
        b"/fn/web%401/x",
        b"/fn/web",
    ),
    *(
        b"/fn/web?q",
        b"/fn/web/%2e%2e/x",
        b"/fn/web/../x",
        b"/fn/web//x",
        b"/fn/web/a%00b",
        b"/fn/web@2/x",
    ),
    *(b"/fn/WEB/x", b"/fn/nobody/x", b"/fn/digits/x", b"/fn/web/secret/x", b"/fn/web/SECRET%2Fx"),
    *(b"/fn/web/free/x", b"/fn/web/s/404", b"/fn/web/s/503", b"/fn/web/s/204", b"/fn/web/chunked"),
    *(
        b"/fn/web/close",
        b"/fn/web/;x=/y",
        b"/fn/we%62/x",
        b"/fn//x",
        b"/fn/web/\\x",
        b"/fn/web/x#y",
    ),
    *(b"http://127.0.0.1/fn/web/x", b"/fn/web/" + b"l" * 900),
    *(b"/", b"/lab?x", b"/.fngate/enter", b"/.fngate/x", b"/ui/", b"/admin/v1/keys", b"/healthz"),
)
HOSTS = (
    *[b"Host: 127.0.0.1"] * 12,
    *[b"Host: web.localhost"] * 6,
    *(b"Host: example.org", b"host:localhost:80", b"Host: a b", b"", b"Host: digits.localhost"),
    *(b"HOST:\tWeb.LocalHost:80 ", b"Host: x\r\nHost: web.localhost", b"Host: a.web.localhost"),
)
KEY_LINES = (
    *[b"Authorization: Bearer fn_key-of-a-caller"] * 4,
    *[b"Fn-Key: fn_key-of-a-caller"] * 4,
    *(b"Fn-Key: fn_key-of-a-caller\r\nAuthorization: Basic eDp5", b"Fn-Key: nobody", b"X-None: 1"),
    *(b"Authorization: Bearer fn_key-of-another", b"Authorization: Basic eDp5"),
)
COOKIE = make_value(SECRET, "key-of", "web", 9).encode()
LINES = (
    *(b"Accept: text/html", b"Accept: */*", b"User-Agent: x", b"X-Empty:", b"X-Two: 1\r\nX-Two: 2"),
    *(b"Cookie: fngate=secret; a=b", b"Cookie: a=b\r\nCookie: c=d", b"X-Forwarded-For: 1.2.3.4"),
    *(
        b"Forwarded: for=9.9.9.9",
        b"X_Forwarded_For: 1.2.3.4",
        b"X-Real-IP: 1.1.1.1",
        b"TE: trailers",
    ),
    *(b"Upgrade: h2c", b"HTTP2-Settings: AAA", b"Proxy-Authorization: x", b"Keep-Alive: timeout=5"),
    *(b"X-Request-Id: mine-1", b"X-Request-Id: not ok", b"Prefer: wait=3", b"Priority: u=1"),
    *(
        b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        b"Origin: http://a.b",
    ),
    *(b"Origin: https://app.example", b"Access-Control-Request-Method: PUT"),
    *(b"Sec-Fetch-Mode: navigate", b"Cookie: fngate=" + COOKIE, b"Origin: http://web.localhost"),
    *(b"Origin: http://127.0.0.1", b"Sec-Fetch-Site: cross-site", b"X-Latin: \xe4\xf6", b"X:  y  "),
    *(b"Expect: 100-continue", b"Expect: 200-ok", b"X-Long: " + b"v" * 3000, b"Content-Type: a/b"),
)
BAD_LINES = (
    *(b"X: y\r\n folded", b"X : y", b"no colon", b"X(: y", b"X: a\x00b", b"X: a\x01b", b": y"),
    *(b"Content-Length: +3", b"Content-Length: 3\r\nContent-Length: 3", b"Transfer-Encoding: gzip"),
    *(
        b"Transfer-Encoding: chunked\r\nContent-Length: 3",
        b"Connection: content-length",
        b"X: a\nb",
    ),
)
CONNECTIONS = (*[b"Connection: close"] * 8, b"Connection: close, X-Two", b"connection: CLOSE")
BAD_CHUNKS = (b"x\r\nabc\r\n0\r\n\r\n", b"3\r\nabcd\r\n0\r\n\r\n", b"-1\r\n\r\n")
CHUNKS = (
    *(b"3\r\nabc\r\n0\r\n\r\n", b"1;x=y\r\na\r\n02\r\nbc\r\n0\r\n\r\n"),
    *(b"A\r\n0123456789\r\n0\r\n\r\n", b"0\r\n\r\n"),
    *BAD_CHUNKS,
)
_UNEQUAL = re.compile(
    rb"(?i)\r\n(?:date|server|server-timing|x-request-id|connection|retry-after|fn-revision"
    rb"|content-length|transfer-encoding): [^\r]*"
)
"""Fields that may differ: times, ids, and what depends on who writes the answer."""


class Request(NamedTuple):
    """One request in pieces; the first has the whole request line."""

    pieces: tuple[bytes, ...]
    has_bad_body: bool
    """Whether its chunks are malformed: aiohttp sees that before it looks at the head."""

    @property
    def data(self) -> bytes:
        """All bytes."""
        return b"".join(self.pieces)


def make_request(random: Random) -> Request:
    """Return a random request; about a tenth is malformed."""
    line = b"%b %b HTTP/1.%d" % (
        random.choice(METHODS),
        random.choice(TARGETS),
        random.random() < 0.9,
    )
    lines = [random.choice(HOSTS), random.choice(KEY_LINES)]
    lines += random.sample(LINES, random.choice((0, 1, 2, 3)))
    if random.random() < 0.1:
        lines.append(random.choice(BAD_LINES))
    body = b""
    kind = random.random()
    if kind < 0.3:
        body = random.randbytes(random.choice((0, 1, 100, 5000, 70_000)))
        lines.append(b"Content-Length: %d" % len(body))
    elif kind < 0.5:
        body = random.choice(CHUNKS)
        lines.append(b"Transfer-Encoding: chunked")
    random.shuffle(lines)
    lines.append(random.choice(CONNECTIONS))
    data = b"\r\n".join(each for each in (line, *lines) if each) + b"\r\n\r\n" + body
    cuts = sorted(
        random.randrange(len(line) + 2, len(data)) for _ in range(random.choice((0, 1, 3)))
    )
    edges = [0, *cuts, len(data)]
    return Request(tuple(data[a:b] for a, b in itertools.pairwise(edges)), body in BAD_CHUNKS)


class Server:
    """The function's server: answers as its path asks, and records what it got."""

    def __init__(self) -> None:
        self.got: list[tuple[bytes, str]] = []

    async def __call__(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Serve one connection."""
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            body = await _body(head, reader, writer)
            plain = re.sub(rb"(?i)\r\nx-request-id: [^\r]*", b"", head)
            self.got.append((plain, hashlib.sha256(body).hexdigest()))
            self._answer(head.partition(b"\r\n")[0], len(body), writer)
            if b"/close" in head:
                return

    def _answer(self, line: bytes, size: int, writer: StreamWriter) -> None:
        text = b"%b|%d" % (line, size)
        status = re.search(rb" /s/(\d+)", line)
        start = b"HTTP/1.1 %b X\r\nX-From: server\r\nSet-Cookie: a=b\r\n" % (
            status[1] if status else b"200"
        )
        if b" /s/204" in line:
            writer.write(start + b"\r\n")
        elif b"/chunked" in line:
            content = (
                b"" if line.startswith(b"HEAD") else b"%x\r\n%b\r\n0\r\n\r\n" % (len(text), text)
            )
            writer.write(start + b"Transfer-Encoding: chunked\r\n\r\n" + content)
        elif b"/close" in line:
            writer.write(start + b"\r\n" + (b"" if line.startswith(b"HEAD") else text))
        else:
            content = b"" if line.startswith(b"HEAD") else text
            writer.write(start + b"Content-Length: %d\r\n\r\n" % len(text) + content)


async def _body(head: bytes, reader: StreamReader, writer: StreamWriter) -> bytes:
    if b"\r\nExpect: 100-continue" in head:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
    if length:
        return await reader.readexactly(int(length[1]))
    body = b""
    if b"\r\nTransfer-Encoding: chunked" in head:
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readuntil(b"\r\n")
    return body


class Seen(NamedTuple):
    """What one gateway did with a request."""

    status: bytes
    head: bytes
    body: bytes
    got: tuple[tuple[bytes, str], ...]


async def ask(
    one: Gate,
    server: Server,
    request: Request,
    address: str = "127.0.0.1",
    between: Callable[[], None] | None = None,
) -> Seen:
    """Send a request in pieces; return what came back, and what the server got.

    `address`: of the client. `between`: called when the gateway has read the first of several
    pieces.
    """
    server.got.clear()
    wire = await one.connect(address)
    for number, piece in enumerate(request.pieces):
        if number and between is not None:
            await quiet(lambda: 0, 20)
            between()
            between = None
        wire.send(piece)
        await asyncio.sleep(0)
    try:
        raw = await wire.rest()
    except ConnectionError:
        raw = b""
    finally:
        wire.close()
    raw = re.sub(rb"^(?:HTTP/1.1 100 Continue\r\n\r\n)+", b"", raw)
    head, _, body = raw.partition(b"\r\n\r\n")
    status = head[9:12]
    if status in (b"400", b""):
        # aiohttp's own parser refuses in its own words; bytes after those reset the connection.
        return Seen(b"400", b"", b"", ())
    head = _UNEQUAL.sub(b"", head.partition(b"\r\n")[2].join((b"\r\n", b"")))
    if body.startswith(b'{"type":"urn:fngate:problem:'):
        body = re.sub(rb'"detail":"[^"]*"', b"", body)
    return Seen(status, head, body, tuple(server.got))


def settings(server: Server, *, is_fast: bool) -> dict[str, Any]:
    """Return the arguments of a gateway under comparison."""
    return {"handler": server, "is_fast": is_fast, "keys": KEYS, "paths": PATHS}


async def compare(folder: Path, seeds: list[str]) -> dict[bytes, int]:
    """Compare one request per seed; return how often each status came."""
    fast_server, plain_server = Server(), Server()
    statuses: dict[bytes, int] = {}
    async with (
        gate(folder / "f", **settings(fast_server, is_fast=True)) as fast,
        gate(folder / "p", **settings(plain_server, is_fast=False)) as plain,
    ):
        for seed in seeds:
            request = make_request(Random(seed))
            left = await ask(fast, fast_server, request)
            right = await ask(plain, plain_server, request)
            if request.has_bad_body and right.status == b"400":
                assert left.status[:1] == b"4"
                assert not left.got
                continue
            assert left == right, f"seed {seed!r}: {request.data[:2000]!r}\n{left}\n{right}"
            statuses[left.status] = statuses.get(left.status, 0) + 1
        await fast.settled()
        await plain.settled()
    return statuses


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_both_client_sides_agree(tmp_path: Path, loop: str) -> None:
    """Statuses, fields, bodies and what the server gets are equal, on both event loops."""
    seeds = [f"{loop}/{number}" for number in range(amount(400, 3000))]
    run = uvloop.run if loop == "uvloop" else asyncio.run
    statuses = run(compare(tmp_path, seeds))
    assert {b"200", b"204", b"400", b"401", b"403", b"404", b"421", b"503"} <= statuses.keys()
    assert statuses[b"200"] > len(seeds) / 8
