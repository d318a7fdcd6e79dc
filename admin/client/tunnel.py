"""One SSH connection for one command, in a thread with a loop of its own.

The rest of fnctl is synchronous: it asks for a socket and talks HTTP over it.

A connection through SSH whose near end is an ordinary socket.

The near end is one of a pair that only this process has: no port is opened, so no other user of
this machine can use the tunnel, or take the place of one that broke and be sent a key. Neither
side is read faster than the other one takes it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import socket
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import asyncssh

from admin.client.ssh import (
    HOP_S,
    HOPS_MAX,
    READ_S,
    LoggedIn,
    Login,
    NoToken,
    channel_failure,
    connection_broken,
    log_in,
    read_token,
    unreachable_error,
)
from admin.client.transport import Unreachable

CHANNEL_S: Final = 10.0
"""Seconds that the far machine may take to open a connection."""
GRACE_S: Final = 2.0
"""Seconds for a goodbye that the other side hears."""
MARGIN_S: Final = 5.0
"""Seconds more than what is waited for has itself: the loop's own limits come first."""
T = TypeVar("T")

__all__ = ["NoToken", "Tunnel", "tunnel"]


class LocalEnd(asyncio.Protocol):
    """The side of this process."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._remote: asyncssh.SSHTCPChannel[bytes] | None = None

    def connection_made(self, transport: Any) -> None:
        """asyncio's: the socket pair is ready."""
        self._transport = transport
        transport.pause_reading()

    def join(self, remote: asyncssh.SSHTCPChannel[bytes]) -> None:
        """Pass on to `remote` from now on."""
        self._remote = remote
        self.resume_reading()

    def data_received(self, data: bytes) -> None:
        """asyncio's: bytes for the far side; what comes after its end is dropped."""
        if self._remote is not None:
            # It takes nothing any more a moment before it says that it has ended. As an error here
            # that would close the socket, and lose the answer that is in it.
            with contextlib.suppress(BrokenPipeError):
                self._remote.write(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        """asyncio's: whoever used the socket closed it. An HTTP client never closes half of it."""
        self._transport = None
        remote, self._remote = self._remote, None
        if remote is not None:
            remote.close()

    def pause_writing(self) -> None:
        """asyncio's: the reader is slower than SSH."""
        if self._remote is not None:
            self._remote.pause_reading()

    def resume_writing(self) -> None:
        """asyncio's: the reader has caught up."""
        if self._remote is not None:
            self._remote.resume_reading()

    def write(self, data: bytes) -> None:
        """Bytes from the far side."""
        if self._transport is not None:
            self._transport.write(data)

    def pause_reading(self) -> None:
        """SSH is slower than the writer."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """SSH has caught up."""
        if self._transport is not None:
            self._transport.resume_reading()

    def remote_ended(self) -> None:
        """Nothing more comes or goes: what came can still be read, then the end.

        A server may refuse an upload half-way, answer and close. Closed with unread bytes in it, a
        socket pair loses the answer, so the writer is stopped and what it wrote is read away.
        """
        self._remote = None
        if self._transport is not None:
            with contextlib.suppress(OSError):
                self._transport.get_extra_info("socket").shutdown(socket.SHUT_RD)
            self._transport.resume_reading()


class RemoteEnd(asyncssh.SSHTCPSession[bytes]):
    """The side of the other machine."""

    def __init__(self, local: LocalEnd) -> None:
        self._local = local

    def data_received(self, data: bytes, datatype: int | None = None) -> None:  # noqa: ARG002
        """asyncssh's: bytes for the near side."""
        self._local.write(data)

    def eof_received(self) -> bool:
        """asyncssh's: the server has said all; the channel closes."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncssh's
        """asyncssh's: the channel is closed, or the connection broke."""
        self._local.remote_ended()

    def pause_writing(self) -> None:
        """asyncssh's: the window is full."""
        self._local.pause_reading()

    def resume_writing(self) -> None:
        """asyncssh's: there is room again."""
        self._local.resume_reading()


async def dial(connection: asyncssh.SSHClientConnection, host: str, port: int) -> socket.socket:
    """A blocking socket to `host`:`port` as the far machine sees them.

    Raises asyncssh.Error, OSError or TimeoutError.
    """
    ours, theirs = socket.socketpair()
    local = LocalEnd()
    try:
        loop = asyncio.get_running_loop()
        theirs.setblocking(False)
        transport, _ = await loop.connect_accepted_socket(lambda: local, theirs)
    except BaseException:
        ours.close()
        theirs.close()
        raise
    try:
        async with asyncio.timeout(CHANNEL_S):
            channel, _ = await connection.create_connection(lambda: RemoteEnd(local), host, port)
    except BaseException:
        ours.close()
        transport.abort()
        raise
    local.join(channel)
    return ours


class Tunnel:
    """A connection to one machine, for the thread that made it. Close it, whatever happens."""

    def __init__(self, login: Login) -> None:
        self.target = login.target
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="ssh-tunnel", daemon=True)
        self._thread.start()
        self._logged_in: LoggedIn | None = None
        try:
            self._logged_in = self._wait(log_in(login), HOP_S * HOPS_MAX)
        except BaseException:
            self.close()
            raise

    def dial(self, host: str, port: int) -> socket.socket:
        """A socket to the gateway that `host`:`port` names there. Raises Unreachable."""
        return self._wait(self._dial(host, port), CHANNEL_S)

    def token(self, data: Path) -> str:
        """The admin token in the data folder `data` there. Raises NoToken or Unreachable."""
        return self._wait(read_token(self._connection(), self.target, data), READ_S)

    def reason_lost(self) -> str:
        """Why the connection is over, "" while it is not."""
        return self._logged_in.reason_lost() if self._logged_in else ""

    def close(self) -> None:
        """Say goodbye, end the loop and its thread."""
        if self._logged_in is not None:
            # A machine that is gone hears nothing; the process ends without it.
            with contextlib.suppress(Unreachable):
                self._wait(_say_goodbye(self._logged_in), GRACE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(GRACE_S + MARGIN_S)

    def _connection(self) -> asyncssh.SSHClientConnection:
        assert self._logged_in is not None
        return self._logged_in.connection

    async def _dial(self, host: str, port: int) -> socket.socket:
        try:
            return await dial(self._connection(), host, port)
        except (asyncssh.Error, OSError, TimeoutError) as error:
            if reason := self.reason_lost():
                raise connection_broken(self.target, reason) from error
            raise channel_failure(self.target, (host, port), error) from error

    def _wait(self, work: Coroutine[Any, Any, T], limit_s: float) -> T:
        """What `work` gives in the tunnel's loop; it is cancelled when nobody waits any more."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(limit_s + MARGIN_S)
        except concurrent.futures.TimeoutError as error:
            raise unreachable_error(f"{self.target} does not answer by SSH in time") from error
        finally:
            future.cancel()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            # What was cancelled gets the time to close what it had opened.
            if tasks := asyncio.all_tasks(self._loop):
                for task in tasks:
                    task.cancel()
                self._loop.run_until_complete(asyncio.wait(tasks, timeout=GRACE_S))
            self._loop.close()


async def _say_goodbye(logged_in: LoggedIn) -> None:
    try:
        async with asyncio.timeout(GRACE_S):
            await logged_in.close()
    except TimeoutError:
        logged_in.connection.abort()


@contextmanager
def tunnel(login: Login) -> Iterator[Tunnel]:
    """A tunnel for the block. An exchange that broke with it is told as the tunnel's end.

    Raises Unreachable.
    """
    opened = Tunnel(login)
    try:
        yield opened
    except Unreachable as error:
        if reason := opened.reason_lost():
            raise connection_broken(opened.target, reason) from error
        raise
    finally:
        opened.close()
