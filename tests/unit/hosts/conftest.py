"""Fixtures: a real SSH server, a home folder without keys, a connection, and Unix sockets that
stand for those of another machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from hosts.connection import HostConnection
from hosts.link import Timing
from hosts.login import Login
from registry.tasks import Tasks
from tests.support.ssh_fixtures import far, home, login

__all__ = ["far", "home", "login"]

WAIT_S = 20.0
QUIET = 100
"""Round trips without a change after which nothing moves any more."""
FAST = Timing(back_off_s=0.01, back_off_max_s=0.02)


@pytest.fixture
async def tasks() -> AsyncIterator[Tasks]:
    owned = Tasks("test")
    yield owned
    await owned.close()


@pytest.fixture
async def connection(login: Login, tasks: Tasks) -> AsyncIterator[HostConnection]:
    """Return a connection to `far` that is up."""
    there = HostConnection(login, tasks, name="gpu2", timing=FAST)
    there.open()
    await there.wait_up(WAIT_S)
    yield there
    await there.close()


class Peer(asyncio.Protocol):
    """One connection that the far machine's server accepted; it reads only on request."""

    def __init__(self, on_made: Callable[[Peer], None]) -> None:
        self._on_made = on_made
        self.received = bytearray()
        self.ended = asyncio.Event()
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._on_made(self)

    def data_received(self, data: bytes) -> None:
        self.received += data

    def eof_received(self) -> bool:
        self.ended.set()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


class FarServer:
    """Unix server at `path`. `next` has the connections in order."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.next: asyncio.Queue[Peer] = asyncio.Queue()
        self._all: list[Peer] = []

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(self._peer, self.path)

    def _peer(self) -> Peer:
        peer = Peer(self.next.put_nowait)
        self._all.append(peer)
        return peer

    async def accept(self) -> Peer:
        async with asyncio.timeout(WAIT_S):
            return await self.next.get()

    async def close(self) -> None:
        self._server.close()
        for peer in self._all:
            if not peer.lost.is_set():
                peer.transport.abort()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[FarServer]:
    """Return a server that a connection reaches by `dial`."""
    running = FarServer(tmp_path / "far.sock")
    await running.start()
    yield running
    await running.close()


async def settled(connection: HostConnection, size: Callable[[], int]) -> int:
    """Return a size that no longer changes while requests cross the connection and come back."""
    sftp = await connection.sftp()
    last, since = -1, 0
    async with asyncio.timeout(WAIT_S):
        while since < QUIET:
            await sftp.realpath(".")
            since = since + 1 if size() == last else 0
            last = size()
    return last
