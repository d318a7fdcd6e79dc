"""Tests of what must hold while gateway processes and their supervisor die or stop."""

from __future__ import annotations

import http.client
import itertools
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.process_server import END_S, ServerProcess, server_process, wait_end
from tests.support.worker_server import Line, lines, until_replaced, watch, worker_pids

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

HANDLER = """
import os, threading

def load(ctx):
    pass

def predict(inputs, ctx):
    while os.path.exists({flag!r}):
        threading.Event().wait(0.005)
    return {{"n": inputs["n"] + 1}}
"""
MANIFEST = """schema = 1
[runtime]
engine = "python"
[scaling]
max = 1
[batching]
mode = "off"
[input.n]
dtype = "INT64"
shape = [-1]
"""
DROPPED = (http.client.HTTPException, OSError)
LINES_EACH = 4
LIMIT = 2
"""Calls that a replica without batching takes at once."""


@dataclass
class Caller:
    """Thread that calls over one connection until it is stopped or the connection breaks.

    `wrong` has the wrong answers, `cut_off` says that a call got none.
    """

    line: Line
    ended: threading.Event
    right: int = 0
    cut_off: bool = False
    wrong: list[Any] = field(default_factory=list)
    began: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Call repeatedly."""
        for number in itertools.count():
            if self.ended.is_set():
                return
            try:
                status, document = self.line.call("f", {"n": [number]})
            except DROPPED:
                self.cut_off = True
                return
            if status == 200 and document["outputs"]["n"] == [number + 1]:
                self.right += 1
                self.began.set()
            else:
                self.wrong.append((status, document))


@contextmanager
def calling(callers: list[Caller]) -> Iterator[None]:
    """Run all callers during the block, which begins once each has had an answer."""
    threads = [threading.Thread(target=caller.run) for caller in callers]
    for thread in threads:
        thread.start()
    try:
        for caller in callers:
            assert caller.began.wait(END_S)
        yield
    finally:
        for caller in callers:
            caller.ended.set()
        for thread in threads:
            thread.join(END_S)


class Held:
    """One call over each of several connections, each in its own thread, with the answers."""

    def __init__(self, over: list[Line], name: str = "f") -> None:
        self._over = over
        self._name = name
        self.answers: list[tuple[int, Any]] = []

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Start all calls at the start of the block, and wait for the answers at its end."""
        threads = [threading.Thread(target=self._call, args=(line,)) for line in self._over]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            for thread in threads:
                thread.join(END_S)

    def _call(self, line: Line) -> None:
        status, document = line.call(self._name, {"n": [41]})
        self.answers.append((status, document.get("outputs")))


@pytest.fixture
def flag(tmp_path: Path) -> Path:
    """While this file exists, every call keeps running."""
    return tmp_path / "flag"


@pytest.fixture
def server(tmp_path: Path, flag: Path) -> Iterator[ServerProcess]:
    """A server with two workers, and a function f that adds one."""
    folder = tmp_path / "f"
    folder.mkdir()
    (folder / "function.toml").write_text(MANIFEST)
    (folder / "handler.py").write_text(HANDLER.format(flag=str(flag)))
    with server_process(tmp_path / "data", "--workers", "2", "--cpu-slots", "1") as server:
        server.fnctl_json("deploy", str(folder), "--trust")
        yield server


def test_a_killed_worker_takes_only_its_own_connections(server: ServerProcess) -> None:
    """After kill -9 of a worker, callers of the other are not affected, and those cut off are
    served on a new connection."""
    ended = threading.Event()
    with lines(server, LINES_EACH) as all_lines:
        callers = [Caller(line, ended) for line in all_lines]
        victim = callers[0].line.pid
        with calling(callers):
            gone = watch(victim)
            os.kill(victim, signal.SIGKILL)
            wait_end(gone)
            seen = [caller.right for caller in callers]
            others = [caller for caller in callers if caller.line.pid != victim]
            until(lambda: all(one.right > seen[callers.index(one)] + 5 for one in others))

    for caller in callers:
        assert caller.wrong == []
        assert caller.cut_off is (caller.line.pid == victim)
    until_replaced(server, victim)
    with lines(server) as both:
        assert [line.call("f", {"n": [1]})[0] for line in both] == [200, 200]


def test_a_killed_server_serves_on_what_is_warm_and_holds_nothing_else(
    server: ServerProcess, flag: Path
) -> None:
    """After kill -9 of the supervisor, workers finish running calls and refuse held ones and later
    cold calls."""
    assert server.process is not None
    folder = flag.parent / "f"
    server.fnctl_json("deploy", str(folder), "--name", "g", "--trust")
    with lines(server, 4) as all_lines:
        first, second = all_lines[:4], all_lines[4:]
        assert first[0].call("f", {"n": [1]})[0] == 200
        running, cold = Held([first[0]]), Held([first[1], second[1]], "g")
        warm = Held([first[3]])
        flag.touch()
        died = watch(server.process.pid)
        with running.calling():
            until(lambda: counts(server) == (1, 0))
            with cold.calling():
                until(lambda: counts(server, "g")[1] == 2)
                os.kill(server.process.pid, signal.SIGKILL)
                wait_end(died)
            # The flag still exists, so these are answered while the other call still runs.
            assert [status for status, _ in cold.answers] == [503, 503]
            status, document = first[2].call("g", {"n": [1]})
            assert (status, document["code"]) == (503, "shutting_down")
            with warm.calling():
                flag.unlink()
        for line in (first[1], first[2], second[1]):
            assert (line.headers["Retry-After"], line.headers["Connection"]) == ("2", "close")
    assert running.answers == warm.answers == [(200, {"n": [42]})]
    server.forget()


def test_a_server_that_is_killed_is_finished_by_its_workers(
    server: ServerProcess, flag: Path
) -> None:
    """After kill -9 of the supervisor running calls are answered and the workers end. A server
    started on the same port at once adopts the replica with its running calls."""
    assert server.process is not None
    port, supervisor = server.url.rpartition(":")[2], server.process.pid
    with lines(server) as both:
        assert [line.call("f", {"n": [1]})[0] for line in both] == [200, 200]
        held = Held(both)
        flag.touch()
        with held.calling():
            until(lambda: counts(server) == (len(both), 0))
            replicas = server.replica_pids("serve")
            ends = [watch(pid) for pid in worker_pids(supervisor)]
            died = watch(supervisor)
            os.kill(supervisor, signal.SIGKILL)
            wait_end(died)
            with server_process(server.data, "--workers", "2", "--port", port) as following:
                assert held.answers == []
                with lines(following) as fresh:
                    flag.unlink()
                    for end in ends:
                        wait_end(end)
                    assert following.replica_pids("serve") == replicas
                    assert [line.call("f", {"n": [1]})[0] for line in fresh] == [200, 200]

    assert held.answers == [(200, {"n": [42]})] * len(both)
    server.forget()


def shown(server: ServerProcess, name: str) -> dict[str, Any]:
    """Return the function as the admin API shows it."""
    line = Line(server)
    try:
        status, document = line.ask("GET", f"/admin/v1/functions/{name}", headers=server.headers)
        assert status == 200
        return dict(document)
    finally:
        line.close()


def test_a_replicas_limit_holds_over_all_workers(server: ServerProcess, flag: Path) -> None:
    """A replica's limit holds over all workers; a call over the limit waits at its worker and is
    served when there is room."""
    with lines(server, LINES_EACH) as all_lines:
        assert all_lines[0].call("f", {"n": [1]})[0] == 200
        held = Held(all_lines)
        flag.touch()
        with held.calling():
            # Each worker alone has more calls than the replica takes.
            until(lambda: counts(server) == (LIMIT, len(all_lines) - LIMIT))
            flag.unlink()

    assert held.answers == [(200, {"n": [42]})] * len(all_lines)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_stops_answers_what_it_has_accepted(
    server: ServerProcess, flag: Path, number: signal.Signals
) -> None:
    """After a signal to the whole process group, as of Ctrl-C, running and held calls are answered
    while new connections are refused."""
    assert server.process is not None
    with lines(server, LINES_EACH) as all_lines:
        workers = worker_pids(server.process.pid)
        ends = [watch(pid) for pid in workers]
        held = Held(all_lines)
        flag.touch()
        with held.calling():
            until(lambda: sum(counts(server)) == len(all_lines))
            if number is signal.SIGINT:
                for pid in workers:
                    os.kill(pid, number)
            codes: list[int] = []
            stopping = threading.Thread(target=lambda: codes.append(server.stop(number)))
            stopping.start()
            until(lambda: not lets_in(server))
            assert held.answers == []
            flag.unlink()
        stopping.join(END_S)
        for end in ends:
            wait_end(end)

    assert held.answers == [(200, {"n": [42]})] * len(all_lines)
    assert codes == [0]
    assert server.replica_pids() == []
    assert server.sockets() == []


def counts(server: ServerProcess, name: str = "f") -> tuple[int, int]:
    """Return the function's calls in flight, and its held calls."""
    document = shown(server, name)
    return document["in_flight"], document["held"]


def lets_in(server: ServerProcess) -> bool:
    """Return whether a connection is accepted."""
    try:
        socket.create_connection(("127.0.0.1", urlsplit(server.url).port or 0)).close()
    except OSError:
        return False
    return True


def until(condition: Callable[[], bool]) -> None:
    """Wait for a change that other threads make."""
    for _ in range(100_000):
        if condition():
            return
        threading.Event().wait(0.002)
    raise AssertionError("it does not come about")
