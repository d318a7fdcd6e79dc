"""Sockets on both machines whose connections cross an SSH connection."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import stat
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import asyncssh
import structlog

from hosts.channel import ChannelSession, ChannelTransport
from hosts.errors import ConnectionLost
from hosts.splice import End, attach
from registry.tasks import Tasks

log = structlog.get_logger()

CONNECTIONS_MAX: Final = 1024
"""Connections of a listener or forward at the same time; more are refused."""
BURST: Final = 2 * CONNECTIONS_MAX
RATE_S: Final = 100.0
"""A listener accepts BURST connections without a pause, and RATE_S in a second: many more than all
replicas of a host make after a break."""
PAUSE_S: Final = 5.0
"""Seconds for which a listener is closed that got more: each connection takes time of the event
loop here, even if it is refused, and any program of the host may open thousands in a second."""
FORWARD_MODE: Final = 0o600
Dial = Callable[[str, asyncio.BaseProtocol], Awaitable[asyncio.Transport]]


@dataclass(eq=False, slots=True)
class Listener:
    """Socket on the host at `path`: each connection is passed to `accept` as a local socket."""

    path: str
    mode: int
    accept: Callable[[socket.socket], None]
    tasks: Tasks
    flooded: Callable[[Listener], None]
    generation: int = 0
    """Login on which it was established last."""
    open_connections: int = field(default=0, init=False)
    _credit: float = field(default=BURST, init=False)
    _last_s: float = field(default=0.0, init=False)

    def session(self, connection: asyncssh.SSHClientConnection) -> ChannelSession:
        """Return the session of a new connection. Raises asyncssh.ChannelOpenError."""
        now = asyncio.get_running_loop().time()
        self._credit = min(BURST, self._credit + RATE_S * (now - self._last_s))
        self._last_s = now
        if self._credit < 1:
            self.flooded(self)
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_RESOURCE_SHORTAGE, "a flood")
        self._credit -= 1
        if self.open_connections >= CONNECTIONS_MAX:
            raise asyncssh.ChannelOpenError(
                asyncssh.OPEN_RESOURCE_SHORTAGE, f"more than {CONNECTIONS_MAX} connections"
            )
        return ChannelSession(ChannelTransport(connection, Accepted(self), {"sockname": self.path}))


class Accepted(End):
    """Far end of a connection that a listener accepted."""

    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self._listener = listener

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Join it with a socket pair (asyncio callback)."""
        super().connection_made(transport)
        self._listener.open_connections += 1
        # Several may have been accepted in the turn in which there was room for one.
        if self._listener.open_connections > CONNECTIONS_MAX:
            self.abort()
            return
        self._listener.tasks.spawn(f"accept:{self._listener.path}", self._attach())

    def connection_lost(self, exc: Exception | None) -> None:
        """Count, and end the local socket (asyncio callback)."""
        self._listener.open_connections -= 1
        super().connection_lost(exc)

    async def _attach(self) -> None:
        try:
            ours = await attach(self)
        except OSError as error:
            log.warning(
                "a connection from a host is refused", path=self._listener.path, error=error
            )
            self.abort()
            return
        except BaseException:
            self.abort()
            raise
        try:
            self._listener.accept(ours)
        except BaseException:
            ours.close()
            raise


class Forward:
    """Local Unix socket at `local`, mode 0600, whose connections go to `remote` on the host."""

    def __init__(self, local: Path, remote: str, dial: Dial, tasks: Tasks) -> None:
        self.remote = remote
        self._local = local
        self._dial = dial
        self._tasks = tasks
        self._server: asyncio.Server | None = None
        self._local_ends: set[_LocalEnd] = set()
        self._failure = ""

    async def start(self) -> None:
        """Listen; a stale socket is removed. Raises OSError."""
        remove_socket(self._local)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.setblocking(False)
            listening.bind(str(self._local))
            self._local.chmod(FORWARD_MODE)
            loop = asyncio.get_running_loop()
            self._server = await loop.create_unix_server(lambda: _LocalEnd(self), sock=listening)
        except BaseException:
            listening.close()
            raise

    def close(self) -> None:
        """Stop listening, end its connections, remove the socket."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for end in list(self._local_ends):
            end.abort()
        with contextlib.suppress(OSError):
            remove_socket(self._local)

    def opened(self, end: _LocalEnd) -> None:
        """Connect to the host, or refuse the connection."""
        self._local_ends.add(end)
        if len(self._local_ends) > CONNECTIONS_MAX:
            end.abort()
        else:
            self._tasks.spawn(f"forward:{self.remote}", self._join(end))

    def closed(self, end: _LocalEnd) -> None:
        """Forget a connection."""
        self._local_ends.discard(end)

    async def _join(self, end: _LocalEnd) -> None:
        far = End()
        try:
            await self._dial(self.remote, far)
        except OSError as error:
            self._log(error)
            end.abort()
            return
        except BaseException:
            end.abort()
            raise
        self._failure = ""
        end.join(far)

    def _log(self, error: OSError) -> None:
        """Log a failure once, and never a lost SSH connection, which is logged as such: a client
        may try again for ever."""
        text = str(error)
        if text != self._failure and not isinstance(error, ConnectionLost):
            self._failure = text
            log.info("a forwarded connection failed", remote=self.remote, error=text)


class _LocalEnd(End):
    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self._forward = forward

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._forward.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._forward.closed(self)
        super().connection_lost(exc)


def remove_socket(path: Path) -> None:
    """Remove a socket that is there. Raises OSError, also for another kind of file."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(f"expected a socket or nothing at {path}, got another file")
        path.unlink()
