"""Requests to /v1, and small servers that answer them, for tests over real sockets."""

from __future__ import annotations

import asyncio
import json
import re
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, NamedTuple

from gateway.proxy.framing import encode_chunk
from registry.model.servers import ModelApi
from tests.support.proxied import Gate, Handler, Wire, gate

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def event(**data: Any) -> bytes:
    """Return one event of a stream."""
    return b"data: %b\n\n" % json.dumps(data).encode()


def document(**data: Any) -> bytes:
    """Return a complete answer with a JSON body."""
    body = json.dumps(data).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )


def head(path: str, *fields: str, method: str = "POST") -> bytes:
    """Return the head of a request."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *fields, "", ""]).encode()


def post(path: str, body: bytes | dict[str, Any], *fields: str, closes: bool = True) -> bytes:
    """Return a complete request. `closes`: the connection ends with its answer."""
    if isinstance(body, dict):
        body = json.dumps(body).encode()
    more = ("Connection: close",) if closes else ()
    return head(path, *fields, *more, f"Content-Length: {len(body)}") + body


class Asked(NamedTuple):
    """A request as the server of a model gets it."""

    line: str
    fields: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body's data."""
        return json.loads(self.body)


async def read_request(reader: Reader) -> Asked:
    """Return the next request that a server gets, whose body has a length."""
    raw = await reader.readuntil(b"\r\n\r\n")
    line, *lines = raw[:-4].decode().split("\r\n")
    fields = {name.lower(): value for name, _, value in (one.partition(": ") for one in lines)}
    return Asked(line, fields, await reader.readexactly(int(fields.get("content-length", 0))))


class ModelServer:
    """A server of a model: `answer` returns the bytes of the answer to a request, None to end the
    connection instead. `asked` has the requests that it got."""

    def __init__(self, answer: Callable[[Asked], bytes | None] | bytes) -> None:
        self.asked: list[Asked] = []
        self._answer = answer if callable(answer) else lambda _asked: answer

    async def __call__(self, reader: Reader, writer: Writer) -> None:
        """Serve one connection."""
        while True:
            asked = await read_request(reader)
            self.asked.append(asked)
            found = self._answer(asked)
            if found is None:
                return
            writer.write(found)


class Answer(NamedTuple):
    """An answer as the client gets it."""

    status: int
    fields: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body's data."""
        return json.loads(self.body)


def parsed(raw: bytes) -> Answer:
    """Return the answer in the bytes of a whole connection. Interim answers are left out."""
    first, _, rest = raw.partition(b"\r\n\r\n")
    if re.match(rb"HTTP/1\.1 1", first):
        return parsed(rest)
    line, *lines = first.decode().split("\r\n")
    pairs = [one.partition(": ") for one in lines]
    names = [name.lower() for name, _, _ in pairs]
    assert len(set(names)) == len(names), names
    fields = {name.lower(): value for name, _, value in pairs}
    return Answer(int(line.split(" ")[1]), fields, rest)


def dechunked(body: bytes) -> tuple[bytes, bool]:
    """Return the content of chunks, and whether the last one is there."""
    content = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        count = int(size, 16)
        if not count:
            assert rest == b"\r\n", rest
            return content, True
        content += rest[:count]
        body = rest[count + 2 :]
    return content, False


async def asks(one: Gate, request: bytes) -> Answer:
    """Return the answer to one request."""
    return parsed(await one.ask(request))


async def answered(wire: Wire) -> Answer:
    """Return the next answer on a connection, which has a Content-Length."""
    return parsed(b"".join(await wire.answer()))


def models(
    folder: Path, handler: Handler, *, is_fast: bool, api: ModelApi | None = None, **more: Any
) -> AbstractAsyncContextManager[Gate]:
    """Run a gateway with one model, "web"."""
    return gate(folder, handler, is_fast=is_fast, api=api or ModelApi(), **more)


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the seconds."""
        return self.now


async def chunks(reader: asyncio.StreamReader) -> bytes:
    """Return the content of the next chunk, b"" for the last one."""
    size = int(await asyncio.wait_for(reader.readuntil(b"\r\n"), 60), 16)
    content = await asyncio.wait_for(reader.readexactly(size + 2), 60)
    return content[:-2]


def chunked(*pieces: bytes) -> bytes:
    """Return pieces as chunks."""
    return b"".join(map(encode_chunk, pieces))
