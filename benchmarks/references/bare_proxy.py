"""What Python takes for two sockets, and nothing else: `... PORT UPSTREAM_PORT` copies bytes.

Each client's connection has one to the server; no byte is looked at. It runs on uvloop and prints
its port.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import uvloop

BACKLOG = 4096


class Side(asyncio.Protocol):
    """One of two connections: what arrives is written to the other."""

    def __init__(self, upstream: int, other: Side | None = None) -> None:
        """`other` is the client's side; without it, this one is, and connects to `upstream`."""
        self._upstream = upstream
        self._other = other
        self._early: list[bytes] = []
        self.transport: Any = None
        self._connecting: asyncio.Task[Any] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio callback."""
        self.transport = transport
        if self._other is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        other = Side(self._upstream, self)
        await asyncio.get_running_loop().create_connection(
            lambda: other, "127.0.0.1", self._upstream
        )
        self._other = other
        for data in self._early:
            other.transport.write(data)

    def data_received(self, data: bytes) -> None:
        """asyncio callback."""
        if self._other is None:
            self._early.append(data)
        else:
            self._other.transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        """asyncio callback: close the other connection, too."""
        if self._other is not None:
            self._other.transport.close()


async def serve(port: int, upstream: int) -> None:
    """Serve until the process ends."""
    server = await asyncio.get_running_loop().create_server(
        lambda: Side(upstream), "127.0.0.1", port, backlog=BACKLOG
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2])))
