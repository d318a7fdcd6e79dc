"""The HTTP server behind every measured proxy: short, large and streamed answers, at little cost.

`python -m benchmarks.references.upstream PORT`, or the file alone as the command of a function; it
prints its port. POST /small and /take answer 190 bytes, POST /give answers 1 MiB, GET
/sse?n=EVENTS&ms=PERIOD sends events, each with the monotonic clock's nanoseconds of its sending.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any
from urllib.parse import parse_qs

SMALL = b'{"answer": "' + b"x" * 176 + b'"}'
LARGE = b"x" * (1 << 20)
FILLING = b'{"choices":[{"index":0,"delta":{"content":"' + b"x" * 130 + b'"}}],"at":'
STREAM = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
LAST = b"data: [DONE]\n\n"
BACKLOG = 4096


def whole(body: bytes) -> bytes:
    """Return an answer with a length."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


SMALL_ANSWER, LARGE_ANSWER = whole(SMALL), whole(LARGE)


def chunk(data: bytes) -> bytes:
    """Encode one chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Connection(asyncio.Protocol):
    """One connection. It trusts its requests: only a benchmark sends them."""

    def __init__(self) -> None:
        self._head = b""
        self._left = 0
        self._answer = SMALL_ANSWER
        self._transport: Any = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio callback."""
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        """asyncio callback: end the stream."""
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        """asyncio callback: read a head, or drop a part of a body."""
        if self._left:
            self._left -= len(data)
            if self._left <= 0:
                self._transport.write(self._answer)
            return
        self._head += data
        head, found, rest = self._head.partition(b"\r\n\r\n")
        if found:
            self._head = b""
            self._begin(head, len(rest))

    def _begin(self, head: bytes, came: int) -> None:
        target = head.split(b" ", 2)[1]
        if target.startswith(b"/sse"):
            given = parse_qs(target.decode().partition("?")[2])
            self._transport.write(STREAM)
            self._send(int(given["n"][0]), int(given["ms"][0]) / 1e3)
            return
        self._answer = LARGE_ANSWER if target.startswith(b"/give") else SMALL_ANSWER
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        self._left = int(length or 0) - came
        if self._left <= 0:
            self._left = 0
            self._transport.write(self._answer)

    def _send(self, left: int, period_s: float) -> None:
        if not left:
            self._transport.write(chunk(LAST) + b"0\r\n\r\n")
            return
        event = b"data: %b%d}\n\n" % (FILLING, time.monotonic_ns())
        self._transport.write(chunk(event))
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(period_s, self._send, left - 1, period_s)


async def serve(port: int) -> None:
    """Serve until the process ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Connection, "127.0.0.1", port, backlog=BACKLOG)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    try:
        from uvloop import run
    except ImportError:
        from asyncio import run
    run(serve(int(sys.argv[1])))
