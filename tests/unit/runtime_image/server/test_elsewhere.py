"""Servers that listen elsewhere: told from those that still start."""

from __future__ import annotations

from typing import Any

import pytest

from runtime_image.server import elsewhere as module
from runtime_image.server.connecting import REFUSED, Server
from runtime_image.server.elsewhere import (
    APART_SETTLED_S,
    MACHINE_BUSY,
    SETTLED_S,
    Elsewhere,
    PortWatch,
    machine_cpu_s,
    misplaced,
)
from runtime_image.server.listeners import Listener
from runtime_image.server.readiness import Answer, Readiness

WRONG = Listener("0.0.0.0", 9321, 5)
METRICS = Listener("127.0.0.1", 9090, 6)


def seen(
    addresses: list[list[Listener]],
    cpu_s: float = 0.0,
    elsewhere: Elsewhere | None = None,
    *,
    waits_each: int = 0,
) -> int | None:
    """Return the second at which a server with these addresses, one list a second, has settled.

    `cpu_s` is its CPU time in each second. It waits for the CPU at each `waits_each`th look.
    """
    elsewhere = elsewhere or Elsewhere()
    for second, found in enumerate(addresses):
        is_waiting = bool(waits_each) and second % waits_each == 0
        if elsewhere.has_settled(100.0 + second, found, cpu_s * second, is_waiting=is_waiting):
            return second
    return None


@pytest.mark.parametrize(
    ("listener", "is_misplaced"),
    [
        (Listener("127.0.0.1", 8000, 1), False),
        (Listener("0.0.0.0", 8000, 1), False),
        (Listener("::", 8000, 1), False),
        (Listener("::ffff:127.0.0.1", 8000, 1), False),
        (Listener("127.0.0.2", 8000, 1), True),
        (Listener("127.0.0.1", 8001, 1), True),
    ],
)
def test_another_port_or_address_is_misplaced(listener: Listener, is_misplaced: bool) -> None:
    """An address at which the sidecar does not connect is no better than another port."""
    assert misplaced([listener], 8000) == [listener] * is_misplaced
    assert misplaced([listener], 0) == [listener]


def test_a_server_that_stays_elsewhere_has_settled() -> None:
    """After SETTLED_S, counted from its first second there."""
    assert seen([[], [], *[[WRONG]] * 30]) == 2 + SETTLED_S


def test_a_server_whose_addresses_change_has_not_settled() -> None:
    """It is still starting; the time begins anew."""
    assert seen([*[[METRICS]] * 9, *[[METRICS, WRONG]] * 30]) == 9 + SETTLED_S


def test_a_busy_server_has_not_settled() -> None:
    """It may load a model, with its port for metrics open."""
    assert seen([[METRICS]] * 30, cpu_s=0.5) is None
    assert seen([[METRICS]] * 30, cpu_s=0.1) == SETTLED_S


def test_a_server_that_gets_no_cpu_has_not_settled() -> None:
    """On a busy machine it may load for long; what wakes it for a moment is no load."""
    assert seen([[METRICS]] * 30, waits_each=1) is None
    assert seen([[METRICS]] * 30, waits_each=2) == SETTLED_S


def test_a_server_that_listens_nowhere_has_not_settled() -> None:
    """Nothing can be said about it."""
    assert seen([[]] * 30) is None


def test_a_server_on_a_busy_machine_settles_late() -> None:
    """What a server that is apart does is not seen; a change of its addresses counts anew."""

    def apart() -> Elsewhere:
        return Elsewhere(MACHINE_BUSY, APART_SETTLED_S)

    assert seen([[WRONG]] * 100, 0.6, apart()) == APART_SETTLED_S
    assert seen([*[[METRICS]] * 9, *[[WRONG]] * 100], 0.6, apart()) == 9 + APART_SETTLED_S
    assert seen([[WRONG]] * 100, 0.4, apart()) == SETTLED_S


def test_the_machines_time_is_without_its_idle_time() -> None:
    """A wait for a disk counts; a machine that says nothing is idle."""
    assert machine_cpu_s("cpu  100 20 300 99999 40 5 6 7 8 9\ncpu0 1\n") == 471 / 100
    assert machine_cpu_s() > 0.0
    assert machine_cpu_s("cpu  1 2") == machine_cpu_s("") == 0.0


class Watched:
    """A watch of a server that is apart, whose expected port refuses; one look a second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, status: int, ready: str = "") -> None:
        self.now, self.found = 100.0, [WRONG, METRICS]
        self.asked: list[tuple[int, str]] = []
        self.logged: list[str] = []
        self.missed: list[str] = []
        self.readiness = Readiness(ready, 600.0, self.now)
        self.readiness.last = Answer(0, REFUSED)

        def probe(_loop: Any, server: Server, path: str, answered: Any) -> None:
            self.asked.append((server.port, path))
            answered(Answer(status if server.port == WRONG.port else 0, "said"))

        monkeypatch.setattr(module, "Probe", probe)
        monkeypatch.setattr(module, "machine_cpu_s", lambda: 0.0)
        monkeypatch.setattr(module.listeners, "listeners", lambda: self.found)
        loop: Any = self
        self.watch = PortWatch(
            loop,
            Server(8000, None, is_shared=False),
            self.readiness,
            is_apart=True,
            log=self.logged.append,
            missed=self.missed.append,
        )

    def clock(self) -> float:
        return self.now

    def run(self, seconds: int) -> None:
        """Look for some seconds."""
        for _ in range(seconds):
            self.watch.look(None)
            self.now += 1.0


def test_a_server_apart_that_answers_elsewhere_has_missed_its_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Everything that listens in its network is asked, once, for what the server is asked for."""
    one = Watched(monkeypatch, 200, "/health")

    one.run(10)
    assert one.asked == []
    one.run(20)

    assert one.asked == [(9090, "/health"), (9321, "/health")]
    shown = "the server listens on 0.0.0.0:9321, 127.0.0.1:9090, expected port 8000 (${PORT})"
    assert one.logged == [shown]
    assert one.missed == ["not ready, but port 9321 answers: is it the server's? (--port 9321)"]


@pytest.mark.parametrize("status", [0, 404, 500])
def test_another_answer_at_another_port_is_no_miss(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """A port for metrics does not know the path of the readiness probe; the log names it."""
    one = Watched(monkeypatch, status, "/health")

    one.run(100)

    assert (len(one.logged), one.missed) == (1, [])


def test_a_server_that_answers_slowly_has_not_missed_its_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its port accepts connections."""
    one = Watched(monkeypatch, 200)
    one.readiness.last = Answer(0, "no answer within 1 s")

    one.run(100)

    assert (one.asked, one.logged, one.missed) == ([], [], [])
