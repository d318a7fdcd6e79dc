"""The processes of a load begin together, end together, and outlive nobody."""

from __future__ import annotations

import os
import signal
import socket
import threading

import pytest

from admin.cli.bench.load import LoadPlan
from admin.cli.bench.processes import run_load
from admin.client.transport import Unreachable
from tests.support.load_target import answer, target

REQUEST = b"GET / HTTP/1.1\r\n\r\n"


def plan(port: int, connections: int = 3, seconds: float = 0.3) -> LoadPlan:
    """A short load."""
    return LoadPlan("127.0.0.1", port, connections, seconds)


def test_several_processes_are_one_load() -> None:
    """Their answers add up; the progress reaches the sum; sockets may come from this process."""
    reports: list[int] = []
    dialled: list[int] = []

    def dial(host: str, port: int) -> socket.socket:
        dialled.append(port)
        return socket.create_connection((host, port))

    with target(lambda _: answer()) as server:
        plans = plan(server.port).split(2)
        found = run_load(
            plans, REQUEST, dial=dial, report=lambda _, answers, __: reports.append(answers)
        )
        # Calls on their way at the end of the window end before the load does.
        assert server.requests == len(found.taken_s)

    assert (found.errors, found.cut, found.stopped) == ({}, 0, "")
    assert dialled == [server.port] * 3
    assert reports[-1] == len(found.taken_s)


def test_a_load_without_a_server_is_unreachable() -> None:
    """The reason is that of the process, or of the tunnel."""

    def dial(host: str, port: int) -> socket.socket:
        raise Unreachable("the tunnel has no end")

    with target(lambda _: answer()) as server:
        pass
    for dials, text in ((None, "refused"), (dial, "the tunnel has no end")):
        with pytest.raises(Unreachable, match=text):
            run_load([plan(server.port)], REQUEST, dial=dials)


@pytest.mark.parametrize("calls", [0, 5])
def test_ctrl_c_ends_with_what_was_measured(calls: int) -> None:
    """Before the load there is nothing; within it, calls on their way are told apart."""
    free = threading.Event()

    def script(number: int) -> bytes:
        if number == calls:
            os.kill(os.getpid(), signal.SIGINT)
        if number >= calls:
            free.wait()
        return answer()

    def dial(host: str, port: int) -> socket.socket:
        if not calls:
            os.kill(os.getpid(), signal.SIGINT)
        return socket.create_connection((host, port))

    with target(script) as server:
        one = plan(server.port, connections=1, seconds=60.0)
        if calls:
            found = run_load([one], REQUEST)
            assert (len(found.taken_s), found.cut, found.stopped) == (calls, 1, "interrupted")
        else:
            with pytest.raises(KeyboardInterrupt):
                run_load([one], REQUEST, dial=dial)
        free.set()


def test_the_total_limit_stops_a_load() -> None:
    """As Ctrl-C does, with another reason."""
    with target(lambda _: answer()) as server:
        found = run_load([plan(server.port, seconds=60.0)], REQUEST, until_s=0.0)
    assert found.stopped == "the total limit was reached"
    assert found.window_s < 60.0
