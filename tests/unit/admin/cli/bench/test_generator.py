"""Loads on real sockets: closed, open, with errors, time limits and a server that goes away."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from admin.cli.bench import generator
from admin.cli.bench.generator import AWAY, Generator, Unconnected
from admin.cli.bench.load import LoadPlan, LoadResult
from tests.support.load_target import Script, Target, answer, problem, target

REQUEST = b"POST /x HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"


def run(port: int, connections: int = 2, seconds: float = 0.2, **options: object) -> LoadResult:
    """Make a load in this process."""
    plan = LoadPlan("127.0.0.1", port, connections, seconds, **options)  # type: ignore[arg-type]
    with closing(Generator(plan, REQUEST, has_parent=False)) as made:
        made.connect()
        return made.run()


def loaded(script: Script, **options: object) -> tuple[LoadResult, Target]:
    """Make a load on a server with this script."""
    with target(script) as server:
        return run(server.port, **options), server


def test_each_connection_makes_its_calls() -> None:
    """Every request has one answer, on connections that stay open."""
    found, server = loaded(lambda _: answer(), connections=3, each=5, is_detailed=True)

    assert (len(found.taken_s), len(found.ended_s), found.errors, found.cut) == (15, 15, {}, 0)
    assert (server.requests, server.opened) == (15, 3)
    assert 0 < max(found.taken_s) <= found.elapsed_s


def test_a_load_ends_by_its_limit_of_calls() -> None:
    """Calls in flight end before the load does; the warm-up is not limited."""
    found, server = loaded(lambda _: answer(), warmup_s=0.05, seconds=60.0, calls_max=40)

    assert 40 <= len(found.taken_s) < 42
    assert server.requests > 40
    assert found.cut == 0


def test_errors_count_by_kind_and_have_no_latency() -> None:
    """A refusal, a broken connection and an answer that closes it each count once; the load goes
    on with a new connection."""
    answers: dict[int, bytes] = {
        1: problem(429, "queue_full"),
        2: answer(500),
        3: b"",
        4: answer(503, b"", "Connection: close"),
    }

    found, server = loaded(
        lambda number: answers.get(number, answer()), connections=1, seconds=60.0, each=8
    )

    assert found.errors == {"429 queue_full": 1, "500": 1, "connection lost": 1, "503": 1}
    assert (len(found.taken_s), server.requests, server.opened) == (4, 8, 3)


def test_another_status_may_be_the_expected_one() -> None:
    """With an expected status, every other one is an error."""
    found, _ = loaded(
        lambda number: answer(404 if number else 200), connections=1, each=3, status=404
    )
    assert (len(found.taken_s), found.errors) == (2, {"200": 1})


def test_a_call_has_a_time_limit() -> None:
    """A call without an answer fails at its limit, and another connection takes its place."""
    free = threading.Event()

    def script(number: int) -> bytes:
        if number == 0:
            free.wait()
        else:
            free.set()
        return answer()

    found, server = loaded(script, connections=1, each=2, timeout_s=0.1)

    assert (found.errors, len(found.taken_s), server.opened) == ({"timeout": 1}, 1, 2)


def test_an_open_load_measures_from_planned_starts() -> None:
    """One stalled answer delays the calls behind it, whose latency says so: a closed load would
    show one long call only (coordinated omission)."""
    stall, stalled_s = threading.Event(), 0.2

    def script(number: int) -> bytes:
        if number == 0:
            stall.wait(stalled_s)
        return answer()

    found, _ = loaded(script, connections=1, seconds=0.4, rate=100.0, is_poisson=False)

    assert len(found.taken_s) == pytest.approx(39, abs=1)
    assert sum(taken > stalled_s / 4 for taken in found.taken_s) >= 10
    assert found.unsent == 0


def test_calls_that_wait_too_long_are_never_sent() -> None:
    """A rate above what the connections allow shows in the count of unsent calls."""
    free = threading.Event()

    def script(_: int) -> bytes:
        free.wait()
        return answer()

    with target(script) as server:
        found = run(server.port, connections=1, seconds=0.2, rate=100.0, timeout_s=0.1)
        free.set()

    assert found.unsent > 5
    assert set(found.errors) <= {"timeout", "connection lost"}


def test_a_server_that_goes_away_ends_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier calls count, and the reason is reported."""
    monkeypatch.setattr(generator, "AWAY_S", 0.3)
    servers: list[Target] = []

    def script(number: int) -> bytes:
        if number == 50:
            servers[0].close()
            return b""
        return answer()

    with target(script) as server:
        servers.append(server)
        found = run(server.port, connections=2, seconds=60.0)

    assert found.stopped.startswith(AWAY)
    assert len(found.taken_s) == pytest.approx(50, abs=2)
    assert found.errors["no connection"] > 0


def test_a_server_that_is_not_there_is_unconnected() -> None:
    """Nothing is measured without all connections."""
    with target(lambda _: answer()) as server:
        pass
    with pytest.raises(Unconnected, match="refused"):
        run(server.port)


def test_the_end_of_an_open_load_costs_no_processor_time() -> None:
    """After the last planned start the generator waits for answers. Polling without a pause would
    take the machine from what it measures, and warn of itself."""
    free = threading.Event()
    polls = 0

    class Counted(Generator):
        def _poll(self, now_s: float) -> list[tuple[int, int]]:
            nonlocal polls
            polls += 1
            return super()._poll(now_s)

    def script(_: int) -> bytes:
        free.wait(0.5)
        return answer()

    with target(script) as server:
        plan = LoadPlan("127.0.0.1", server.port, 8, 0.05, rate=100.0, is_poisson=False)
        with closing(Counted(plan, REQUEST, has_parent=False)) as made:
            made.connect()
            found = made.run()

    assert len(found.taken_s) == pytest.approx(4, abs=1)
    assert polls < 100
