"""Whole servers for tests, in the test's own event loop or in a separate process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, ClientTimeout

from admin.compose import DRIVERS, Server, running
from admin.settings import Settings
from admin.store import admin_token
from admin.workers.local import LocalGateway
from admin.workers.messages import Message, decode_down, decode_up, encode
from admin.workers.stream import Stream, memory_pair
from gateway.http.app import Gateway
from pool_manager.core.state import Replica
from pool_manager.driver import Driver
from tests.support.caller import UNTIL_S, Answer, Caller
from tests.support.fake_driver.driver import Script
from tests.support.fake_driver.opening import drivers_of
from tests.support.process_server import ServerProcess, server_process

__all__ = [
    "Answer",
    "Caller",
    "Gate",
    "ServerApart",
    "ServingServer",
    "serving",
    "serving_apart",
]


class ServingServer(Caller):
    """A server running in this event loop. `server` gives access to its internals."""

    def __init__(self, server: Server, session: ClientSession) -> None:
        super().__init__(server.url, admin_token(server.store.settings.data), session)
        self.server = server

    @property
    def gateway(self) -> Gateway:
        """Its only gateway, which is in this process."""
        [slot] = self.server.gateways._slots
        assert isinstance(slot.process, LocalGateway)
        assert slot.process.node.gateway is not None
        return slot.process.node.gateway

    def bound(self) -> list[Replica]:
        """Return every replica except standbys."""
        return [one for one in self.server.manager.replicas() if one.role != "standby"]

    async def until_pools(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds; it is checked whenever the pool manager publishes a
        change."""
        news = asyncio.Event()
        end = self.server.manager.subscribe(lambda _message: news.set())
        try:
            async with asyncio.timeout(UNTIL_S):
                while not condition():
                    news.clear()
                    await news.wait()
        finally:
            end()


class ServerApart(Caller):
    """A server in a separate process, which has ended after the block."""

    def __init__(self, server: ServerProcess, session: ClientSession) -> None:
        super().__init__(server.url, server.token, session)
        assert server.process is not None
        self.process = server.process


class Gate:
    """Delays of a `FakeDriver` under test control: `FakeDriver(Script(load_s=1), sleep=gate)`.

    The gate is open at first, so that deploys succeed. Delays of zero are never held.
    """

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self.waiting = 0

    async def __call__(self, seconds: float) -> None:
        """Wait as the driver's sleep."""
        if not seconds:
            return
        self.waiting += 1
        try:
            await self._open.wait()
        finally:
            self.waiting -= 1

    def open(self) -> None:
        """Release all delays, current and future."""
        self._open.set()

    def shut(self) -> None:
        """Hold every delay until `open`."""
        self._open.clear()


def encoded_pair() -> tuple[Stream, Stream]:
    """Return the ends of a stream in memory on which messages are encoded, as on a socket."""

    def down(message: Message) -> Message:
        return decode_down(encode(message))

    def up(message: Message) -> Message:
        return decode_up(encode(message))

    return memory_pair(down, up)


ROOM_MIB = 256 + 1100
"""Host memory for a trial, or for one replica of LARGE."""
LARGE = Script(memory_mib=700.0)


@asynccontextmanager
async def serving(
    data: Path, driver: Driver | None = None, *, kind: type[Settings] = Settings, **settings: Any
) -> AsyncIterator[ServingServer]:
    """Run a server on a free port with its data in `data`; it shuts down in order with the block.

    `driver` replaces the process driver: a `FakeDriver` with a script. `kind` may be a subclass
    that changes behaviour no setting covers.
    """
    chosen = kind(**{"port": 0, "data": data / "data", "shutdown_s": 5.0, **settings})
    timeout = ClientTimeout(total=UNTIL_S)
    async with (
        running(chosen, drivers_of(driver) if driver else DRIVERS, encoded_pair) as server,
        ClientSession(timeout=timeout) as session,
    ):
        yield ServingServer(server, session)


@asynccontextmanager
async def serving_apart(data: Path) -> AsyncIterator[ServerApart]:
    """Run a server as `serving` does, in a separate process on uvloop."""
    with server_process(data / "data") as process:
        async with ClientSession(timeout=ClientTimeout(total=UNTIL_S)) as session:
            yield ServerApart(process, session)
