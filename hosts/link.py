"""One login on a host, from its first session to its end: channels, commands, SFTP."""

from __future__ import annotations

import asyncio
import contextlib
import stat
import statistics
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import asyncssh
import structlog
from asyncssh.constants import MSG_IGNORE

from hosts.channel import ChannelSession, ChannelTransport
from hosts.commands import CommandSession, Completed, start_command
from hosts.errors import ConnectionLost, shown
from hosts.listening import Listener
from hosts.login import LoggedIn
from registry.tasks import Tasks

log = structlog.get_logger()

WINDOW: Final = 256 * 1024
"""Receive window in bytes: a whole window may be decrypted in one turn of the loop."""
FAR_WINDOW: Final = 2 * 1024 * 1024
"""Receive window for a far host; the window divided by the round trip bounds the speed."""
FAR_S: Final = 0.02
"""Seconds of a round trip from which a host is far."""
COMMANDS_MAX: Final = 4
"""Commands at the same time; OpenSSH allows 10 sessions per connection, SFTP takes one."""
REFUSED_S: Final = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32)
"""Seconds before a refused session is tried again: OpenSSH counts one that has just ended."""
OPENING_MAX: Final = 1024
"""Channels that are being opened at the same time."""
SAMPLES: Final = 5
"""Round trips of a measurement."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. A silent connection has ended after 4 x `keepalive_s`.

    The wait after a failure is that of `hosts.back_off` with `back_off_s` and `back_off_max_s`. A
    connection that stood for `steady_s` begins a new row. After a refused key the wait is
    `refused_s`: programs such as fail2ban block clients that fail 5 times in 10 minutes.
    """

    keepalive_s: float = 2.0
    back_off_s: float = 0.5
    back_off_max_s: float = 30.0
    refused_s: float = 150.0
    steady_s: float = 10.0
    open_s: float = 10.0
    measure_s: float = 60.0


def send_no_ignored(connection: asyncssh.SSHClientConnection) -> None:
    """Keep a connection from sending MSG_IGNORE, as asyncssh does before each packet.

    It protects ciphers in CBC mode, whose next initialisation vector is known (RFC 4251 section
    9.3.1); the others need no protection. It was half of all packets, each with a write of its own.
    """
    if str(connection.get_extra_info("send_cipher")).endswith("-cbc"):
        return
    send = connection.send_packet

    def send_packet(pkttype: int, *arguments: bytes, handler: Any = None) -> None:
        if pkttype != MSG_IGNORE:
            send(pkttype, *arguments, handler=handler)

    connection.send_packet = send_packet  # type: ignore[method-assign]


class Link:
    """A login. Its methods raise OSError, ConnectionLost if the connection has ended."""

    def __init__(self, there: LoggedIn, tasks: Tasks, name: str, timing: Timing) -> None:
        self.there = there
        self.rtt_s = 0.0
        self._connection = there.connection
        send_no_ignored(there.connection)
        self._tasks = tasks
        self._name = name
        self._timing = timing
        self._opening = 0
        self._sftp: asyncssh.SFTPClient | None = None
        self._sftp_task: asyncio.Task[Any] | None = None
        self._commands = asyncio.Semaphore(COMMANDS_MAX)
        self._commands_running = 0

    @property
    def is_lost(self) -> bool:
        """Whether the connection has ended."""
        return self._connection.is_closed()

    @property
    def window(self) -> int:
        """Receive window in bytes for a new channel."""
        return FAR_WINDOW if self.rtt_s > FAR_S else WINDOW

    async def prepare(self) -> None:
        """Open SFTP and run a command, then measure the round trip.

        OpenSSH disables Nagle's algorithm when the first session of a connection starts, and never
        for a forwarded socket alone: without a session, small answers wait 40 ms for an
        acknowledgement. A host that allows neither is used nevertheless.
        """
        failures = []
        sessions: list[tuple[str, Callable[[], Awaitable[object]]]] = [
            ("SFTP", self.sftp),
            ("a command", lambda: self.run("true", timeout_s=5)),
        ]
        for name, session in sessions:
            try:
                await session()
            except OSError as error:
                if self.is_lost:
                    raise
                failures.append(f"{name}: {error}")
        if len(failures) > 1:
            log.warning("no session on a host: calls wait 40 ms", host=self._name, errors=failures)
        await self.measure()

    async def measure(self) -> None:
        """Measure the round trip: the median of some."""
        samples = []
        with contextlib.suppress(OSError, asyncssh.Error):
            async with asyncio.timeout(self._timing.open_s):
                sftp = await self.sftp()
                for _ in range(SAMPLES):
                    begun_s = time.monotonic()  # the loop of uvloop counts milliseconds
                    await sftp.realpath(".")
                    samples.append(time.monotonic() - begun_s)
        if samples:
            self.rtt_s = statistics.median(samples)

    async def dial(self, path: str, protocol: asyncio.BaseProtocol) -> asyncio.Transport:
        """Connect `protocol` to the Unix socket `path` of the host."""
        transport = ChannelTransport(self._connection, protocol, {"peername": path})
        session = ChannelSession(transport)
        opening = self._connection.create_unix_connection(
            lambda: session, path, encoding=None, window=self.window
        )
        await self._open(f"a connection to {path}", opening, session.abandon)
        return transport

    async def run(self, command: str, *, timeout_s: float, input: bytes = b"") -> Completed:
        """Run a command in the login's shell. Raises TimeoutError, too."""
        async with asyncio.timeout(timeout_s):
            pauses_s = iter(REFUSED_S)
            while True:
                await self._commands.acquire()
                self._commands_running += 1
                is_kept = False
                try:
                    return await self._run(command, input)
                except ConnectionRefusedError:
                    # MaxSessions of the server is lower: never again so many at the same time.
                    is_kept = self._commands_running > 1
                    pause_s = 0.0 if is_kept else next(pauses_s, None)
                    if pause_s is None:
                        raise
                finally:
                    self._commands_running -= 1
                    if not is_kept:
                        self._commands.release()
                await asyncio.sleep(pause_s)

    async def _run(self, command: str, input: bytes) -> Completed:
        session = CommandSession()
        try:
            starting = start_command(self._connection, command, session)
            await self._open("a command", starting, session.abandon)
            session.send(input)
            return await session.done
        finally:
            session.abandon()

    async def sftp(self) -> asyncssh.SFTPClient:
        """Return the SFTP session that all share; it is opened again if it has ended."""
        if self._sftp is None:
            if self._sftp_task is None or self._sftp_task.done():
                self._sftp_task = self._tasks.spawn("sftp", self._start_sftp())
            await asyncio.wait({self._sftp_task}, timeout=self._timing.open_s)
            if self._sftp is None:
                is_done = self._sftp_task.done() and not self._sftp_task.cancelled()
                error = self._sftp_task.result() if is_done else "no answer in time"
                raise self._failed("SFTP", error)
        return self._sftp

    async def _start_sftp(self) -> Exception | None:
        for pause_s in (*REFUSED_S, None):
            try:
                client = await self._connection.start_sftp_client()
                break
            except asyncssh.ChannelOpenError as error:
                if pause_s is None:
                    return error
                await asyncio.sleep(pause_s)
            # asyncssh takes for granted that the channel still has its connection and its session,
            # which may have broken.
            except (OSError, asyncssh.Error, AssertionError, AttributeError) as error:
                return error
        self._sftp = client
        self._tasks.spawn("sftp-end", self._await_sftp_end(client))
        return None

    async def _await_sftp_end(self, client: asyncssh.SFTPClient) -> None:
        await client.wait_closed()
        if self._sftp is client:
            self._sftp = None

    async def listen(self, listener: Listener) -> None:
        """Listen on the host; a stale socket is removed first: OpenSSH's server keeps its own."""
        what = f"a listener on {listener.path}"
        sftp = await self.sftp()
        try:
            async with asyncio.timeout(self._timing.open_s):
                with contextlib.suppress(asyncssh.SFTPNoSuchFile):
                    attrs = await sftp.lstat(listener.path)
                    if not stat.S_ISSOCK(attrs.permissions or 0):
                        raise self._failed(what, "expected a socket or nothing, got another file")
                    await sftp.remove(listener.path)
                server = await self._connection.create_unix_server(
                    lambda: listener.session(self._connection),
                    listener.path,
                    encoding=None,
                    window=self.window,
                )
                try:
                    await sftp.chmod(listener.path, listener.mode)
                except BaseException:
                    server.close()
                    raise
        except asyncssh.ChannelListenError as error:
            hint = "its folder is missing or closed, or the server forbids it: fnctl doctor --host"
            raise self._failed(what, f"{error} ({hint})") from error
        except asyncssh.Error as error:
            raise self._failed(what, error) from error

    async def stop_listening(self, path: str) -> None:
        """Stop listening and remove the socket."""
        try:
            async with asyncio.timeout(self._timing.open_s):
                await self._connection.close_client_unix_listener(path)
                await (await self.sftp()).remove(path)
        except asyncssh.SFTPNoSuchFile:
            return
        except asyncssh.Error as error:
            raise self._failed(f"removing the listener on {path}", error) from error

    async def _open(
        self, what: str, opening: Coroutine[Any, Any, T], abandon: Callable[[], None]
    ) -> T:
        """Await a channel. If this is cancelled or takes too long, `abandon` is called, and the
        opening goes on by itself: asyncssh would forget the channel, but not the other side."""
        if self._opening >= OPENING_MAX or self.is_lost:
            opening.close()
            raise self._failed(what, f"{self._opening} others are being opened")
        task = self._tasks.spawn("open", self._caught(opening))
        is_open = False
        try:
            await asyncio.wait({task}, timeout=self._timing.open_s)
            is_open = task.done()
        finally:
            if not is_open:
                abandon()
        if task.cancelled() or not task.done():
            raise self._failed(what, "no answer in time")
        result: T | Exception = task.result()
        if isinstance(result, Exception):
            raise self._failed(what, result) from result
        return result

    async def _caught(self, opening: Coroutine[Any, Any, T]) -> T | Exception:
        self._opening += 1
        try:
            return await opening
        # asyncssh takes for granted that a channel keeps its connection and its session while it
        # opens. A break in that moment is an AssertionError or an AttributeError.
        except Exception as error:  # noqa: BLE001 - it concerns this channel alone
            return error
        finally:
            self._opening -= 1

    def _failed(self, what: str, error: object) -> OSError:
        """Return the OSError for a failure."""
        if self.is_lost:
            reason = self.there.reason_lost()
            return ConnectionLost(f"the SSH connection to {self._name} broke: {reason}")
        text = f"{self._name}: {what}: {shown(error)}"
        if isinstance(error, asyncssh.ChannelOpenError):
            return ConnectionRefusedError(text)
        return OSError(text)
