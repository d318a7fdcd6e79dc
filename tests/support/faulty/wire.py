"""HTTP/1.1 on one connection: strict request heads, streamed bodies both ways (RFC 9112)."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

HEAD_MAX = 1 << 17
PIECE = 1 << 16
REASONS = {100: "Continue", 101: "Switching Protocols", 103: "Early Hints", 200: "OK"}
_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([\x21-\x7e]+) HTTP/1\.1")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t\x20-\x7e\x80-\xff]*?)[ \t]*")


class Malformed(Exception):
    """Bytes that are no request of RFC 9112, or one whose end is ambiguous."""


class Gone(Exception):
    """The connection ended in the middle of a request."""


@dataclass
class Request:
    """One request head. `fields` in order, names in lower case. `length` -1: chunked."""

    method: str
    target: str
    fields: list[tuple[str, str]]
    length: int = 0
    path: str = ""
    query: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parts = urlsplit(self.target)
        self.path = parts.path
        self.query = dict(parse_qsl(parts.query, keep_blank_values=True))

    def get(self, name: str, default: str = "") -> str:
        """Return the value of a field, joined if there are several."""
        return ", ".join(value for known, value in self.fields if known == name) or default

    def number(self, name: str, default: int) -> int:
        """Return a whole number of the query."""
        return int(self.query.get(name, default))


def parse(head: bytes) -> Request:
    """Parse a head without its empty line. Raises Malformed."""
    first, *lines = head.split(b"\r\n")
    match = _LINE.fullmatch(first)
    if match is None:
        raise Malformed(f"request line {first[:200]!r}")
    fields = []
    for line in lines:
        found = _FIELD.fullmatch(line)
        if found is None:
            raise Malformed(f"field line {line[:200]!r}")
        fields.append((found[1].decode().lower(), found[2].decode("latin-1")))
    return Request(match[1].decode(), match[2].decode(), fields, _length(fields))


def _length(fields: list[tuple[str, str]]) -> int:
    """Return the body's length, -1 for chunked (RFC 9112, section 6.3). Raises Malformed."""
    lengths = [value for name, value in fields if name == "content-length"]
    codings = [value.lower() for name, value in fields if name == "transfer-encoding"]
    hosts = [value for name, value in fields if name == "host"]
    if len(hosts) != 1:
        raise Malformed(f"{len(hosts)} Host fields")
    if len(lengths) + len(codings) > 1:
        raise Malformed(f"lengths {lengths} and codings {codings}")
    if codings:
        if codings != ["chunked"]:
            raise Malformed(f"coding {codings}")
        return -1
    if lengths and not (lengths[0].isascii() and lengths[0].isdecimal()):
        raise Malformed(f"length {lengths[0]!r}")
    return int(lengths[0]) if lengths else 0


def encode_head(status: int, fields: Mapping[str, str]) -> bytes:
    """Encode an answer's head."""
    lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Status')}"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class Exchange:
    """One request and the connection on which its answer is written.

    `is_over` tells the connection's loop to read no further request. `own` are fields that answers
    have beside those of their path.
    """

    def __init__(
        self,
        request: Request,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        own: Mapping[str, str] | None = None,
    ) -> None:
        self.request = request
        self._own = own or {}
        self.reader = reader
        self.writer = writer
        self.is_over = request.get("connection").lower() == "close"
        self.is_read = request.length == 0
        self.trailers: list[str] = []
        self._is_awaited = request.get("expect").lower() == "100-continue"

    def go_on(self) -> None:
        """Send 100 if the client waits for it."""
        if self._is_awaited:
            self.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._is_awaited = False

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the request's body as it arrives; send 100 first if the client waits for it."""
        self.go_on()
        try:
            if self.request.length < 0:
                async for piece in self._chunks():
                    yield piece
            else:
                left = self.request.length
                while left:
                    piece = await self.reader.read(min(left, PIECE))
                    if not piece:
                        raise Gone("body")
                    left -= len(piece)
                    yield piece
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise Gone("body") from error
        self.is_read = True

    async def _chunks(self) -> AsyncIterator[bytes]:
        while True:
            line = await self.reader.readuntil(b"\r\n")
            size = line[:-2].partition(b";")[0].strip()
            if not re.fullmatch(rb"[0-9A-Fa-f]{1,16}", size):
                raise Malformed(f"chunk size {line[:100]!r}")
            left = int(size, 16)
            if not left:
                break
            while left:
                piece = await self.reader.read(min(left, PIECE))
                if not piece:
                    raise Gone("chunk")
                left -= len(piece)
                yield piece
            if await self.reader.readexactly(2) != b"\r\n":
                raise Malformed("chunk without its end")
        while (line := await self.reader.readuntil(b"\r\n")) != b"\r\n":
            self.trailers.append(line[:-2].decode("latin-1"))

    async def whole(self) -> bytes:
        """Return the request's body."""
        return b"".join([piece async for piece in self.body()])

    def head(self, status: int, fields: Mapping[str, str] | None = None) -> None:
        """Write an answer's head."""
        self.writer.write(encode_head(status, {**self._own, **(fields or {})}))

    def chunked(self, fields: Mapping[str, str] | None = None, status: int = 200) -> None:
        """Write the head of a chunked answer."""
        self.head(status, {**(fields or {}), "Transfer-Encoding": "chunked"})

    async def chunk(self, data: bytes) -> None:
        """Write one chunk."""
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def end(self, trailers: str = "") -> None:
        """Write the last chunk, with trailer lines that end in CRLF."""
        await self.send(f"0\r\n{trailers}\r\n".encode())

    async def send(self, data: bytes) -> None:
        """Write bytes; wait while the peer reads too slowly."""
        self.writer.write(data)
        await self.writer.drain()

    async def answer(
        self, body: bytes = b"", status: int = 200, fields: Mapping[str, str] | None = None
    ) -> None:
        """Write a whole answer; to HEAD without its body.

        In one piece: a server that is killed has sent all of it, or nothing.
        """
        length = {"Content-Length": str(len(body))}
        head = encode_head(status, {**self._own, **(fields or {}), **length})
        await self.send(head if self.request.method == "HEAD" else head + body)

    async def json(self, data: Any) -> None:
        """Write a whole answer as JSON."""
        await self.answer(json.dumps(data).encode(), fields={"Content-Type": "application/json"})

    def reset(self) -> None:
        """End the connection with RST."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()
        self.is_over = True

    async def close(self) -> None:
        """End the connection with FIN after everything written has been sent."""
        self.is_over = True
        await self.writer.drain()
        self.writer.close()
