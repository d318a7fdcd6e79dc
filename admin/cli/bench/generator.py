"""The process that makes a load: `python -m admin.cli.bench.generator PLAN`, on one thread.

PLAN is a file as `LoadPlan.encode` makes it. With "-" the plan is read from stdin; the load then
begins with a further byte there, and stops when stdin ends, so that no load outlives its parent.
The output is lines of JSON: {"ready": ...} and {"progress": [answers, errors]} with "-" only, then
{"result": ...} or {"unreachable": reason}.
"""

from __future__ import annotations

import gc
import json
import math
import resource
import select
import socket
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any, BinaryIO, Final

from admin.cli.bench.connection import MISTAKES, OK, Broken, Connection
from admin.cli.bench.load import LoadPlan, LoadResult, Tally, decode, gaps
from admin.cli.bench.opener import Opener, directly, passed

TICK_S: Final = 0.1
"""Seconds between two checks of time limits, and the longest sleep."""
REPORT_S: Final = 0.25
"""Seconds between two reports of the progress."""
PAUSE_S: Final = 0.1
"""Seconds before an attempt to connect that follows a failed one."""
AWAY_S: Final = 3.0
"""Seconds without any answer, while no connection can be opened, that end the load."""
AWAY: Final = "the server does not answer any more"
TIMEOUT: Final = "timeout"
STDIN: Final = 0


class Unconnected(Exception):
    """The connections could not be opened; the text says why."""


class Generator:
    """One load with its connections."""

    def __init__(self, plan: LoadPlan, request: bytes, *, has_parent: bool) -> None:
        self._plan, self._request, self._has_parent = plan, request, has_parent
        address = plan.host, plan.port
        opens = passed(plan.socket_fd) if plan.socket_fd >= 0 else None
        self._opener = Opener(opens or directly(*address, is_secure=plan.is_secure))
        self._epoll = select.epoll()
        self._connections: dict[int, Connection] = {}
        self._idle: deque[Connection] = deque()
        self._tally = Tally(plan, 0.0)
        self._gaps = gaps(plan)
        self._next_s = 0.0
        """Next planned start of an open load."""
        self._planned: deque[float] = deque()
        """Planned starts that are due and wait for a free connection."""
        self._unsent = 0
        self._owed: deque[int] = deque()
        """Ended calls of each connection that is replaced."""
        self._busy = 0
        """Counted calls that are on their way."""
        self._answer_s = 0.0
        """Time of the last answer of any status."""
        self._refused_s = math.inf
        """Time of the first failed attempt to connect since the last successful one."""
        self._stopped = ""

    def connect(self) -> None:
        """Open all connections. Raises Unconnected."""
        for _ in range(self._plan.connections):
            self._opener.ask()
        while len(self._connections) < self._plan.connections:
            for made in self._opener.wait():
                if isinstance(made, OSError):
                    raise Unconnected(str(made) or type(made).__name__) from made
                self._add(made)

    def run(self) -> LoadResult:
        """Make the load; return its result."""
        began_s = self._answer_s = time.perf_counter()
        tally = self._tally = Tally(self._plan, began_s)
        self._epoll.register(self._opener.fd, select.EPOLLIN)
        if self._has_parent:
            self._epoll.register(STDIN, select.EPOLLIN)
        self._next_s = began_s + next(self._gaps) if self._plan.rate else 0.0
        cpu_s, waited_s = time.process_time(), _waited_s()
        tick_s = report_s = began_s
        now_s = began_s
        self._start_calls(now_s)
        while not self._is_over(now_s):
            events = self._poll(now_s)
            now_s = time.perf_counter()
            for fd, mask in events:
                self._handle(fd, mask, now_s)
            if self._planned or self._plan.rate:
                self._start_calls(time.perf_counter())
            if now_s >= tick_s:
                tick_s = now_s + TICK_S
                self._check(now_s)
            if self._has_parent and now_s >= report_s:
                report_s = now_s + REPORT_S
                emit({"progress": [len(tally.taken_s), sum(tally.errors.values())]})
        length_s = max(time.perf_counter() - began_s, 1e-9)
        tally.close(now_s)
        return tally.result(
            unsent=self._unsent + len(self._planned),
            busy=(time.process_time() - cpu_s) / length_s,
            starved=(_waited_s() - waited_s) / length_s,
            stopped=self._stopped,
        )

    def close(self) -> None:
        """Close all connections."""
        self._opener.close()
        for connection in self._connections.values():
            connection.sock.close()
        self._epoll.close()

    def _is_over(self, now_s: float) -> bool:
        if self._stopped:
            return True
        if self._busy or self._planned or self._owed:
            return False
        if self._plan.each:
            return all(one.calls >= self._plan.each for one in self._connections.values())
        return not self._tally.is_open(now_s)

    def _poll(self, now_s: float) -> list[tuple[int, int]]:
        if not self._plan.rate or self._planned or not self._tally.is_open(self._next_s):
            return self._epoll.poll(TICK_S)
        # epoll waits whole milliseconds; select is more precise.
        left_s = min(max(self._next_s - now_s, 0.0), TICK_S)
        select.select([self._epoll.fileno()], [], [], left_s)
        return self._epoll.poll(0)

    def _handle(self, fd: int, mask: int, now_s: float) -> None:
        if fd == STDIN and self._has_parent:
            self._stopped = "interrupted"
            return
        if fd == self._opener.fd:
            self._take(now_s)
            return
        connection = self._connections[fd]
        try:
            if mask & select.EPOLLOUT and connection.send_rest():
                self._epoll.modify(fd, select.EPOLLIN)
            status = connection.receive() if mask & ~select.EPOLLOUT else 0
        except Broken as error:
            self._lost(connection, str(error), now_s)
            return
        if status:
            self._answered(connection, status, now_s)

    def _answered(self, connection: Connection, status: int, now_s: float) -> None:
        is_counted = connection.is_counted
        self._busy -= is_counted
        self._answer_s = now_s
        expected = self._plan.status
        if status == expected if expected else OK <= status < MISTAKES:
            self._tally.answered(connection.start_s, now_s, is_counted=is_counted)
        else:
            self._tally.failed(connection.kind(status), now_s, is_counted=is_counted)
        if not connection.is_reusable:
            self._replace(connection, 0.0)
        elif self._plan.rate:
            self._idle.append(connection)
        else:
            self._call(connection, time.perf_counter())

    def _lost(self, connection: Connection, kind: str, now_s: float) -> None:
        """Count the failure of the connection's call, and replace the connection."""
        if connection.is_busy:
            self._busy -= connection.is_counted
            self._tally.failed(kind, now_s, is_counted=connection.is_counted)
            connection.calls += 1
        self._replace(connection, PAUSE_S)

    def _take(self, now_s: float) -> None:
        """Use the connections that were opened; ask again for those that failed."""
        for made in self._opener.taken():
            if isinstance(made, OSError):
                if self._tally.is_open(now_s):
                    is_counted = now_s >= self._tally.opens_s
                    self._tally.counted += is_counted
                    self._tally.failed("no connection", now_s, is_counted=is_counted)
                self._refused_s = min(self._refused_s, now_s)
                if now_s - max(self._refused_s, self._answer_s) > AWAY_S:
                    self._stopped = f"{AWAY}: {made}"
                self._opener.ask(PAUSE_S)
                continue
            self._refused_s = math.inf
            self._add(made)
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
        while self._planned and now_s - self._planned[0] > self._plan.timeout_s:
            self._planned.popleft()
            self._unsent += 1
        while self._planned and self._idle:
            self._call(self._idle.popleft(), time.perf_counter(), self._planned.popleft())
            if self._tally.counted >= self._plan.calls_max:
                self._planned.clear()

    def _call(self, connection: Connection, now_s: float, planned_s: float | None = None) -> None:
        plan, tally = self._plan, self._tally
        if planned_s is None and not tally.is_open(now_s):
            return
        if plan.each and connection.calls >= plan.each:
            return
        start_s = now_s if planned_s is None else planned_s
        connection.start_s, connection.deadline_s = start_s, now_s + plan.timeout_s
        connection.is_counted = tally.starts(start_s)
        self._busy += connection.is_counted
        try:
            is_sent = connection.send()
        except Broken as error:
            self._lost(connection, str(error), now_s)
            return
        if not is_sent:
            self._epoll.modify(connection.fd, select.EPOLLIN | select.EPOLLOUT)

    def _check(self, now_s: float) -> None:
        """Fail calls whose time is up."""
        late = [
            one for one in self._connections.values() if one.is_busy and now_s >= one.deadline_s
        ]
        for one in late:
            self._lost(one, TIMEOUT, now_s)

    def _add(self, sock: socket.socket) -> None:
        calls = self._owed.popleft() if self._owed else 0
        connection = Connection(sock, self._request, is_head=self._plan.is_head, calls=calls)
        self._connections[connection.fd] = connection
        self._epoll.register(connection.fd, select.EPOLLIN)
        self._idle.append(connection)

    def _replace(self, connection: Connection, pause_s: float) -> None:
        """Close a connection; open another one after `pause_s` if it has calls to make."""
        del self._connections[connection.fd]
        self._epoll.unregister(connection.fd)
        connection.sock.close()
        if connection in self._idle:
            self._idle.remove(connection)
        each = self._plan.each
        if each and connection.calls >= each:
            return
        if each:
            self._owed.append(connection.calls)
        if each or self._planned or self._tally.is_open(time.perf_counter()):
            self._opener.ask(pause_s)


def _waited_s() -> float:
    """Return the seconds that this thread was ready to run and waited for a processor
    (proc_pid_schedstat(5)); 0 where the system does not report it."""
    try:
        return int(Path("/proc/self/schedstat").read_text("ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def emit(message: dict[str, Any]) -> None:
    """Write one line of JSON."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def execute(source: BinaryIO, *, has_parent: bool) -> None:
    """Read a plan, make its load, and write the result."""
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))
    plan, count = decode(source.readline())
    generator = Generator(plan, source.read(count), has_parent=has_parent)
    try:
        generator.connect()
        if has_parent:
            emit({"ready": plan.connections})
            if not source.read(1):
                return
        # A collection would delay a call; only replaced connections leave cycles.
        gc.collect()
        gc.disable()
        emit({"result": generator.run().to_json()})
    except Unconnected as error:
        emit({"unreachable": str(error)})
    finally:
        generator.close()


def main() -> None:
    """Run the process."""
    if sys.argv[1] == "-":
        execute(sys.stdin.buffer, has_parent=True)
        return
    with Path(sys.argv[1]).open("rb") as source:
        execute(source, has_parent=False)


if __name__ == "__main__":
    main()
