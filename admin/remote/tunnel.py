"""One SSH connection for one command, in a thread with a loop of its own.

The rest of fnctl is synchronous: it asks for a socket and talks HTTP over it.
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

from admin.remote.failures import because, channel_failure, lost
from admin.remote.login import HOP_S, HOPS_MAX, LoggedIn, log_in
from admin.remote.relay import CHANNEL_S, dial
from admin.remote.target import Login
from admin.remote.token import READ_S, NoToken, read_token
from admin.transport import Unreachable

GRACE_S: Final = 2.0
"""Seconds for a goodbye that the other side hears."""
MARGIN_S: Final = 5.0
"""Seconds more than what is waited for has itself: the loop's own limits come first."""

T = TypeVar("T")


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

    def why_lost(self) -> str:
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
            if reason := self.why_lost():
                raise lost(self.target, reason) from error
            raise channel_failure(self.target, (host, port), error) from error

    def _wait(self, work: Coroutine[Any, Any, T], limit_s: float) -> T:
        """What `work` gives in the tunnel's loop; it is cancelled when nobody waits any more."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(limit_s + MARGIN_S)
        except concurrent.futures.TimeoutError as error:
            raise because(f"{self.target} does not answer by SSH in time") from error
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
        if reason := opened.why_lost():
            raise lost(opened.target, reason) from error
        raise
    finally:
        opened.close()


__all__ = ["NoToken", "Tunnel", "tunnel"]
