"""A function's own host in front of a small server: requests, cookies and answers as bytes."""

from __future__ import annotations

import json
import re
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer

from gateway.pages.cookies import LIFETIME_S, make_value
from tests.support.proxied import SECRET, Gate

OWN = b"Host: web.localhost:80\r\n"
CLOSE = b"Connection: close\r\n"
CALLER, OTHER = "fn_key-of-a-caller", "fn_xxx-of-another"
KEYS = {CALLER: ("invoke:web",), OTHER: ("invoke:digits",)}
KEY_ID = CALLER[3:9]
APP = "https://app.example"
UPGRADE = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
SWITCHED = (
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
)


class App:
    """The function's server: answers each request with its first line. `heads`: what it got."""

    def __init__(self, *fields: bytes) -> None:
        self.heads: list[bytes] = []
        self._fields = b"".join(field + b"\r\n" for field in fields)

    async def __call__(self, reader: Reader, writer: Writer) -> None:
        """Serve one connection."""
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            if b"Upgrade: websocket" in head:
                writer.write(SWITCHED)
                await reader.read(-1)
                return
            length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
            await reader.readexactly(int(length[1]) if length else 0)
            text = head.partition(b"\r\n")[0]
            lines = b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\n\r\n"
            writer.write(lines % (self._fields, len(text)) + text)


def cookie(name: str = "web", key: str = KEY_ID, age_s: int = 0) -> bytes:
    """Return a field Cookie with the gateway's cookie between two others."""
    value = make_value(SECRET, key, name, LIFETIME_S - age_s)
    return f"Cookie: a=b; fngate={value}; c=d\r\n".encode()


async def ask(one: Gate, line: bytes, *fields: bytes, body: bytes = b"") -> bytes:
    """Return the answer to one request."""
    length = b"Content-Length: %d\r\n" % len(body) if body else b""
    head = b"%b HTTP/1.1\r\n%b\r\n" % (line, b"".join((*fields, CLOSE, length)))
    return await one.ask(head + body)


def status(answer: bytes) -> int:
    """Return the status of an answer."""
    return int(answer.split(b" ", 2)[1])


def code(answer: bytes) -> str:
    """Return the code of a problem document."""
    return str(json.loads(answer.partition(b"\r\n\r\n")[2])["code"])


def field(answer: bytes, name: bytes) -> list[bytes]:
    """Return the values of a field of an answer."""
    head = answer.partition(b"\r\n\r\n")[0]
    return re.findall(rb"(?i)\r\n" + name + rb": ([^\r]*)", head)


def known(one: Gate) -> int:
    """Return the number of heads that the fast side remembers."""
    assert one.fast is not None
    return len(one.fast.parts.heads._known)
