"""HTTP/1.1 of the server: requests with a length or in chunks, answers whole or in chunks."""

from __future__ import annotations

import asyncio
import contextlib
from typing import NamedTuple

HEAD_MAX = 64 * 1024
LAST_CHUNK = b"0\r\n\r\n"
PHRASES = {200: "OK", 400: "Bad Request", 404: "Not Found", 429: "Too Many Requests"}
JSON = "application/json"
EVENTS = "text/event-stream; charset=utf-8"


class Gone(Exception):
    """The client has left."""


class Cut(Gone):
    """The server has ended the connection."""


class Request(NamedTuple):
    """One request. `fields` by lower-case name."""

    method: str
    path: str
    fields: dict[str, str]
    body: bytes


async def read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request:
    """Return the next request. Raises Gone at the end of the connection."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ")
        pairs = (line.partition(":") for line in head[1:] if line)
        fields = {name.lower(): value.strip() for name, _, value in pairs}
        if fields.get("expect") == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await _body(reader, fields)
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
        raise Gone from None
    return Request(method, target.partition("?")[0], fields, body)


async def _body(reader: asyncio.StreamReader, fields: dict[str, str]) -> bytes:
    if fields.get("transfer-encoding", "").lower() != "chunked":
        return await reader.readexactly(int(fields.get("content-length", "0")))
    pieces = []
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        pieces.append(await reader.readexactly(size))
        await reader.readexactly(2)
    while (await reader.readuntil(b"\r\n")) != b"\r\n":
        pass
    return b"".join(pieces)


class Client:
    """The client's side of one exchange. Every wait ends with Gone when the client leaves."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._watch = asyncio.ensure_future(reader.read(1))

    async def reply(
        self, status: int, body: bytes, kind: str = JSON, more: dict[str, str] | None = None
    ) -> None:
        """Send a whole answer."""
        self.head(status, kind, {"Content-Length": str(len(body)), **(more or {})})
        await self.send(body)

    def head(self, status: int, kind: str, more: dict[str, str]) -> None:
        """Send the head of an answer."""
        fields = {"Content-Type": kind, **more}
        lines = [f"HTTP/1.1 {status} {PHRASES.get(status, 'Error')}"]
        lines += [f"{name}: {value}" for name, value in fields.items()]
        self._writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))

    def begin_chunks(self) -> None:
        """Send the head of a stream of events."""
        more = {"Cache-Control": "no-cache", "Transfer-Encoding": "chunked"}
        self.head(200, EVENTS, more)

    async def chunk(self, data: bytes) -> None:
        """Send one chunk, with at least one byte."""
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def send(self, data: bytes) -> None:
        """Send bytes."""
        if self._watch.done():
            raise Gone
        self._writer.write(data)
        with contextlib.suppress(OSError):
            await self._writer.drain()

    async def pause(self, seconds: float) -> None:
        """Wait; the end of the connection ends the wait with Gone."""
        await asyncio.wait([self._watch], timeout=seconds)
        if self._watch.done():
            raise Gone

    async def release(self) -> bool:
        """Stop watching; return whether the connection can carry another request."""
        if self._watch.done():
            return False
        self._watch.cancel()
        with contextlib.suppress(asyncio.CancelledError, OSError):
            return not await self._watch
        return True
