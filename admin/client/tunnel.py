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
from typing import Any, Final, TypeVar, cast

import asyncssh

from admin.client.listeners import Address
from admin.client.ssh import READ_S, channel_failure, read_token
from hosts.channel import ChannelSession, ChannelTransport
from hosts.errors import Unreachable
from hosts.login import (
    GRACE_S,
    HOP_S,
    HOPS_MAX,
    LoggedIn,
    Login,
    connection_broken,
    log_in,
    unreachable_error,
)
from hosts.splice import End, attach

CHANNEL_S: Final = 10.0
"""Max seconds that the other machine takes to open a connection."""
MARGIN_S: Final = 5.0
"""Seconds on top of a limit inside the loop, so that the inner limit expires first."""
T = TypeVar("T")


async def open_channel(
    connection: asyncssh.SSHClientConnection, host: str, port: int
) -> socket.socket:
    """Return a blocking socket to `host`:`port` as seen from the other machine.

    Raises asyncssh.Error, OSError or TimeoutError.
    """
    far = End()
    transport = ChannelTransport(connection, far)
    session = ChannelSession(transport)
    try:
        async with asyncio.timeout(CHANNEL_S):
            await connection.create_connection(lambda: cast(Any, session), host, port)
            ours = await attach(far)
    except BaseException:
        session.abandon()
        raise
    ours.setblocking(True)
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

    def token(self, data: Path, server: Address | None = None) -> str:
        """Read the admin token in the remote data folder `data`, for the `server` there.

        Raises NoToken, also for a server of another user, or Unreachable.
        """
        return self._wait(read_token(self._connection(), self.target, data, server), READ_S)

    def reason_lost(self) -> str:
        """Return the reason of a lost connection, "" while it is open."""
        return self._logged_in.reason_lost() if self._logged_in else ""

    def close(self) -> None:
        """Close the connection, the loop and its thread."""
        if self._logged_in is not None:
            # An unreachable machine must not delay the end of the process.
            with contextlib.suppress(Unreachable):
                self._wait(self._logged_in.close(GRACE_S), GRACE_S)
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
