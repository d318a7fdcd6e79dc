"""Calls one URL over many connections and prints how many answers came: a process of its own."""

from __future__ import annotations

import asyncio
import sys
import time

import uvloop


class Caller(asyncio.Protocol):
    """One keep-alive connection: the next request goes out when an answer has come."""

    def __init__(self, request: bytes, count: list[int], until_s: float) -> None:
        self._request = request
        self._count = count
        self._until_s = until_s
        self._buffer = b""
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's: begin."""
        self._transport = transport
        transport.write(self._request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        """asyncio's: bytes came; answers are told apart by Content-Length."""
        self._buffer += data
        while True:
            head, found, rest = self._buffer.partition(b"\r\n\r\n")
            if not found:
                return
            if not head.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"expected 200, got {head[:200]!r} {rest[:300]!r}")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            if len(rest) < length:
                return
            self._buffer = rest[length:]
            self._count[0] += 1
            if time.perf_counter() < self._until_s:
                self._transport.write(self._request)  # type: ignore[attr-defined]
            else:
                self._transport.close()
                if not self.done.done():
                    self.done.set_result(None)


async def load(port: int, connections: int, seconds: float, request: bytes) -> float:
    """Answers per second."""
    loop = asyncio.get_running_loop()
    count = [0]
    began = time.perf_counter()
    callers = [
        (
            await loop.create_connection(
                lambda: Caller(request, count, began + seconds), "127.0.0.1", port
            )
        )[1]
        for _ in range(connections)
    ]
    for caller in callers:
        await caller.done
    print(count[0])
    return count[0] / (time.perf_counter() - began)


if __name__ == "__main__":
    port, connections, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    uvloop.run(load(port, connections, seconds, sys.stdin.buffer.read()))
