"""The SSH connection to a host, kept up: it logs in again after each break."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncssh
import structlog

from hosts.back_off import back_off_s
from hosts.commands import Completed
from hosts.errors import ConnectionLost, Unreachable, shown
from hosts.link import Link, Timing
from hosts.listening import PAUSE_S, Forward, Listener
from hosts.login import Login, log_in
from hosts.splice import End, attach
from registry.tasks import Tasks

log = structlog.get_logger()


class HostConnection:
    """SSH connection to the host `name`.

    Waits have limits; what the other side sends is bounded by windows and limits. Methods raise
    OSError, which is ConnectionLost where the connection is broken or not up.

    `generation` counts the logins. `on_up` is awaited after each login, when listeners stand
    again; if it raises, the connection is closed and opened again. `on_down` gets the reason of
    each break.
    """

    def __init__(  # noqa: PLR0913 - who it is for, and what differs between owners
        self,
        login: Login,
        tasks: Tasks,
        *,
        name: str,
        on_up: Callable[[], Awaitable[None]] | None = None,
        on_down: Callable[[str], None] | None = None,
        jitter_s: float = 0.0,
        timing: Timing | None = None,
    ) -> None:
        self.login = login
        self.name = name
        self.reason = "not connected yet"
        self.generation = 0
        self._logged_reason = ""
        self._owner_tasks = tasks
        self._on_up = on_up
        self._on_down = on_down
        self._jitter_s = jitter_s
        self._timing = timing or Timing()
        self._tasks = Tasks(f"ssh:{name}")
        self._task: asyncio.Task[Any] | None = None
        self._link: Link | None = None
        self._up = asyncio.Event()
        self._rtt_s = 0.0
        self._listeners: dict[str, Listener] = {}
        self._paused: set[str] = set()
        self._forwards: dict[Path, Forward] = {}

    def open(self) -> None:
        """Log in, and again after each break, until `close`."""
        if self._task is None:
            self._task = self._owner_tasks.spawn(f"ssh:{self.name}", self._keep())

    async def close(self) -> None:
        """Close the connection with its channels, listeners and forwards."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await self._end()

    @property
    def is_up(self) -> bool:
        """Whether a login stands; False before any channel reports the end of the connection."""
        return self._link is not None and not self._link.is_lost

    @property
    def why_down(self) -> str:
        """Why the connection is not up, also before `on_down` has got it."""
        lost = "" if self._link is None else self._link.there.reason_lost()
        return lost or self.reason or "it broke"

    @property
    def rtt_s(self) -> float:
        """Seconds of a round trip, as last measured; 0 before the first login."""
        return self._rtt_s if self._link is None else self._link.rtt_s

    async def wait_up(self, timeout_s: float) -> None:
        """Wait until the connection is up. Raises Unreachable with the reason why it is not."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self.is_up:
                    self._up.clear()
                    await self._up.wait()
        except TimeoutError as error:
            raise Unreachable(f"{self.name}: {self.reason}") from error

    async def dial(self, path: str, protocol: asyncio.BaseProtocol) -> asyncio.Transport:
        """Connect `protocol` to the Unix socket `path` of the host.

        `protocol` is a Protocol or a BufferedProtocol. Its `connection_lost` gets a ConnectionLost
        if the SSH connection broke, and None if the other end closed: then, and only then, all that
        the other end sent was delivered.
        """
        return await self._here().dial(path, protocol)

    async def connect(self, path: str) -> socket.socket:
        """Connect to the Unix socket `path` of the host; return one end of a socket pair,
        non-blocking, with back-pressure. It is closed when the SSH connection breaks."""
        far = End()
        await self.dial(path, far)
        return await attach(far)

    async def listen(
        self, path: str, accept: Callable[[socket.socket], None], mode: int = 0o666
    ) -> Listener:
        """Listen on `path` of the host, and again after each login, until `close`.

        A socket that is there is removed: one manager owns it. Each connection is passed to
        `accept` as one end of a socket pair, non-blocking, with back-pressure. The folder must be
        closed to others than those who may connect, and not writable for them.
        """
        link = self._here()
        listener = Listener(path, mode, accept, self._tasks, self._flooded)
        await link.listen(listener)
        listener.generation = self.generation
        self._listeners[path] = listener
        return listener

    async def run(self, command: str, *, timeout_s: float, input: bytes = b"") -> Completed:
        """Run a command in the login's shell. Raises TimeoutError, too."""
        return await self._here().run(command, timeout_s=timeout_s, input=input)

    async def sftp(self) -> asyncssh.SFTPClient:
        """Return the SFTP session of this login; all callers share it."""
        return await self._here().sftp()

    async def forward(self, local: Path, remote: str) -> None:
        """Create the local Unix socket `local`, whose connections go to `remote` on the host.

        It stays when the connection breaks: then its connections end, and new ones are closed.
        """
        if local in self._forwards:
            raise FileExistsError(f"expected a new path, got {local}, which is forwarded")
        forward = Forward(local, remote, self.dial, self._tasks)
        await forward.start()
        self._forwards[local] = forward

    def _here(self) -> Link:
        if self._link is None or self._link.is_lost:
            raise ConnectionLost(f"no SSH connection to {self.name}: {self.why_down}")
        return self._link

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        try:
            await asyncio.sleep(random.random() * self._jitter_s)  # noqa: S311 - no secret
            while True:
                begun_s = loop.time()
                is_refusal = await self._live()
                if loop.time() - begun_s >= self._timing.steady_s:
                    failures = 0
                timing, chance = self._timing, random.random()  # noqa: S311
                wait_s = back_off_s(timing.back_off_s, timing.back_off_max_s, failures, chance)
                await asyncio.sleep(self._timing.refused_s if is_refusal else wait_s)
                failures += 1
        finally:
            self._task = None
            self.reason = "closed"
            await self._end()

    async def _live(self) -> bool:
        """Log in and wait for the end of the connection, whose reason is in `reason`. Return
        whether a key was refused."""
        link = None
        was_up = is_refusal = False
        try:
            there = await log_in(self.login, alive_s=self._timing.keepalive_s)
            link = Link(there, self._tasks, self.name, self._timing)
            await link.prepare()
            self._link, was_up = link, True
            self.generation += 1
            self.reason = self._logged_reason = ""
            self._up.set()
            await self._serve(link)
        except Exception as error:  # noqa: BLE001 - or the host would stay away for ever
            self.reason = self._described(error)
            is_refusal = isinstance(error, Unreachable) and error.is_refusal
        finally:
            if link is not None:
                self._rtt_s = link.rtt_s
                self.reason = link.there.reason_lost() or self.reason or "closed"
                await link.there.close()
            self._link = None
        if self.reason != self._logged_reason:
            log.info("no SSH connection", host=self.name, reason=self.reason)
        self._logged_reason = self.reason
        if was_up and self._on_down is not None:
            self._on_down(self.reason)
        return is_refusal

    def _described(self, error: Exception) -> str:
        if isinstance(error, Unreachable):
            return str(error) or type(error).__name__
        if isinstance(error, OSError | asyncssh.Error):
            return shown(error) or type(error).__name__
        log.error("an SSH connection failed", host=self.name, exc_info=error)
        return f"{type(error).__name__}: {shown(error)}"

    async def _serve(self, link: Link) -> None:
        """Establish listeners, inform the owner, and measure until the connection ends.

        A listener that fails is tried again after `on_up`, which may create its folder.
        """
        lost = self._tasks.spawn("lost", link.there.host_keys.lost.wait())
        up = self._tasks.spawn("up", self._go_up(link))
        try:
            await asyncio.wait({lost, up}, return_when=asyncio.FIRST_COMPLETED)
            if up.done() and (error := up.result()):
                raise error
            while not lost.done():
                await asyncio.wait({lost}, timeout=self._timing.measure_s)
                if not lost.done():
                    await link.measure()
        finally:
            for task in (lost, up):
                task.cancel()
            await asyncio.wait({lost, up})

    async def _go_up(self, link: Link) -> Exception | None:
        try:
            await self._listen_again(link, is_last=self._on_up is None)
            if self._on_up is not None:
                await self._on_up()
                await self._listen_again(link, is_last=True)
        except (OSError, asyncssh.Error, Unreachable) as error:
            return error
        except Exception as error:
            log.exception("a connection's owner failed", host=self.name)
            return OSError(f"{type(error).__name__}: {error}")
        return None

    async def _listen_again(self, link: Link, *, is_last: bool) -> None:
        for listener in list(self._listeners.values()):
            if listener.generation == self.generation:
                continue
            try:
                await link.listen(listener)
                listener.generation = self.generation
            except OSError:
                if is_last or link.is_lost:
                    raise

    def _flooded(self, listener: Listener) -> None:
        if listener.path not in self._paused:
            self._paused.add(listener.path)
            self._tasks.spawn(f"pause:{listener.path}", self._pause(listener))

    async def _pause(self, listener: Listener) -> None:
        """Close a flooded listener for PAUSE_S; its connections stay. A new login ends the pause:
        it establishes all listeners."""
        log.warning("too many connections from a host", host=self.name, path=listener.path)
        link = self._link
        try:
            while link is not None and link is self._link and not link.is_lost:
                try:
                    await link.stop_listening(listener.path)
                    await asyncio.sleep(PAUSE_S)
                    if link is self._link:
                        await link.listen(listener)
                    return
                except OSError as error:
                    log.warning("a listener is closed", host=self.name, reason=str(error))
                    await asyncio.sleep(PAUSE_S)
        finally:
            self._paused.discard(listener.path)

    async def _end(self) -> None:
        for forward in self._forwards.values():
            forward.close()
        self._forwards.clear()
        self._listeners.clear()
        await self._tasks.close()
