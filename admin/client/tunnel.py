"""An SSH tunnel: one connection per command, in a thread with its own loop, for synchronous HTTP.

The local end is a socket pair inside this process. No port is opened, so no other user of this
machine can use the tunnel, or listen in place of a broken one and receive a key. Both directions
have backpressure.
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
    channel_failure,
    connection_broken,
    log_in,
    read_token,
    unreachable_error,
)
from admin.client.transport import Unreachable

CHANNEL_S: Final = 10.0
"""Seconds that the other machine may take to open a connection."""
GRACE_S: Final = 2.0
"""Seconds for an orderly close."""
MARGIN_S: Final = 5.0
"""Seconds on top of a limit inside the loop, which comes first."""
T = TypeVar("T")


class LocalEnd(asyncio.Protocol):
    """The end in this process: one socket of a pair."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._remote: asyncssh.SSHTCPChannel[bytes] | None = None

    def connection_made(self, transport: Any) -> None:
        """asyncio's: the socket pair is ready."""
        self._transport = transport
        transport.pause_reading()

    def join(self, remote: asyncssh.SSHTCPChannel[bytes]) -> None:
        """Forward to `remote` from now on."""
        self._remote = remote
        self.resume_reading()

    def data_received(self, data: bytes) -> None:
        """asyncio's: bytes for the remote end, dropped after it has ended."""
        if self._remote is not None:
            # The channel refuses data a moment before it reports its end. An error here would
            # close the socket and lose the answer in it.
            with contextlib.suppress(BrokenPipeError):
                self._remote.write(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        """asyncio's: the HTTP client closed the socket. It never closes half of it."""
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
        """Bytes from the remote end."""
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
        """Let the client read the received bytes, then the end.

        A server may refuse an upload half-way, answer and close. A socket pair closed with unread
        bytes loses the answer, so the writer is stopped and its bytes are discarded.
        """
        self._remote = None
        if self._transport is not None:
            with contextlib.suppress(OSError):
                self._transport.get_extra_info("socket").shutdown(socket.SHUT_RD)
            self._transport.resume_reading()


class RemoteEnd(asyncssh.SSHTCPSession[bytes]):
    """The end on the other machine: an SSH channel."""

    def __init__(self, local: LocalEnd) -> None:
        self._local = local

    def data_received(self, data: bytes, datatype: int | None = None) -> None:  # noqa: ARG002
        """asyncssh's: bytes for the local end."""
        self._local.write(data)

    def eof_received(self) -> bool:
        """asyncssh's: the server closed its side; the channel closes."""
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


async def open_channel(
    connection: asyncssh.SSHClientConnection, host: str, port: int
) -> socket.socket:
    """A blocking socket to `host`:`port` as the other machine sees them.

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
    """A connection to one machine, for the thread that made it. Must be closed."""

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
        """A socket to `host`:`port` as seen from there. Raises Unreachable."""
        return self._wait(self._dial(host, port), CHANNEL_S)

    def token(self, data: Path) -> str:
        """The admin token in the data folder `data` there. Raises NoToken or Unreachable."""
        return self._wait(read_token(self._connection(), self.target, data), READ_S)

    def reason_lost(self) -> str:
        """Why the connection was lost, "" while it lasts."""
        return self._logged_in.reason_lost() if self._logged_in else ""

    def close(self) -> None:
        """Close the connection, the loop and its thread."""
        if self._logged_in is not None:
            # A lost machine must not delay the end of the process.
            with contextlib.suppress(Unreachable):
                self._wait(_close(self._logged_in), GRACE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(GRACE_S + MARGIN_S)

    def _connection(self) -> asyncssh.SSHClientConnection:
        assert self._logged_in is not None
        return self._logged_in.connection

    async def _dial(self, host: str, port: int) -> socket.socket:
        try:
            return await open_channel(self._connection(), host, port)
        except (asyncssh.Error, OSError, TimeoutError) as error:
            if reason := self.reason_lost():
                raise connection_broken(self.target, reason) from error
            raise channel_failure(self.target, (host, port), error) from error

    def _wait(self, work: Coroutine[Any, Any, T], limit_s: float) -> T:
        """Run `work` in the tunnel's loop; it is cancelled after `limit_s`."""
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
            # Cancelled tasks get time to close what they opened.
            if tasks := asyncio.all_tasks(self._loop):
                for task in tasks:
                    task.cancel()
                self._loop.run_until_complete(asyncio.wait(tasks, timeout=GRACE_S))
            self._loop.close()


async def _close(logged_in: LoggedIn) -> None:
    try:
        async with asyncio.timeout(GRACE_S):
            await logged_in.close()
    except TimeoutError:
        logged_in.connection.abort()


@contextmanager
def tunnel(login: Login) -> Iterator[Tunnel]:
    """A tunnel for the block. An exchange that broke with the tunnel raises the tunnel's error.

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
