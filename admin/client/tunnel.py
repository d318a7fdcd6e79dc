"""SSH tunnel: one connection per command, in a thread with its own loop, for synchronous HTTP.

The local end is a socket pair inside this process. No port is opened, so no other user of this
machine can use the tunnel, or listen in place of a broken one and receive a key. Both directions
have back-pressure.
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
"""Max seconds that the other machine takes to open a connection."""
GRACE_S: Final = 2.0
"""Max seconds for an orderly close."""
MARGIN_S: Final = 5.0
"""Seconds on top of a limit inside the loop, so that the inner limit expires first."""
T = TypeVar("T")


class LocalEnd(asyncio.Protocol):
    """End in this process: one socket of a pair."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._remote: asyncssh.SSHTCPChannel[bytes] | None = None

    def connection_made(self, transport: Any) -> None:
        """Store the transport of the socket pair (asyncio callback)."""
        self._transport = transport
        transport.pause_reading()

    def join(self, remote: asyncssh.SSHTCPChannel[bytes]) -> None:
        """Forward to `remote` from now on."""
        self._remote = remote
        self.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Forward bytes to the remote end, or drop them after its end (asyncio callback)."""
        if self._remote is not None:
            # The channel refuses data a moment before it reports its end. An error here would
            # close the socket and lose the answer in it.
            with contextlib.suppress(BrokenPipeError):
                self._remote.write(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        """Close the channel: the HTTP client closed its socket, always both halves (asyncio)."""
        self._transport = None
        remote, self._remote = self._remote, None
        if remote is not None:
            remote.close()

    def pause_writing(self) -> None:
        """Pause the remote end: the local reader is slower than SSH (asyncio callback)."""
        if self._remote is not None:
            self._remote.pause_reading()

    def resume_writing(self) -> None:
        """Resume the remote end: the local reader has caught up (asyncio callback)."""
        if self._remote is not None:
            self._remote.resume_reading()

    def write(self, data: bytes) -> None:
        """Write bytes from the remote end."""
        if self._transport is not None:
            self._transport.write(data)

    def pause_reading(self) -> None:
        """Pause the local writer: SSH is slower."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume the local writer: SSH has caught up."""
        if self._transport is not None:
            self._transport.resume_reading()

    def remote_ended(self) -> None:
        """Let the client read the received bytes, then the end of the stream.

        A server may refuse an upload half-way, answer and close. A socket pair closed with unread
        bytes loses the answer, so the writer is stopped and its bytes are discarded.
        """
        self._remote = None
        if self._transport is not None:
            with contextlib.suppress(OSError):
                self._transport.get_extra_info("socket").shutdown(socket.SHUT_RD)
            self._transport.resume_reading()


class RemoteEnd(asyncssh.SSHTCPSession[bytes]):
    """End on the other machine: an SSH channel."""

    def __init__(self, local: LocalEnd) -> None:
        self._local = local

    def data_received(self, data: bytes, datatype: int | None = None) -> None:  # noqa: ARG002
        """Pass bytes to the local end (asyncssh callback)."""
        self._local.write(data)

    def eof_received(self) -> bool:
        """Close the channel: the server closed its side (asyncssh callback)."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncssh's
        """End the local side: the channel is closed or the connection broke (asyncssh callback)."""
        self._local.remote_ended()

    def pause_writing(self) -> None:
        """Pause the local end: the window is full (asyncssh callback)."""
        self._local.pause_reading()

    def resume_writing(self) -> None:
        """Resume the local end: the window has room again (asyncssh callback)."""
        self._local.resume_reading()


async def open_channel(
    connection: asyncssh.SSHClientConnection, host: str, port: int
) -> socket.socket:
    """Return a blocking socket to `host`:`port` as seen from the other machine.

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
    """Connection to one machine, for the thread that created it. Must be closed."""

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
        """Return a socket to `host`:`port` as seen from the other machine. Raises Unreachable."""
        return self._wait(self._dial(host, port), CHANNEL_S)

    def token(self, data: Path) -> str:
        """Read the admin token in the remote data folder `data`. Raises NoToken or Unreachable."""
        return self._wait(read_token(self._connection(), self.target, data), READ_S)

    def reason_lost(self) -> str:
        """Return the reason of a lost connection, "" while it is open."""
        return self._logged_in.reason_lost() if self._logged_in else ""

    def close(self) -> None:
        """Close the connection, the loop and its thread."""
        if self._logged_in is not None:
            # An unreachable machine must not delay the end of the process.
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
            # Give cancelled tasks time to close what they opened.
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
    """Open a tunnel for the block. An exchange that broke with the tunnel raises its error.

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
