"""Tests of connections that end while the event loop takes over their sockets."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from gateway.server_sockets import ServerSockets
from gateway.upstream import UpstreamConnection
from registry.exchange import ReplicaEndpoint
from registry.tasks import Tasks

ROUNDS = 5
TURNS = 6
"""Turns of the event loop in which others open descriptors."""
Run = Callable[[Coroutine[Any, Any, None]], None]


class Stream:
    """A link that takes every frame."""

    def send(self, *parts: Any) -> None:
        """Drop a frame."""

    def abort(self, reason: str) -> None:
        """Fail: the link must not end."""
        raise AssertionError(reason)


def connected(server: socket.socket, said: bytes) -> tuple[int, socket.socket]:
    """Return a descriptor of a connection, and the server's end, which has said something."""
    with socket.create_connection(server.getsockname()) as client:
        theirs, _ = server.accept()
        theirs.sendall(said)
        return os.dup(client.fileno()), theirs


async def descriptors_of_others(sockets: ServerSockets, *, gives_up: bool) -> None:
    """Connections end while they are taken over; descriptors opened meanwhile stay open."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        for id in range(1, ROUNDS + 1):
            sockets.request(id, is_free=False)
            descriptor, theirs = connected(server, b"" if gives_up else b"unasked")
            sockets._on_descriptor(id, descriptor)
            if gives_up:
                sockets.end(id, kept=False)
            others = []
            for _ in range(TURNS):
                await asyncio.sleep(0)
                others.append(os.open(os.devnull, os.O_RDONLY))
            gc.collect()
            for other in others:
                os.fstat(other)
                os.close(other)
            theirs.close()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("gives_up", [True, False])
def test_no_descriptor_is_closed_twice(run: Run, gives_up: bool) -> None:
    """A connection whose exchange ends before the loop owns its socket, or whose server speaks
    first, closes its own descriptor only, once."""

    async def play() -> None:
        def aborting(id: int, connection: UpstreamConnection) -> None:
            connection.abort()
            sockets.end(id, kept=False)

        endpoint = ReplicaEndpoint("r1", "/r1", 4, True, ("cpu:0",), {}, is_server=True)
        tasks = Tasks("test")
        stream: Any = Stream()
        sockets = ServerSockets(endpoint, stream, tasks, aborting, lambda _id: None)
        await descriptors_of_others(sockets, gives_up=gives_up)
        await tasks.close()
        sockets.close()
        sockets.hello_sent()

    run(play())
