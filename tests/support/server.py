"""Whole servers for tests, in the test's own event loop or in a process of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, ClientTimeout

from admin.compose import Server, running
from admin.settings import Settings
from pool_manager.core.state import Replica
from pool_manager.driver import Driver
from tests.support.caller import UNTIL_S, Answer, Caller
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
    """A server that runs in this event loop; `server` is its inside."""

    def __init__(self, server: Server, session: ClientSession) -> None:
        super().__init__(server.url, server.store.token, session)
        self.server = server

    def bound(self) -> list[Replica]:
        """Every replica but the standbys."""
        return [one for one in self.server.manager.replicas() if one.role != "standby"]

    async def until_pools(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds, looked at whenever the pool manager has news."""
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
    """A server in a process of its own, which has ended after the block."""

    def __init__(self, server: ServerProcess, session: ClientSession) -> None:
        super().__init__(server.url, server.token, session)
        assert server.process is not None
        self.process = server.process


class Gate:
    """Delays of a `FakeDriver`, let go by hand: `FakeDriver(Script(load_s=1), sleep=gate)`.

    It is open at first, so that a deploy gets through. No delay of zero is ever held up.
    """

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self.waiting = 0

    async def __call__(self, seconds: float) -> None:
        """What the driver awaits."""
        if not seconds:
            return
        self.waiting += 1
        try:
            await self._open.wait()
        finally:
            self.waiting -= 1

    def open(self) -> None:
        """Let go whatever waits, now and from now on."""
        self._open.set()

    def shut(self) -> None:
        """From now on every delay lasts until `open`."""
        self._open.clear()


@asynccontextmanager
async def serving(
    data: Path, driver: Driver | None = None, *, kind: type[Settings] = Settings, **settings: Any
) -> AsyncIterator[ServingServer]:
    """A server on a free port with its data in `data`; leaving the block ends it in order.

    `driver` takes the place of the process driver: a `FakeDriver` with a script. `kind` may be a
    subclass that changes what no setting can.
    """
    chosen = kind(**{"port": 0, "data": data / "data", "shutdown_s": 5.0, **settings})
    timeout = ClientTimeout(total=UNTIL_S)
    async with running(chosen, driver) as server, ClientSession(timeout=timeout) as session:
        yield ServingServer(server, session)


@asynccontextmanager
async def serving_apart(data: Path) -> AsyncIterator[ServerApart]:
    """As `serving`, in a process of its own, on uvloop."""
    with server_process(data / "data") as process:
        async with ClientSession(timeout=ClientTimeout(total=UNTIL_S)) as session:
            yield ServerApart(process, session)
