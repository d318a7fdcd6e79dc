"""The processes of a load, and the sockets that they need of this one."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from admin.cli.bench.load import LoadPlan, LoadResult, from_json, merge
from admin.client.transport import ApiError, Dial, Unreachable

MODULE: Final = "admin.cli.bench.generator"
TICK_S: Final = 0.1
CONNECT_S: Final = 60.0
"""Max seconds until all connections are open."""
INTERRUPTED: Final = "interrupted"
TOTAL: Final = "the total limit was reached"
STOP_S: Final = 5.0
"""Max seconds that a stopped process has for its result."""
READ: Final = 1 << 20
STDERR_MAX: Final = 4000
SHOWN_MAX: Final = 500

Report = Callable[[float, int, int], None]
"""Receives the seconds since the load began, its answers and its errors."""


@dataclass(slots=True)
class _Child:
    """One process with what it has reported so far."""

    plan: LoadPlan
    process: subprocess.Popen[bytes]
    rest: bytearray = field(default_factory=bytearray)
    is_ready: bool = False
    answers: int = 0
    errors: int = 0
    result: LoadResult | None = None


class _Interrupts:
    """Counts Ctrl-C while its block runs; the second one raises KeyboardInterrupt. An exception for
    the first one could come between two statements, and lose the result."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> _Interrupts:
        self._before = signal.getsignal(signal.SIGINT)
        self._is_set = (
            threading.current_thread() is threading.main_thread()
            and self._before is not signal.SIG_IGN
        )
        if self._is_set:
            signal.signal(signal.SIGINT, self._on_interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_set:
            signal.signal(signal.SIGINT, self._before)

    def _on_interrupt(self, *_: object) -> None:
        self.count += 1
        if self.count > 1:
            raise KeyboardInterrupt


def run_load(
    plans: Sequence[LoadPlan],
    request: bytes,
    *,
    dial: Dial | None = None,
    report: Report = lambda *_: None,
    until_s: float = float("inf"),
) -> LoadResult:
    """Run a load in one process per plan, until its end, `until_s` (monotonic seconds) or Ctrl-C,
    which yields the result so far; Ctrl-C before the beginning, or twice, is a KeyboardInterrupt.

    `dial` opens the connections in this process. Raises Unreachable, or ApiError if a process
    fails.
    """
    with contextlib.ExitStack() as stack:
        interrupts = stack.enter_context(_Interrupts())
        children = [stack.enter_context(_started(plan, request, dial)) for plan in plans]
        _await_ready(children, interrupts)
        for child in children:
            _write(child, b"!")
        stopped = _await_results(children, interrupts, report, until_s)
        results = [child.result for child in children if child.result is not None]
        if len(results) < len(children):
            raise _failed("it ended without a result")
    merged = merge(results)
    return replace(merged, stopped=stopped) if stopped else merged


def _await_ready(children: Sequence[_Child], interrupts: _Interrupts) -> None:
    limit_s = time.monotonic() + CONNECT_S
    while not all(child.is_ready for child in children):
        _read(children)
        if interrupts.count:
            raise KeyboardInterrupt
        if time.monotonic() > limit_s:
            raise Unreachable(f"the connections were not open within {CONNECT_S:g} s")


def _await_results(
    children: Sequence[_Child], interrupts: _Interrupts, report: Report, until_s: float
) -> str:
    """Read until every process has its result; return why the load was stopped, "" if it was
    not."""
    began_s = time.monotonic()
    limit_s, stopped = float("inf"), ""
    while any(child.result is None for child in children):
        _read(children)
        now_s = time.monotonic()
        answers = sum(child.answers for child in children)
        report(now_s - began_s, answers, sum(child.errors for child in children))
        if not stopped and (interrupts.count or now_s >= until_s):
            stopped = INTERRUPTED if interrupts.count else TOTAL
            limit_s = _stop(children)
        if now_s > limit_s:
            raise _failed(f"it did not stop within {STOP_S:g} s")
    return stopped


def _stop(children: Sequence[_Child]) -> float:
    """End stdin of the processes; return the time at which their results are overdue."""
    for child in children:
        assert child.process.stdin is not None
        with contextlib.suppress(OSError):
            child.process.stdin.close()
    return time.monotonic() + STOP_S


def _read(children: Sequence[_Child]) -> None:
    """Wait a tick for output of the processes, and take it. Raises Unreachable, or ApiError if one
    of them failed."""
    waiting = {
        child.process.stdout.fileno(): child
        for child in children
        if child.process.stdout is not None and child.result is None
    }
    readable, _, _ = select.select(list(waiting), [], [], TICK_S)
    for fd in readable:
        child = waiting[fd]
        data = os.read(fd, READ)
        if not data:
            raise _failed(_ending(child.process))
        child.rest += data
        if b"\n" not in data:
            continue
        *lines, child.rest = child.rest.split(b"\n")
        for line in lines:
            _take(child, json.loads(line))


def _ending(process: subprocess.Popen[bytes]) -> str:
    """Return why a process ended that has no result: the end of its error output, or its code."""
    assert process.stderr is not None
    if said := process.stderr.read(STDERR_MAX).decode(errors="replace").strip():
        return f"it ended: {said[-SHOWN_MAX:]}"
    code = process.wait()
    return f"it was ended by signal {-code}" if code < 0 else f"it ended with code {code}"


def _failed(reason: str) -> ApiError:
    """Return the error of a load generator, which says nothing about the server."""
    return ApiError(0, {"title": "A load generator failed", "detail": reason})


def _take(child: _Child, message: dict[str, Any]) -> None:
    if "progress" in message:
        child.answers, child.errors = message["progress"]
    elif "result" in message:
        child.result = from_json(message["result"])
        child.answers, child.errors = len(child.result.taken_s), child.result.failed
    elif "unreachable" in message:
        host, port = child.plan.host, child.plan.port
        raise Unreachable(f"{host}:{port} takes no connections: {message['unreachable']}")
    else:
        child.is_ready = True


def _write(child: _Child, data: bytes) -> None:
    assert child.process.stdin is not None
    try:
        child.process.stdin.write(data)
        child.process.stdin.flush()
    except OSError:
        return  # its output says why


@contextmanager
def _started(plan: LoadPlan, request: bytes, dial: Dial | None) -> Iterator[_Child]:
    """Run a process until the end of the block."""
    with _sockets(plan, dial) as fd:
        # A group of its own: Ctrl-C of the terminal must not end it before its result. A session of
        # its own would have its own share of the processors, too (sched(7), autogroups).
        process = subprocess.Popen(
            # With -P, a folder named admin in the working directory is not imported.
            [sys.executable, "-P", "-m", MODULE, "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=() if fd < 0 else (fd,),
            process_group=0,
        )
        child = _Child(plan, process)
        try:
            _write(child, replace(plan, socket_fd=fd).encode(request))
            yield child
        finally:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # stdin may have unsent bytes
                        pipe.close()


@contextmanager
def _sockets(plan: LoadPlan, dial: Dial | None) -> Iterator[int]:
    """Yield a descriptor over which connections of `dial` are received, -1 without `dial`."""
    if dial is None:
        yield -1
        return
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=_serve, args=(ours, dial, plan), daemon=True)
    thread.start()
    try:
        yield theirs.fileno()
    finally:
        # Ends the thread's wait.
        with contextlib.suppress(OSError):
            ours.shutdown(socket.SHUT_RDWR)
        theirs.close()
        thread.join(STOP_S)
        ours.close()


def _serve(channel: socket.socket, dial: Dial, plan: LoadPlan) -> None:
    """Send a connected socket for each byte, or the reason for having none."""
    with contextlib.suppress(OSError):
        while channel.recv(1):
            try:
                connected = dial(plan.host, plan.port)
            except Unreachable as error:
                channel.sendall((str(error) or "unreachable").encode()[:500])
                continue
            with connected:
                socket.send_fds(channel, [b"+"], [connected.fileno()])
