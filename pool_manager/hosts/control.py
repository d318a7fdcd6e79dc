"""The control socket of one host, which all of its replicas share.

A replica is known by the token in its HELLO. A connection without one is hostile or broken: any
replica of the host may connect.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
from collections import deque
from typing import Final

import structlog

from registry.tasks import Tasks
from runtime_image.contract.control import Hello
from runtime_image.contract.enrolment import Certificate
from runtime_image.link.frames import LinkError
from runtime_image.link.reception import read_hello

log = structlog.get_logger()

HELLO_S: Final = 5.0
STRANGERS_MAX: Final = 64
"""Max connections without a HELLO. One more closes the oldest: a replica sends its HELLO at once,
so that a flood of silent connections does not keep others out."""
DIALS_MAX: Final = 16
"""Max connections of one replica that wait; one more closes the oldest, since the newest wins."""


class HostControl:
    """Finds the replica of each connection to a host's control socket."""

    def __init__(self, host: str, tasks: Tasks) -> None:
        self._host = host
        self._tasks = tasks
        self._by_id: dict[str, ReplicaConnections] = {}
        self._strangers: dict[socket.socket, asyncio.Task[None]] = {}
        self._is_up = asyncio.Event()
        self._is_closed = False
        self._refusals = 0

    def accept(self, sock: socket.socket) -> None:
        """Take over a new connection, and find its replica in the background."""
        if self._is_closed:
            sock.close()
            return
        if len(self._strangers) >= STRANGERS_MAX:
            oldest = next(iter(self._strangers))
            self._strangers.pop(oldest).cancel()
        sock.setblocking(False)
        task = self._tasks.spawn(f"greeting from {self._host}", self._greet(sock))
        self._strangers[sock] = task
        # Here, as a task that is cancelled before its first step runs nothing.
        task.add_done_callback(lambda done: sock.close() if done.cancelled() else None)

    async def _greet(self, sock: socket.socket) -> None:
        try:
            hello = await read_hello(sock, HELLO_S)
        except (LinkError, OSError) as error:
            sock.close()
            self._log_refusal(str(error))
            return
        finally:
            self._strangers.pop(sock, None)
        connections = self._find(hello["token"])
        if connections is None:
            sock.close()
            # Regular after a break: the replica was released meanwhile, and ends.
            self._log_refusal("its token is unknown")
        else:
            connections.add(sock, hello)

    def _log_refusal(self, reason: str) -> None:
        self._refusals += 1
        if self._refusals & (self._refusals - 1) == 0:  # a flood must not fill the log
            log.info("a greeting was refused", host=self._host, reason=reason, count=self._refusals)

    def _find(self, token: str) -> ReplicaConnections | None:
        given = token.encode("utf-8", "replace")
        found = None
        for one in self._by_id.values():
            if hmac.compare_digest(given, one.token.encode()):
                found = one
        return found

    def register(self, id: str, token: str, *, is_agent: bool = False) -> ReplicaConnections:
        """Return the connections of a replica, or of the agent, from now on."""
        found = self._by_id[id] = ReplicaConnections(self, id, token, is_agent=is_agent)
        return found

    def forget(self, connections: ReplicaConnections) -> None:
        """Refuse further connections of a replica."""
        if self._by_id.get(connections.id) is connections:
            del self._by_id[connections.id]

    def set_up(self, *, is_up: bool) -> None:
        """Record whether the host can be reached."""
        if is_up:
            self._is_up.set()
        else:
            self._is_up.clear()

    @property
    def is_up(self) -> bool:
        """Whether the host can be reached."""
        return self._is_up.is_set()

    async def wait_up(self) -> None:
        """Return when the host can be reached."""
        await self._is_up.wait()

    def close(self) -> None:
        """Close every connection that has no receiver yet."""
        self._is_closed = True
        for task in self._strangers.values():
            task.cancel()
        for one in list(self._by_id.values()):
            one.close()


class ReplicaConnections:
    """The connections of one replica on another host; a `ControlConnections`.

    Each answer to a replica prolongs its lease. So it gets none before its host is up: the time
    after which its host is gone, and another one may be started, goes on until then. The agent is
    needed before.
    """

    redials = True

    def __init__(
        self, control: HostControl, id: str, token: str, *, is_agent: bool = False
    ) -> None:
        self.id = id
        self.token = token
        self._control = control
        self._is_agent = is_agent
        self._waiting: deque[tuple[socket.socket, Hello | None]] = deque()
        self._came = asyncio.Event()

    def add(self, sock: socket.socket, hello: Hello | None) -> None:
        """Add a connection whose peer is known to be the replica; None: its HELLO is to be read."""
        while len(self._waiting) >= DIALS_MAX:
            self._waiting.popleft()[0].close()
        self._waiting.append((sock, hello))
        self._came.set()

    async def accept(self) -> tuple[socket.socket, Hello | None]:
        """Return the next connection and its HELLO, if that was read."""
        while not (self._waiting and (self._control.is_up or self._is_agent)):
            if self._waiting:
                await self.wait_up()
            else:
                self._came.clear()
                await self._came.wait()
        return self._waiting.popleft()

    def renewal(self) -> Certificate | None:
        """ControlConnections: none, as its connections have no certificate."""
        return None

    async def wait_up(self) -> bool:
        """ControlConnections: wait for the host."""
        was_up = self._control.is_up
        await self._control.wait_up()
        return was_up

    def close(self) -> None:
        """Accept no more connections; those that wait are closed."""
        self._control.forget(self)
        while self._waiting:
            self._waiting.popleft()[0].close()
