"""The load of one point: its connections and calls on one event loop, until its end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import select
import selectors
import signal
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from admin.cli.bench.connection import Connection
from admin.cli.bench.load import LoadPlan, LoadResult, Tally, gaps, is_expected
from admin.client.transport import Dial, Endpoint, Unreachable
from registry.tasks import Tasks

TICK_S: Final = 0.1
"""Seconds between two checks of time limits and reports of the progress."""
CONNECT_S: Final = 10.0
"""Max seconds of one attempt to connect, and of its TLS handshake."""
OPEN_S: Final = 60.0
"""Max seconds until all connections are open."""
OPENERS: Final = 8
"""Connections that are opened at the same time."""
PAUSE_S: Final = 0.1
"""Seconds before an attempt to connect that follows a failed one."""
AWAY_S: Final = 3.0
"""Seconds without any answer, while no connection can be opened, that end the load."""
AWAY: Final = "the server does not answer any more"
TIMEOUT: Final = "timeout"
UNCONNECTED: Final = "no connection"
INTERRUPTED: Final = "interrupted"
TOTAL: Final = "the total limit was reached"

Report = Callable[[float, int, int], None]
"""Receives the seconds since the load began, its answers and its errors."""


class Selector(selectors.EpollSelector):
    """Selector that wakes at the microsecond, where epoll waits whole milliseconds, and knows when.

    `woke_s`: the time of the last events. What is handled late in a turn of the loop had arrived
    then.
    """

    woke_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return the events within `timeout` seconds."""
        if timeout is not None and timeout > 0:
            select.select([self.fileno()], [], [], timeout)
            timeout = 0.0
        found = super().select(timeout)
        self.woke_s = time.monotonic()
        return found


def run_load(
    endpoint: Endpoint,
    plan: LoadPlan,
    request: bytes,
    *,
    report: Report = lambda *_: None,
    until_s: float = math.inf,
) -> LoadResult:
    """Run a load until its end, `until_s` (monotonic seconds) or Ctrl-C, which yields the result so
    far; Ctrl-C before the beginning is a KeyboardInterrupt.

    Raises Unreachable unless all connections can be opened.
    """
    selector = Selector()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        return runner.run(Generator(endpoint, plan, request, selector).run(report, until_s))


class Generator:
    """One load with its connections."""

    def __init__(
        self, endpoint: Endpoint, plan: LoadPlan, request: bytes, selector: Selector
    ) -> None:
        self._endpoint, self._plan, self._request = endpoint, plan, request
        self._selector = selector
        self._tls = ssl.create_default_context() if endpoint.is_secure else None
        self._dialers = ThreadPoolExecutor(OPENERS, "dial")
        self._connections: set[Connection] = set()
        self._idle: deque[Connection] = deque()
        self._made = 0
        """Connections that were opened."""
        self._tally = Tally(plan, math.inf)
        self._is_running = False
        self._gaps = gaps(plan)
        self._next_s = 0.0
        """Next planned start of an open load."""
        self._timer: asyncio.TimerHandle | None = None
        """Of the next planned start."""
        self._planned: deque[float] = deque()
        """Planned starts that are due and wait for a free connection."""
        self._unsent = 0
        self._busy = 0
        """Counted calls that are on their way."""
        self._answer_s = 0.0
        """Time of the last answer of any status."""
        self._refused_s = math.inf
        """Time of the first failed attempt to connect since the last successful one."""
        self._stopped = ""

    async def run(self, report: Report, until_s: float) -> LoadResult:
        """Open all connections and make the load. Raises Unreachable."""
        self._asked: asyncio.Queue[float] = asyncio.Queue()
        """A pause in seconds for each connection to open."""
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """All connections were open once."""
        tasks = Tasks("bench")
        try:
            for _ in range(self._plan.connections):
                self._asked.put_nowait(0.0)
            for _ in range(OPENERS):
                tasks.root("opener", self._open_all())
            await self._all_open()
            with _interrupts(self._interrupt), _no_collection():
                return await self._load(report, until_s)
        finally:
            self._is_running = False
            await tasks.close()
            # The loop would wait for its own executor: the figures come before a dial's time is up.
            self._dialers.shutdown(wait=False, cancel_futures=True)
            for connection in self._connections:
                connection.close()

    async def _all_open(self) -> None:
        """Wait until all connections were open once. Raises Unreachable."""
        try:
            async with asyncio.timeout(OPEN_S):
                await self._opened
        except TimeoutError:
            raise Unreachable(f"the connections were not open within {OPEN_S:g} s") from None

    async def _load(self, report: Report, until_s: float) -> LoadResult:
        began_s = now_s = self._answer_s = time.monotonic()
        tally = self._tally = Tally(self._plan, began_s)
        self._is_running = True
        self._next_s = began_s + next(self._gaps) if self._plan.rate else 0.0
        cpu_s, waited_s = time.process_time(), _waited_s()
        self._start_calls(now_s)
        while not self._is_over(now_s):
            await asyncio.sleep(TICK_S)
            now_s = time.monotonic()
            self._check(now_s)
            report(now_s - began_s, len(tally.taken_s), sum(tally.errors.values()))
            if now_s >= until_s:
                self._stopped = self._stopped or TOTAL
        length_s = max(time.monotonic() - began_s, 1e-9)
        tally.close(now_s)
        return tally.result(
            unsent=self._unsent + len(self._planned),
            busy=(time.process_time() - cpu_s) / length_s,
            starved=(_waited_s() - waited_s) / length_s,
            stopped=self._stopped,
        )

    def _interrupt(self) -> None:
        self._stopped = INTERRUPTED

    def _is_over(self, now_s: float) -> bool:
        if self._stopped:
            return True
        return not (self._busy or self._planned or self._tally.is_open(now_s))

    def _answered(self, connection: Connection, status: int) -> None:
        is_counted, now_s = connection.is_counted, self._selector.woke_s
        self._busy -= is_counted
        self._answer_s = now_s
        if is_expected(status, self._plan.status):
            self._tally.answered(connection.start_s, now_s, is_counted=is_counted)
        else:
            self._tally.failed(connection.kind(status), now_s, is_counted=is_counted)
        if not connection.is_reusable:
            self._replace(connection, 0.0)
        elif self._plan.rate:
            self._idle.append(connection)
            if self._planned:
                self._start_calls(time.monotonic())
        else:
            self._call(connection, time.monotonic())

    def _lost(self, connection: Connection, kind: str) -> None:
        """Count the failure of the connection's call, and replace the connection."""
        if connection.is_busy:
            self._busy -= connection.is_counted
            self._tally.failed(kind, time.monotonic(), is_counted=connection.is_counted)
        self._replace(connection, PAUSE_S)

    async def _open_all(self) -> None:
        """Open the connections that are asked for; ask again for those that failed."""
        while True:
            await asyncio.sleep(await self._asked.get())
            try:
                connection = await self._open()
            except (OSError, Unreachable) as error:
                self._refused(str(error) or type(error).__name__)
                continue
            self._refused_s = math.inf
            self._made += 1
            if self._made == self._plan.connections and not self._opened.done():
                self._opened.set_result(None)
            if connection.is_over:
                continue
            self._connections.add(connection)
            self._idle.append(connection)
            if self._is_running:
                self._start_calls(time.monotonic())

    async def _open(self) -> Connection:
        """Return a new connection. Raises OSError or Unreachable."""
        there, is_head = self._endpoint, self._plan.is_head

        def made() -> Connection:
            return Connection(self._answered, self._lost, is_head=is_head)

        sock = await self._dialled(there.dial or _connected, there.host, there.port)
        _, connection = await asyncio.get_running_loop().create_connection(
            made,
            sock=sock,
            ssl=self._tls,
            server_hostname=there.host if self._tls else None,
            ssl_handshake_timeout=CONNECT_S if self._tls else None,
        )
        return connection

    async def _dialled(self, dial: Dial, host: str, port: int) -> socket.socket:
        """Return a socket of `dial`, which runs in a thread; a socket that comes too late is
        closed. Raises what `dial` raises."""
        dialling = self._dialers.submit(dial, host, port)
        try:
            sock = await asyncio.wrap_future(dialling)
        except asyncio.CancelledError:
            dialling.add_done_callback(_discard)
            raise
        sock.setblocking(False)
        return sock

    def _refused(self, reason: str) -> None:
        """Count a failed attempt to connect; end the load of a server that has gone away."""
        if not self._opened.done():
            text = f"{self._endpoint.host}:{self._endpoint.port} takes no connections: {reason}"
            self._opened.set_exception(Unreachable(text))
        if not self._is_running:
            return
        now_s = time.monotonic()
        if self._tally.is_open(now_s):
            is_counted = now_s >= self._tally.opens_s
            self._tally.counted += is_counted
            self._tally.failed(UNCONNECTED, now_s, is_counted=is_counted)
        self._refused_s = min(self._refused_s, now_s)
        if now_s - max(self._refused_s, self._answer_s) > AWAY_S:
            self._stopped = self._stopped or f"{AWAY}: {reason}"
        self._asked.put_nowait(PAUSE_S)
        self._start_calls(now_s)

    def _start_calls(self, now_s: float) -> None:
        """Start the calls that are due on idle connections."""
        if not self._plan.rate:
            while self._idle:
                self._call(self._idle.popleft(), now_s)
            return
        while self._next_s <= now_s and self._tally.is_open(self._next_s):
            self._planned.append(self._next_s)
            self._next_s += next(self._gaps)
        while self._planned and now_s - self._planned[0] > self._plan.limits.timeout_s:
            self._planned.popleft()
            self._unsent += 1
        while self._planned and self._idle:
            self._call(self._idle.popleft(), time.monotonic(), self._planned.popleft())
            if self._tally.counted >= self._plan.limits.calls_max:
                self._planned.clear()
        self._plan_next()

    def _plan_next(self) -> None:
        """Set the timer to the next planned start, if there is one."""
        if self._timer is None and self._tally.is_open(self._next_s):
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(self._next_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._is_running:
            self._start_calls(time.monotonic())

    def _call(self, connection: Connection, now_s: float, planned_s: float | None = None) -> None:
        plan, tally = self._plan, self._tally
        if planned_s is None and not tally.is_open(now_s):
            return
        start_s = now_s if planned_s is None else planned_s
        connection.start_s, connection.deadline_s = start_s, now_s + plan.limits.timeout_s
        connection.is_counted = tally.starts(start_s)
        self._busy += connection.is_counted
        connection.send(self._request)

    def _check(self, now_s: float) -> None:
        """Fail calls whose time is up, and planned ones that waited too long."""
        late = [one for one in self._connections if one.is_busy and now_s >= one.deadline_s]
        for one in late:
            self._lost(one, TIMEOUT)
        if self._plan.rate:
            self._start_calls(now_s)

    def _replace(self, connection: Connection, pause_s: float) -> None:
        """Close a connection; open another one after `pause_s` if there are calls to make."""
        connection.close()
        self._connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if self._planned or self._tally.is_open(time.monotonic()):
            self._asked.put_nowait(pause_s)


def _connected(host: str, port: int) -> socket.socket:
    return socket.create_connection((host, port), CONNECT_S)


def _discard(dialling: Future[socket.socket]) -> None:
    if not dialling.cancelled() and dialling.exception() is None:
        dialling.result().close()


@contextlib.contextmanager
def _interrupts(on_interrupt: Callable[[], None]) -> Iterator[None]:
    """Call `on_interrupt` for Ctrl-C within the block: an exception could come between two
    statements, and lose the result."""
    loop = asyncio.get_running_loop()
    is_ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    )
    if is_ours:
        loop.add_signal_handler(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        if is_ours:
            loop.remove_signal_handler(signal.SIGINT)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Collect no garbage within the block, as that would delay a call. Only replaced connections
    leave cycles."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _waited_s() -> float:
    """Return the seconds that the main thread was ready to run and waited for a processor
    (proc_pid_schedstat(5)); 0 where the system does not report it."""
    try:
        return int(Path("/proc/self/schedstat").read_text("ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
