"""HTTP/1.1 client that hides nothing: interim answers, framing, trailers, how the answer ended."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

PIECE = 1 << 16
LIMIT = 1 << 20
ANSWER_S = 60.0
End = Literal["whole", "cut", "reset", "late"]
_HEAD = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r\n]*")


class NoHttp(AssertionError):
    """The server sent bytes that are no valid HTTP/1.1."""


@dataclass
class Got:
    """One answer. `end`: "whole", or how it ended before: FIN (cut), RST, or not in time (late).

    Field names are in lower case. Status 0: no final head came.
    """

    status: int = 0
    fields: list[tuple[str, str]] = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)
    end: End = "cut"
    interims: list[int] = field(default_factory=list)
    trailers: list[str] = field(default_factory=list)

    def get(self, name: str) -> str:
        """Return the value of a field, "" if there is none."""
        return ", ".join(value for known, value in self.fields if known == name)

    def json(self) -> Any:
        """Return the decoded JSON body."""
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """Code of the gateway's problem document, "" for any other answer."""
        is_problem = self.get("content-type") == "application/problem+json"
        return str(json.loads(self.body)["code"]) if is_problem else ""

    @property
    def closes(self) -> bool:
        """Whether the answer announces the end of the connection."""
        return self.get("connection").lower() == "close"


class Connection:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        """Send bytes. A connection that the server has closed is no error: its answer counts."""
        try:
            self.writer.write(data)
            await self.writer.drain()
        except ConnectionError:
            pass

    async def answer(self, method: str = "GET", seconds: float = ANSWER_S) -> Got:
        """Read one answer to its end. Raises NoHttp."""
        got = Got()
        try:
            async with asyncio.timeout(seconds):
                await self._read(method, got)
        except ConnectionError:
            got.end = "reset"
        except asyncio.IncompleteReadError as error:
            got.body += error.partial if got.status else b""
            got.end = "cut"
        except TimeoutError:
            got.end = "late"
        return got

    async def rest(self, seconds: float = ANSWER_S) -> bytes:
        """Return everything that comes until the server ends the connection."""
        found = bytearray()
        try:
            async with asyncio.timeout(seconds):
                while piece := await self.reader.read(PIECE):
                    found += piece
        except (ConnectionError, TimeoutError):
            pass
        return bytes(found)

    async def _read(self, method: str, got: Got) -> None:
        while True:
            head = await self.reader.readuntil(b"\r\n\r\n")
            status, fields = parse_head(head)
            if status >= 200 or status == 101:
                break
            got.interims.append(status)
        got.status, got.fields = status, fields
        if method == "HEAD" or status in (101, 204, 304):
            pass
        elif got.get("transfer-encoding"):
            await self._chunks(got)
        elif length := got.get("content-length"):
            await self._counted(got, int(length))
        else:
            while piece := await self.reader.read(PIECE):
                got.body += piece
        got.end = "whole"

    async def _counted(self, got: Got, left: int) -> None:
        while left:
            piece = await self.reader.read(min(left, PIECE))
            if not piece:
                raise asyncio.IncompleteReadError(b"", left)
            got.body += piece
            left -= len(piece)

    async def _chunks(self, got: Got) -> None:
        while True:
            line = await self.reader.readuntil(b"\r\n")
            if not re.fullmatch(rb"[0-9A-Fa-f]+[ \t]*(;.*)?\r\n", line):
                raise NoHttp(f"chunk size {line!r}")
            size = int(line.partition(b";")[0], 16)
            if not size:
                break
            await self._counted(got, size)
            if await self.reader.readexactly(2) != b"\r\n":
                raise NoHttp("a chunk without its end")
        while (line := await self.reader.readuntil(b"\r\n")) != b"\r\n":
            got.trailers.append(line[:-2].decode("latin-1"))


def parse_head(head: bytes) -> tuple[int, list[tuple[str, str]]]:
    """Return status and fields of an answer's head. Raises NoHttp, also for ambiguous framing."""
    first, *lines = head[:-4].split(b"\r\n")
    match = _HEAD.fullmatch(first)
    if match is None:
        raise NoHttp(f"status line {first[:200]!r}")
    fields = []
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not re.fullmatch(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
            raise NoHttp(f"field line {line[:200]!r}")
        fields.append((name.decode().lower(), value.decode("latin-1").strip(" \t")))
    names = [name for name, _ in fields]
    if names.count("content-length") + names.count("transfer-encoding") > 1:
        raise NoHttp(f"ambiguous framing: {fields}")
    return int(match[1]), fields


def request(
    method: str,
    target: str,
    body: bytes | None = None,
    fields: Mapping[str, str] | None = None,
) -> bytes:
    """Encode a request; a body has its length."""
    heads = {"Host": "127.0.0.1", **(fields or {})}
    if body is not None:
        heads["Content-Length"] = str(len(body))
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in heads.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + (body or b"")


def chunks(pieces: Iterable[bytes], trailers: str = "") -> bytes:
    """Encode a chunked body; trailer lines end in CRLF."""
    coded = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return coded + f"0\r\n{trailers}\r\n".encode()


@asynccontextmanager
async def connected(port: int, over: socket.socket | None = None) -> AsyncIterator[Connection]:
    """Open a connection, or take the one `over` a socket; it is closed with the block."""
    where = ("127.0.0.1", port) if over is None else ()
    reader, writer = await asyncio.open_connection(*where, sock=over, limit=LIMIT)
    try:
        yield Connection(reader, writer)
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


async def ask(
    port: int,
    method: str,
    target: str,
    body: bytes | None = None,
    fields: Mapping[str, str] | None = None,
    seconds: float = ANSWER_S,
) -> Got:
    """Send one request over a connection of its own; return the answer."""
    async with connected(port) as connection:
        sending = asyncio.ensure_future(connection.send(request(method, target, body, fields)))
        got = await connection.answer(method, seconds)
        sending.cancel()
        await asyncio.wait([sending])
        return got
