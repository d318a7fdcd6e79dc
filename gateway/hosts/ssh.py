"""SSH connections of a gateway process, whose code is loaded with the first host.

asyncssh takes half a second to import. Most gateway processes have no other host, and one that gets
its first one has calls to serve meanwhile: so it is imported in a thread.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from hosts.errors import ConnectionLost, Unreachable
from registry.exchange import HostRoute, SshRoute
from registry.tasks import Tasks

if TYPE_CHECKING:
    from hosts.connection import HostConnection

JITTER_S: Final = 0.5
"""Max seconds before the first login: gateway processes learn of a host at the same time, and sshd
refuses logins from the tenth unfinished one on (MaxStartups)."""


class SshConnection:
    """`gateway.hosts.greeting.Connection` over `hosts.connection.HostConnection`."""

    def __init__(self, name: str, way: SshRoute, tasks: Tasks) -> None:
        self._name = name
        self._way = way
        self._tasks = tasks
        self._made = asyncio.Event()
        self._connection: HostConnection | None = None
        self._making: asyncio.Task[None] | None = None
        self._reason = "not connected yet"

    @property
    def is_up(self) -> bool:
        """Implement `Connection.is_up`."""
        return self._connection is not None and self._connection.is_up

    @property
    def rtt_s(self) -> float:
        """Implement `Connection.rtt_s`."""
        return 0.0 if self._connection is None else self._connection.rtt_s

    def open(self) -> None:
        """Implement `Connection.open`."""
        self._making = self._tasks.spawn(f"make {self._name}", self._make())

    def renew(self, way: HostRoute) -> bool:
        """Implement `Connection.renew`."""
        if not serves(self._way, way, is_up=self.is_up):
            return False
        assert isinstance(way, SshRoute)
        self._way = way
        return True

    async def close(self) -> None:
        """Implement `Connection.close`."""
        if self._making is not None:
            self._making.cancel()
            await asyncio.wait({self._making})
        if self._connection is not None:
            await self._connection.close()

    async def wait_up(self, timeout_s: float) -> None:
        """Implement `Connection.wait_up`."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._made.wait()
        except TimeoutError:
            raise ConnectionError(f"{self._name}: {self._reason}") from None
        assert self._connection is not None
        try:
            await self._connection.wait_up(max(0.0, end_s - loop.time()))
        except Unreachable as error:
            raise ConnectionError(str(error)) from error

    async def dial(self, path: str, protocol: asyncio.BaseProtocol) -> asyncio.Transport:
        """Implement `Connection.dial`."""
        if self._connection is None:
            raise ConnectionLost(f"{self._name}: {self._reason}")
        return await self._connection.dial(path, protocol)

    async def _make(self) -> None:
        await asyncio.to_thread(import_module, "hosts.connection")
        from hosts.connection import HostConnection
        from hosts.login import login_to

        try:
            login = login_to(self._way.address, self._way.identity, self._way.host_key)
        except ValueError as error:
            self._reason = f"its address cannot be used: {error}"
            return
        self._connection = HostConnection(login, self._tasks, name=self._name, jitter_s=JITTER_S)
        self._connection.open()
        self._made.set()


def serves(made: SshRoute, way: HostRoute, *, is_up: bool) -> bool:
    """Return whether a connection that was made for one route serves the one that is listed now.

    1. Not another login: it is another way, perhaps to another machine.
    2. Not if the manager has connected anew and this process has no connection: a new one connects
       at once, instead of at the end of its pause.
    3. Else it does. A new epoch alone says only that the manager has connected anew, so a healthy
       connection of this process is not cut.
    """
    if replace(way, epoch=made.epoch) != made:
        return False  # 1
    return is_up or way.epoch == made.epoch  # 2, 3
