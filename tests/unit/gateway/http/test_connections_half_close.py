"""Tests of telling clients that wait from clients that are gone, over real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest
import uvloop

from gateway.http.bodies import CONTINUE
from gateway.http.connections import is_gone, may_be_reading


class Ended(asyncio.Protocol):
    """Keeps the connection when the client sends no more."""

    def __init__(self) -> None:
        self.made: asyncio.Future[asyncio.Transport] = asyncio.get_running_loop().create_future()
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.made.set_result(cast("asyncio.Transport", transport))

    def eof_received(self) -> bool:
        self.ended.set()
        return True


@asynccontextmanager
async def pair(family: int) -> AsyncIterator[tuple[socket.socket, asyncio.Transport, Ended]]:
    """The client's socket, the server's transport, and what the server has heard."""
    loop = asyncio.get_running_loop()
    protocol = Ended()
    if family == socket.AF_UNIX:
        client, theirs = socket.socketpair()
        await loop.connect_accepted_socket(lambda: protocol, theirs)
    else:
        server = await loop.create_server(lambda: protocol, "127.0.0.1", 0)
        client = socket.create_connection(server.sockets[0].getsockname())
        await protocol.made
        server.close()
    with client:
        transport = await protocol.made
        yield client, transport, protocol
        transport.abort()


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_client_that_waits_is_told_from_one_that_is_gone(family: int, run: object) -> None:
    """Both have sent "no more comes"; one of them still reads."""

    async def waits() -> None:
        async with pair(family) as (client, transport, protocol):
            client.shutdown(socket.SHUT_WR)
            await protocol.ended.wait()
            assert may_be_reading(transport)
            assert not is_gone(transport)
            transport.write(b"answer")
            transport.close()
            expected = b"answer" if family == socket.AF_UNIX else CONTINUE + b"answer"
            received = b""
            while piece := await asyncio.to_thread(client.recv, 100):
                received += piece
            assert received == expected

    async def leaves() -> None:
        async with pair(family) as (client, transport, protocol):
            client.close()
            await protocol.ended.wait()
            assert not may_be_reading(transport)
            assert is_gone(transport)

    assert callable(run)
    run(waits())
    run(leaves())
